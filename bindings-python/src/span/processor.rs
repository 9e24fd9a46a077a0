//! The callbacks of a span processor: a span gets its handle when it starts, and tells its name when it ends.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::calls::{get_attr, set_attr};
use crate::errors::guard;
use crate::span::current::{is_retired, published_for, variable};
use crate::span::record::{SpanHandle, begin, id_of, is_of_this_epoch, profile_id};
use crate::strings::names;
use crate::{fork, messages};

/// The callbacks of one span processor.
#[pyclass(frozen, module = "pyroscope._native")]
#[derive(Debug)]
pub(crate) struct SpanHooks {
    scope_all: bool,
    open: AtomicBool,
}

#[pymethods]
impl SpanHooks {
    /// `scope_all`: every span under its own id, not only local roots.
    #[new]
    fn new(scope_all: bool) -> Self {
        Self { scope_all, open: AtomicBool::new(true) }
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
        guard(|| self.started(span, parent_context)).unwrap_or_else(|error| {
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

    /// `SpanProcessor._on_ending`: nothing to do.
    fn _on_ending(&self, _span: &Bound<'_, PyAny>) {}

    /// The processor is shut down. Returns whether it was not yet.
    fn close(&self) -> bool {
        self.open.swap(false, Ordering::Relaxed)
    }
}

impl SpanHooks {
    fn started<'py>(
        &self,
        span: &Bound<'py, PyAny>,
        parent_context: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyString>>> {
        let py = span.py();
        if !self.scope_all
            && let Some(root) = root_of_parent(span, parent_context)?
        {
            set_attr(span, &names(py).handle, &root)?;
            return Ok(None);
        }
        let handle = begin(span)?;
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

fn ended(span: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = span.py();
    let span_id = id_of(span)?;
    if spanprof_core::is_sampled(span_id) {
        let name = get_attr(span, &names(py).name)?;
        spanprof_core::span_ended(span_id, &name.cast::<PyString>()?.to_string_lossy());
    }
    Ok(())
}
