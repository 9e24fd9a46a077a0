//! The callbacks of a span processor: a span gets its handle when it starts, and tells its name when it ends.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use spanprof_core::SpanCpu;

use crate::calls::{find_attr, get_attr, set_attr, uncollected};
use crate::errors::guard;
use crate::span::current::{is_retired, published_for, variable};
use crate::span::record::{Local, SpanHandle, begin, id_of, is_of_this_epoch, profile_id};
use crate::strings::names;
use crate::{fork, messages};

/// What is done on a thread where a span begins, before the span is current.
static FOLLOW_THREAD: OnceLock<fn(Python<'_>)> = OnceLock::new();

/// Says what that is. When the module is imported.
pub(crate) fn follow_threads_by(follow_thread: fn(Python<'_>)) {
    let _ = FOLLOW_THREAD.set(follow_thread);
}

/// The callbacks of one span processor.
#[pyclass(frozen, module = "pyroscope._native")]
#[derive(Debug)]
pub(crate) struct SpanHooks {
    scope_all: bool,
    times: bool,
    open: AtomicBool,
}

#[pymethods]
impl SpanHooks {
    /// `scope_all`: every span under its own id, not only local roots. `times`: these are to say what their time went to.
    #[new]
    fn new(scope_all: bool, times: bool) -> Self {
        if times {
            spanprof_core::want_span_times();
        }
        Self { scope_all, times, open: AtomicBool::new(true) }
    }

    /// A span starts. Returns the value for its attribute `pyroscope.profile.id`, None if it is to have none: the
    /// caller sets it, as that runs Python code (see `_lifecycle.py`). Never raises.
    ///
    /// Hot: bench `span`.
    #[pyo3(signature = (span, parent_context = None))]
    fn start<'py>(
        &self,
        span: &Bound<'py, PyAny>,
        parent_context: Option<&Bound<'py, PyAny>>,
    ) -> Option<Bound<'py, PyString>> {
        if is_retired() {
            return None;
        }
        let py = span.py();
        fork::restart_if_forked(py);
        let started = guard(|| {
            if let Some(follow_thread) = FOLLOW_THREAD.get() {
                follow_thread(py);
            }
            self.started(span, parent_context)
        });
        started.unwrap_or_else(|error| {
            messages::report_callback_error(py, "starting a span", &error);
            None
        })
    }

    /// `SpanProcessor.on_end`: tells the final name of a span that was sampled. Never raises.
    ///
    /// Hot: bench `span`.
    fn on_end(&self, span: &Bound<'_, PyAny>) {
        if !is_retired()
            && let Err(error) = guard(|| ended(span))
        {
            messages::report_callback_error(span.py(), "ending a span", &error);
        }
    }

    /// `SpanProcessor._on_ending`, where spans say no times: nothing to do.
    fn _on_ending(&self, _span: &Bound<'_, PyAny>) {}

    /// What the time of a span went to, by the names of attributes, None for one that says none. `holder` has its handle: itself, or
    /// what it shares with `span`. `has_own_thread`: what the thread ran is what it ran for this span. Never raises.
    fn times<'py>(
        &self,
        span: &Bound<'py, PyAny>,
        holder: &Bound<'py, PyAny>,
        wall_ns: i64,
        has_own_thread: bool,
    ) -> Option<Bound<'py, PyDict>> {
        if is_retired() {
            return None;
        }
        let wall_ns = u64::try_from(wall_ns).unwrap_or(0);
        guard(|| times_of(span, holder, wall_ns, has_own_thread)).unwrap_or_else(|error| {
            messages::report_callback_error(span.py(), "ending a span", &error);
            None
        })
    }

    /// The processor is shut down. Returns whether it was not yet.
    fn close(&self) -> bool {
        let is_first = self.open.swap(false, Ordering::Relaxed);
        if is_first && self.times {
            spanprof_core::unwant_span_times();
        }
        is_first
    }
}

impl SpanHooks {
    fn started<'py>(
        &self,
        span: &Bound<'py, PyAny>,
        parent_context: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyString>>> {
        let py = span.py();
        // The scope `all` asks no parent, unless who is a local root matters.
        let root = if self.scope_all && !self.times { None } else { root_of_parent(span, parent_context)? };
        if !self.scope_all
            && let Some(root) = &root
        {
            set_attr(span, &names(py).handle, root)?;
            return Ok(None);
        }
        let local = self.times.then(|| match &root {
            None => Local::Root(SpanCpu::default()),
            Some(parent) => Local::Child(parent.cast::<SpanHandle>().ok().and_then(SpanHandle::root_of_child)),
        });
        let handle = begin(span, local)?;
        Ok(handle.cast::<SpanHandle>().ok().map(|handle| profile_id(handle.get(), py)))
    }
}

/// The handle of the local root that `span` starts under; `None` if it is one itself, or its parent has none.
#[inline]
fn root_of_parent<'py>(
    span: &Bound<'py, PyAny>,
    parent_context: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = span.py();
    let parent = get_attr(span, &names(py).parent)?;
    if parent.is_none() || parent.cast::<PyTuple>()?.get_item(2)?.is_truthy()? {
        return Ok(None);
    }
    let handle = match parent_context {
        Some(context) => Some(published_for(context)?),
        // The current context, whose handle is what is published now.
        None => variable(py)?.get(py)?,
    };
    Ok(handle.filter(|handle| !handle.is_none() && is_of_this_epoch(handle)))
}

fn times_of<'py>(
    span: &Bound<'py, PyAny>,
    holder: &Bound<'py, PyAny>,
    wall_ns: u64,
    has_own_thread: bool,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let py = span.py();
    let Some(handle) = find_attr(holder, &names(py).handle) else { return Ok(None) };
    let Ok(handle) = handle.cast::<SpanHandle>() else { return Ok(None) };
    // In the scope `root` a child span has the handle of its local root.
    if handle.get().span.record.span_id() != id_of(span)? {
        return Ok(None);
    }
    let Some(times) = handle.get().times(wall_ns, has_own_thread) else { return Ok(None) };
    uncollected(py, || {
        let found = PyDict::new(py);
        for (name, ns) in times {
            found.set_item(name, ns)?;
        }
        Ok(Some(found))
    })
}

fn ended(span: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = span.py();
    let span_id = id_of(span)?;
    if spanprof_core::is_sampled(span_id) {
        let name = get_attr(span, &names(py).name)?;
        spanprof_core::span_ended(span_id, &name.cast::<PyString>()?.to_string_lossy());
    }
    Ok(())
}
