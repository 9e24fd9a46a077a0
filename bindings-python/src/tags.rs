//! Tags of samples. Those that follow the execution context: a ContextVar whose value holds an interned tag set.
//!
//! As with spans, coroutines, tasks and copied contexts are right by construction: whatever contextvars does with a
//! value, the handler sees. Those of threads are kept by the engine.
//!
//! A name that no server takes is left out and told once: what is inside a `tag_wrapper` has to run.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString};
use spanprof_core::{Level, TagSetId};

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use crate::calls;
use crate::context_var::ContextVar;
use crate::errors::guard;
use crate::profiler::tell;
use crate::unwind::TAGS_USED;

/// Names that were refused and told of; no more than `MAX_TOLD`. Locked with the GIL held, for a look and a push.
static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
const MAX_TOLD: usize = 32;

/// A tag set, held for as long as a context has it. The handler reads the id.
#[pyclass(frozen, module = "pyroscope._native")]
#[derive(Debug)]
pub(crate) struct TagSet {
    pub(crate) id: TagSetId,
}

impl Drop for TagSet {
    fn drop(&mut self) {
        self.id.release();
    }
}

/// The variable that holds the current [`TagSet`].
pub(crate) fn variable(py: Python<'_>) -> PyResult<&ContextVar> {
    static VARIABLE: PyOnceLock<ContextVar> = PyOnceLock::new();
    VARIABLE.get_or_try_init(py, || ContextVar::new(py, "pyroscope_tags"))
}

/// Enters `tags` on top of the current ones; returns the token for [`leave_tags`].
#[pyfunction]
pub(crate) fn enter_tags<'py>(py: Python<'py>, tags: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    guard(|| {
        let mut tags = pairs("tag_wrapper", tags)?;
        tags.retain(|(name, _)| may_be_a_tag("tag_wrapper", name));
        let variable = variable(py)?;
        let outer = variable.get(py)?;
        let outer = outer.as_ref().and_then(|value| value.cast::<TagSet>().ok()).map(|set| set.get().id);
        let id = outer.unwrap_or(TagSetId::EMPTY).with(&tags);
        let set = Bound::new(py, TagSet { id })?;
        TAGS_USED.store(true, Ordering::Relaxed);
        variable.set(set.as_any())
    })
}

/// Restores the tags that were current at [`enter_tags`]. False in another context, such as a generator's `finally` may
/// run in: there is nothing to restore.
#[pyfunction]
pub(crate) fn leave_tags(token: &Bound<'_, PyAny>) -> PyResult<bool> {
    guard(|| {
        let py = token.py();
        match variable(py)?.reset(token) {
            Ok(()) => Ok(true),
            Err(error) if error.is_instance_of::<pyo3::exceptions::PyValueError>(py) => Ok(false),
            Err(error) => Err(error),
        }
    })
}

/// Adds a tag to the calling thread's samples; False = no profiler runs, or the name is not allowed.
#[pyfunction]
pub(crate) fn add_thread_tag(key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    guard(|| {
        let (name, value) = pair("add_thread_tag", key, value)?;
        Ok(may_be_a_tag("add_thread_tag", &name) && spanprof_core::add_thread_tag(&name, &value))
    })
}

/// Takes back the last [`add_thread_tag`] of the same name and value; False = no profiler runs.
#[pyfunction]
pub(crate) fn remove_thread_tag(key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    guard(|| {
        let (name, value) = pair("remove_thread_tag", key, value)?;
        Ok(spanprof_core::remove_thread_tag(&name, &value))
    })
}

/// Says which tags describe a thread, by the kernel's id; a number that is none, such as libraries of greenlets give, is
/// nobody's.
#[pyfunction]
pub(crate) fn describe_thread(native_id: i64, tags: &Bound<'_, PyDict>) -> PyResult<()> {
    guard(|| {
        if let Ok(native_id) = i32::try_from(native_id) {
            spanprof_core::describe_thread(native_id, pairs("describe_thread", tags)?);
        }
        Ok(())
    })
}

/// Whether a tag may have this name; if not, that is told once.
fn may_be_a_tag(field: &str, name: &str) -> bool {
    let Err(error) = spanprof_core::check_tag_name(field, name) else { return true };
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.len() < MAX_TOLD && !told.iter().any(|known| known == name) {
        told.push(name.to_owned());
        tell(Level::Warning, format!("{}; the tag is left out", error.message()));
    }
    false
}

/// Names and values; values that are not str become it.
pub(crate) fn pairs(field: &str, tags: &Bound<'_, PyDict>) -> PyResult<Vec<(String, String)>> {
    tags.iter().map(|(name, value)| pair(field, &name, &value)).collect()
}

fn pair(field: &str, name: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<(String, String)> {
    let Ok(name) = name.cast::<PyString>() else {
        return Err(PyTypeError::new_err(format!("{field}: the name {} is not a str", calls::representation(name)?)));
    };
    let value = match value.cast_exact::<PyString>() {
        Ok(value) => value.to_string_lossy().into_owned(),
        Err(_) => calls::text(value)?,
    };
    Ok((name.to_string_lossy().into_owned(), value))
}
