//! Errors and panics as Python's exceptions.
//!
//! | core | Python |
//! |---|---|
//! | InvalidConfig | ValueError |
//! | any other kind | RuntimeError |
//! | a panic | RuntimeError |

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::{PyErr, Python};
use spanprof_core::{Error, ErrorKind};

use crate::calls::uncollected;

/// The exception for an error of the engine.
pub(crate) fn to_python(error: &Error) -> PyErr {
    let message = error.message().to_owned();
    match error.kind() {
        ErrorKind::InvalidConfig => PyValueError::new_err(message),
        _ => PyRuntimeError::new_err(message),
    }
}

/// Calls of entry points that are under way. Counted with the GIL held, so loads and stores are enough.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// One of them.
#[derive(Debug)]
struct Inside;

impl Inside {
    #[inline]
    fn enter() -> Self {
        INSIDE.store(INSIDE.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        Self
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        INSIDE.store(INSIDE.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }
}

/// Whether a thread is in one of our entry points. Asked with the GIL held.
pub(crate) fn is_anyone_inside() -> bool {
    INSIDE.load(Ordering::Relaxed) != 0
}

/// In a forked child there is none of the parent's other threads.
pub(crate) fn nobody_is_inside() {
    INSIDE.store(0, Ordering::Relaxed);
}

/// Runs an entry point; a panic becomes a RuntimeError rather than pyo3's BaseException, which nothing catches.
#[inline]
pub(crate) fn guard<T>(body: impl FnOnce() -> Result<T, PyErr>) -> Result<T, PyErr> {
    let _inside = Inside::enter();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result.map_err(made),
        Err(payload) => Err(made(panicked(payload.as_ref()))),
    }
}

/// The error with its exception, which pyo3 would else make as it raises it.
#[cold]
fn made(error: PyErr) -> PyErr {
    // SAFETY: an entry point is called with the GIL held.
    let py = unsafe { Python::assume_attached() };
    uncollected(py, || error.value(py));
    error
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
