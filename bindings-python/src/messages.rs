//! What the program's logger is to be told: kept until Python code takes it and passes it on, as loggers run code of the program (see
//! `_messages.py`).

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use spanprof_core::{Level, Message, host};

use crate::calls::uncollected;
use crate::errors::guard;

/// Ticks of the profiler's thread between two checks for messages: a second, as it ticks every 100 ms.
const TICKS_BETWEEN_MESSAGES: u32 = 10;

/// Levels of Python's `logging`, and one above all of them.
const INFO: u8 = 20;
const WARNING: u8 = 30;
const SILENT: u8 = 100;

/// Ticks of the profiler's thread, and their number when messages were last checked for.
static TICKS: AtomicU32 = AtomicU32::new(0);
static CHECKED_AT: AtomicU32 = AtomicU32::new(0);
/// The least level that the logger is to get, as Python numbers it.
static LOG_LEVEL: AtomicU8 = AtomicU8::new(WARNING);
/// The first error of a callback, until it is taken. Locked with the GIL held and for no more than a move.
static CALLBACK_ERROR: Mutex<Option<(String, PyErr)>> = Mutex::new(None);
/// There is one to be taken.
static CALLBACK_ERROR_WAITS: AtomicBool = AtomicBool::new(false);
/// There was one.
static CALLBACK_ERROR_REPORTED: AtomicBool = AtomicBool::new(false);

/// A tick of the profiler's thread.
pub(crate) fn tick() {
    TICKS.fetch_add(1, Ordering::Relaxed);
}

/// Reports once that a callback failed: the program's spans must not suffer for it.
#[cold]
pub(crate) fn report_callback_error(py: Python<'_>, what: &str, error: &PyErr) {
    if !CALLBACK_ERROR_REPORTED.swap(true, Ordering::Relaxed) {
        let text = format!("{what} failed, its samples may miss their span: %s");
        *CALLBACK_ERROR.lock().unwrap_or_else(PoisonError::into_inner) = Some((text, error.clone_ref(py)));
        CALLBACK_ERROR_WAITS.store(true, Ordering::Relaxed);
    }
}

/// Whether it is time for [`take_messages`]: some wait, or nobody has checked for a second. A few loads.
#[pyfunction]
pub(crate) fn messages_due() -> bool {
    let ticks = TICKS.load(Ordering::Relaxed).wrapping_sub(CHECKED_AT.load(Ordering::Relaxed));
    host::messages_wait() || CALLBACK_ERROR_WAITS.load(Ordering::Relaxed) || ticks >= TICKS_BETWEEN_MESSAGES
}

/// A message for Python: level, text, and an exception to put into the text, if any.
type MessageForPython = (u8, String, Option<Py<PyAny>>);

/// What the logger is to be told since the last call.
///
/// Python code passes it on, as loggers run code of the program: see `_lifecycle.py`. None if there is nothing, for which
/// no object is made.
#[pyfunction]
pub(crate) fn take_messages(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    guard(|| {
        CHECKED_AT.store(TICKS.load(Ordering::Relaxed), Ordering::Relaxed);
        CALLBACK_ERROR_WAITS.store(false, Ordering::Relaxed);
        let messages = host::take_messages();
        let error = CALLBACK_ERROR.lock().unwrap_or_else(PoisonError::into_inner).take();
        let error = error.map(|(text, error)| (WARNING, text, Some(error.into_value(py).into_any())));
        let messages = messages.into_iter().map(|Message { level, text }| (number_of(level), text, None));
        let waiting: Vec<MessageForPython> = messages.chain(error).collect();
        if waiting.is_empty() {
            return Ok(None);
        }
        uncollected(py, || waiting.into_pyobject(py)).map(Some)
    })
}

/// The least level of messages that the logger is to get, as Python's `logging` numbers levels.
#[pyfunction]
pub(crate) fn log_level() -> u8 {
    LOG_LEVEL.load(Ordering::Relaxed)
}

/// Sets it; None is above all of them.
pub(crate) fn set_log_level(level: Option<Level>) {
    LOG_LEVEL.store(level.map_or(SILENT, number_of), Ordering::Relaxed);
}

fn number_of(level: Level) -> u8 {
    match level {
        Level::Info => INFO,
        Level::Warning => WARNING,
    }
}
