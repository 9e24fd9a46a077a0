//! Tags that follow the execution context: a ContextVar whose value holds an interned tag set.
//!
//! As with spans, coroutines, tasks and copied contexts are right by construction: whatever contextvars does with a
//! value, the handler sees.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use spanprof_core::TagSetId;

use std::sync::atomic::Ordering;

use crate::context_var::ContextVar;
use crate::errors::guard;
use crate::unwind::TAGS_USED;

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
        let tags = pairs(tags)?;
        let variable = variable(py)?;
        let outer = variable.get(py)?;
        let outer = outer.as_ref().and_then(|value| value.cast::<TagSet>().ok()).map(|set| set.get().id);
        let id = outer.unwrap_or(TagSetId::EMPTY).with(&tags);
        let set = Bound::new(py, TagSet { id })?;
        TAGS_USED.store(true, Ordering::Relaxed);
        variable.set(set.as_any())
    })
}

/// Restores the tags that were current at [`enter_tags`]. In another context, where a generator's `finally` may run,
/// there is nothing to restore.
#[pyfunction]
pub(crate) fn leave_tags(token: &Bound<'_, PyAny>) -> PyResult<()> {
    guard(|| {
        let py = token.py();
        match variable(py)?.reset(token) {
            Err(error) if error.is_instance_of::<pyo3::exceptions::PyValueError>(py) => Ok(()),
            other => other,
        }
    })
}

/// Names and values; values that are not str become it.
pub(crate) fn pairs(tags: &Bound<'_, PyDict>) -> PyResult<Vec<(String, String)>> {
    let mut pairs = Vec::with_capacity(tags.len());
    for (name, value) in tags {
        let Ok(name) = name.extract::<String>() else {
            return Err(PyTypeError::new_err(format!("tags: the name {} is not a str", name.repr()?)));
        };
        pairs.push((name, value.str()?.to_string_lossy().into_owned()));
    }
    Ok(pairs)
}
