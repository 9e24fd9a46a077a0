//! Tags of samples. Those that follow the execution context: a ContextVar whose value holds an interned tag set.
//!
//! As with spans, coroutines, tasks and copied contexts are right by construction: whatever contextvars does with a
//! value, the handler sees. Those of threads are kept by the engine.
//!
//! A name that no server takes is left out and reported once: what is inside a `tag_wrapper` has to run.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use spanprof_core::host::report;
use spanprof_core::{TagSetId, may_be_a_tag};

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::calls::uncollected;
use crate::errors::guard;
use crate::span::context_var::ContextVar;
use crate::span::published::TAGS_USED;
use crate::value::{pair, pairs};

/// Blocks within each other of which each knows the one around it. Who opens more has some that never end in this context.
const MAX_DEPTH: u32 = 10_000;

/// A tag set, held for as long as a context has it. The handler reads the id.
#[pyclass(frozen, module = "pyroscope._native")]
#[derive(Debug)]
pub(crate) struct TagSet {
    pub(crate) id: TagSetId,
    /// The number of the `tag_wrapper` that made it.
    wrapper: u64,
    depth: u32,
    /// What was current before. Locked with the GIL held, and only to take it.
    outer: Mutex<Option<Py<TagSet>>>,
}

impl TagSet {
    /// One around which there is none.
    pub(crate) fn new(id: TagSetId) -> Self {
        Self { id, wrapper: 0, depth: 0, outer: Mutex::new(None) }
    }

    fn outer(&self) -> MutexGuard<'_, Option<Py<TagSet>>> {
        self.outer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TagSet {
    fn drop(&mut self) {
        self.id.release();
        // One after the other: thousands that end together, each within the one before, would use up the stack.
        let mut next = self.outer().take();
        while let Some(set) = next {
            // SAFETY: an object. The interpreter frees this one with the GIL held, so nobody takes a reference meanwhile.
            let is_ours = unsafe { ffi::Py_REFCNT(set.as_ptr()) } == 1;
            next = if is_ours { set.get().outer().take() } else { None };
        }
    }
}

/// The variable that holds the current [`TagSet`].
pub(crate) fn variable(py: Python<'_>) -> PyResult<&ContextVar> {
    static VARIABLE: PyOnceLock<ContextVar> = PyOnceLock::new();
    VARIABLE.get_or_try_init(py, || ContextVar::new(py, "pyroscope_tags"))
}

/// Enters `tags` on top of the current ones, for the `tag_wrapper` of this number.
#[pyfunction]
pub(crate) fn enter_tags(py: Python<'_>, tags: &Bound<'_, PyDict>, wrapper: u64) -> PyResult<()> {
    guard(|| {
        let mut tags = pairs("tag_wrapper", tags)?;
        tags.retain(|(name, _)| may_be_a_tag("tag_wrapper", name, report));
        let variable = variable(py)?;
        let outer = current(py, variable)?;
        let id = outer.as_ref().map_or(TagSetId::EMPTY, |set| set.get().id).with(&tags);
        let outer = outer.filter(|set| set.get().depth < MAX_DEPTH);
        let depth = outer.as_ref().map_or(0, |set| set.get().depth + 1);
        let outer = Mutex::new(outer.map(Bound::unbind));
        let set = uncollected(py, || Bound::new(py, TagSet { id, wrapper, depth, outer }))?;
        TAGS_USED.store(true, Ordering::Relaxed);
        variable.set(set.as_any())?;
        Ok(())
    })
}

/// Restores the tags that were current at [`enter_tags`], if the current ones are of this wrapper. They are not in another
/// context, such as a generator may end in: there is nothing to restore.
#[pyfunction]
pub(crate) fn leave_tags(py: Python<'_>, wrapper: u64) -> PyResult<()> {
    guard(|| {
        let variable = variable(py)?;
        if let Some(set) = current(py, variable)?.filter(|set| set.get().wrapper == wrapper) {
            let outer = set.get().outer().as_ref().map(|outer| outer.clone_ref(py));
            variable.set(outer.into_pyobject(py)?.as_any())?;
        }
        Ok(())
    })
}

fn current<'py>(py: Python<'py>, variable: &ContextVar) -> PyResult<Option<Bound<'py, TagSet>>> {
    Ok(variable.get(py)?.and_then(|value| value.cast_into().ok()))
}

/// Adds a tag to the calling thread's samples; False = no profiler runs, or the name is not allowed.
#[pyfunction]
pub(crate) fn add_thread_tag(key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    guard(|| {
        let (name, value) = pair("add_thread_tag", key, value)?;
        Ok(may_be_a_tag("add_thread_tag", &name, report) && spanprof_core::add_thread_tag(&name, &value))
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
