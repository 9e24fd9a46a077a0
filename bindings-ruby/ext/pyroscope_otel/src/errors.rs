//! Errors and panics as Ruby's exceptions.
//!
//! | core | Ruby |
//! |---|---|
//! | InvalidConfig | ArgumentError |
//! | any other kind | Pyroscope::Error |
//! | a panic | Pyroscope::Error |

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use magnus::prelude::*;
use magnus::value::Lazy;
use magnus::{Error, ExceptionClass, RModule, Ruby};
use spanprof_core::ErrorKind;

static ERROR: Lazy<ExceptionClass> = Lazy::new(|ruby| {
    let error = ruby.class_object().const_get::<_, RModule>("Pyroscope").and_then(|module| module.const_get("Error"));
    error.unwrap_or_else(|_| ruby.exception_runtime_error())
});

/// Defines `Pyroscope::Error`.
pub(crate) fn define(ruby: &Ruby, module: RModule) -> Result<(), Error> {
    module.define_error("Error", ruby.exception_standard_error()).map(drop)
}

/// The exception for an error of the engine.
pub(crate) fn to_ruby(ruby: &Ruby, error: &spanprof_core::Error) -> Error {
    let class = match error.kind() {
        ErrorKind::InvalidConfig => ruby.exception_arg_error(),
        _ => ruby.get_inner(&ERROR),
    };
    Error::new(class, error.message().to_owned())
}

/// An ArgumentError.
pub(crate) fn invalid(ruby: &Ruby, text: impl Into<String>) -> Error {
    Error::new(ruby.exception_arg_error(), text.into())
}

/// Runs an entry point; a panic becomes a Pyroscope::Error rather than magnus' `fatal`, which ends the process.
#[inline]
pub(crate) fn guard<T>(ruby: &Ruby, body: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(payload) => Err(panicked(ruby, payload.as_ref())),
    }
}

/// Runs what may not raise; a panic becomes nothing.
#[inline]
pub(crate) fn quietly<T: Default>(body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_default()
}

#[cold]
fn panicked(ruby: &Ruby, payload: &(dyn Any + Send)) -> Error {
    let text = payload.downcast_ref::<&str>().copied().map(str::to_owned);
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
    Error::new(ruby.get_inner(&ERROR), format!("pyroscope failed internally, please report it: {text}"))
}

/// Makes panics of this library silent: they become exceptions, and a profiler does not write to stderr.
/// Every extension has its own copy of Rust's runtime, so the hooks of others are not touched.
pub(crate) fn silence_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}
