//! Errors and panics as Python's exceptions.
//!
//! | core | Python |
//! |---|---|
//! | InvalidConfig | ValueError |
//! | any other kind | RuntimeError |
//! | a panic | RuntimeError |

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::PyErr;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use spanprof_core::{Error, ErrorKind};

/// The exception for an error of the engine.
pub(crate) fn to_python(error: &Error) -> PyErr {
    let message = error.message().to_owned();
    match error.kind() {
        ErrorKind::InvalidConfig => PyValueError::new_err(message),
        _ => PyRuntimeError::new_err(message),
    }
}

/// Runs an entry point; a panic becomes a RuntimeError rather than pyo3's BaseException, which nothing catches.
#[inline]
pub(crate) fn guard<T>(body: impl FnOnce() -> Result<T, PyErr>) -> Result<T, PyErr> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(payload) => Err(panicked(payload.as_ref())),
    }
}

#[cold]
fn panicked(payload: &(dyn Any + Send)) -> PyErr {
    let text = payload.downcast_ref::<&str>().copied().map(str::to_owned);
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
    PyRuntimeError::new_err(format!("pyroscope failed internally, please report it: {text}"))
}

/// Makes panics of this library silent: they become exceptions, and a profiler does not write to stderr.
/// Every extension module has its own copy of Rust's runtime, so the hooks of others are not touched.
pub(crate) fn silence_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}
