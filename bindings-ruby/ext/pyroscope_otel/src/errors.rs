//! Errors and panics as Ruby's exceptions.
//!
//! | core | Ruby |
//! |---|---|
//! | InvalidConfig | ArgumentError |
//! | any other kind | Pyroscope::Error |
//! | a panic | Pyroscope::Error |
//!
//! An `Err` may also be what ends or interrupts the calling thread: `Thread#kill`, exit, `Timeout`. Ruby hands such a thing out
//! once, so whoever drops it leaves a thread that nobody can end. Errors are passed on, and none of the program's code
//! runs while one is made.

use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use magnus::error::ErrorType;
use magnus::prelude::*;
use magnus::rb_sys::AsRawValue;
use magnus::value::Lazy;
use magnus::{Error, ExceptionClass, Float, RModule, RString, Ruby, Value};
use rb_sys::VALUE;
use spanprof_core::ErrorKind;

use crate::value::{TRUE, integer};

static ERROR: Lazy<ExceptionClass> = Lazy::new(|ruby| {
    let error = ruby.class_object().const_get::<_, RModule>("Pyroscope").and_then(|module| module.const_get("Error"));
    error.unwrap_or_else(|_| ruby.exception_runtime_error())
});

/// Defines `Pyroscope::Error`.
pub(crate) fn define(ruby: &Ruby, module: RModule) -> Result<(), Error> {
    module.define_error("Error", ruby.exception_standard_error())?;
    Lazy::force(&ERROR, ruby);
    Ok(())
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

/// An ArgumentError for a value that is not allowed.
pub(crate) fn not_allowed(ruby: &Ruby, field: &str, value: Value, allowed: &str) -> Error {
    invalid(ruby, format!("{field}: {} is not allowed; allowed: {allowed}", shown(value)))
}

/// What Ruby's own simple values are; of all others the class, as `inspect` would run code of the program.
fn shown(value: Value) -> String {
    if let Some(text) = RString::from_value(value) {
        // SAFETY: the bytes are copied before Ruby runs again.
        format!("{:?}", String::from_utf8_lossy(unsafe { text.as_slice() }))
    } else if let Some(number) = integer(value) {
        number.to_string()
    } else if let Some(number) = Float::from_value(value) {
        number.to_f64().to_string()
    } else if value.is_nil() {
        "nil".to_owned()
    } else {
        // SAFETY: the name is copied before Ruby runs again.
        format!("an object of the class {}", unsafe { value.classname() })
    }
}

/// Runs an entry point; a panic becomes a Pyroscope::Error rather than magnus' `fatal`, which ends the process.
#[inline]
pub(crate) fn guard<T>(ruby: &Ruby, body: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(made(error)),
        Err(payload) => Err(made(panicked(ruby, payload.as_ref()))),
    }
}

/// The error with its exception. magnus would make that later, and end the process where the thread is killed meanwhile: then
/// that is the error.
#[cold]
fn made(error: Error) -> Error {
    match error.error_type() {
        ErrorType::Error(class, text) => match class.new_instance((text.as_ref(),)) {
            Ok(exception) => exception.into(),
            Err(instead) => instead,
        },
        _ => error,
    }
}

/// Runs what is called by Ruby without magnus: a panic becomes nothing, an error is raised.
///
/// # Safety
/// Called by a method of Ruby's whose frame holds nothing with a destructor.
#[inline]
pub(crate) unsafe fn raising<T: Default>(body: impl FnOnce() -> Result<T, Error>) -> T {
    match quietly(|| Some(body())) {
        Some(Ok(value)) => value,
        Some(Err(error)) => {
            let (tag, exception) = match made(error).error_type() {
                ErrorType::Jump(tag) => (*tag as c_int, None),
                ErrorType::Exception(exception) => (0, Some(exception.as_raw())),
                // `made` leaves none.
                ErrorType::Error(..) => return T::default(),
            };
            match exception {
                // SAFETY: an exception, and the caller's promise.
                Some(exception) => unsafe { rb_sys::rb_exc_raise(exception) },
                // SAFETY: what `rb_protect` gave, and the caller's promise.
                None => unsafe { rb_sys::rb_jump_tag(tag) },
            }
        }
        None => T::default(),
    }
}

/// Whether Ruby could make no thread: this binding can live without its own.
pub(crate) fn is_thread_error(error: &Error) -> bool {
    // SAFETY: set when Ruby began.
    let class: VALUE = unsafe { rb_sys::rb_eThreadError };
    match error.error_type() {
        // SAFETY: an exception and a class.
        ErrorType::Exception(exception) => unsafe { rb_sys::rb_obj_is_kind_of(exception.as_raw(), class) == TRUE },
        _ => false,
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
