//! OpenTelemetry's runtime context while a span processor is at work, which tells the sampler what is current.
//!
//! OpenTelemetry's current span is an entry of the dict that its own ContextVar holds; a handler cannot look into
//! that. So [`RuntimeContext`] takes the place of OpenTelemetry's runtime context and keeps a second variable in step:
//! **its value is a function of OpenTelemetry's**, worked out anew after each attach and detach, and set only where it
//! changes. Tokens are OpenTelemetry's own, so one made before we came or used after we left works.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::context_var::ContextVar;
use crate::errors::guard;
use crate::names::names;
use crate::profiler;
use crate::span::{SpanHandle, begin, handle_of, profile_id};
use crate::unwind::EPOCH;

/// What we must know of the OpenTelemetry that is installed.
#[derive(Debug)]
struct OpenTelemetry {
    /// The key of the current span in a context.
    span_key: Py<PyAny>,
    /// The class of spans that record nothing.
    non_recording: Py<PyAny>,
    /// The SDK's class of spans.
    sdk_span: Py<PyAny>,
}

fn open_telemetry(py: Python<'_>) -> PyResult<&OpenTelemetry> {
    static KNOWN: PyOnceLock<OpenTelemetry> = PyOnceLock::new();
    KNOWN.get_or_try_init(py, || {
        Ok(OpenTelemetry {
            span_key: py.import("opentelemetry.trace.propagation")?.getattr("_SPAN_KEY")?.unbind(),
            non_recording: py.import("opentelemetry.trace")?.getattr("NonRecordingSpan")?.unbind(),
            sdk_span: py.import("opentelemetry.sdk.trace")?.getattr("Span")?.unbind(),
        })
    })
}

/// The variable that holds the current [`SpanHandle`], or None outside spans.
pub(crate) fn variable(py: Python<'_>) -> PyResult<&ContextVar> {
    static VARIABLE: PyOnceLock<ContextVar> = PyOnceLock::new();
    VARIABLE.get_or_try_init(py, || ContextVar::new(py, "pyroscope_span"))
}

/// Processors at work: the runtime context is ours while there are any.
static PROCESSORS: AtomicUsize = AtomicUsize::new(0);
/// The epoch that the next first processor begins.
static EPOCHS: AtomicU32 = AtomicU32::new(1);

/// The span that `context` (a dict of OpenTelemetry's) says is current.
#[inline]
fn span_in<'py>(context: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let key = open_telemetry(context.py())?.span_key.bind(context.py());
    match context.cast::<PyDict>() {
        Ok(dict) => dict.get_item(key),
        Err(_) => Ok(context.get_item(key).ok()),
    }
}

/// What the sampler is to see while `context` is current: a handle, or None.
#[inline]
pub(crate) fn published_for<'py>(context: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = context.py();
    let none = || py.None().into_bound(py);
    let Some(span) = span_in(context)? else {
        return Ok(none());
    };
    if span.get_type().as_ptr() == open_telemetry(py)?.non_recording.as_ptr() {
        return Ok(none());
    }
    match handle_of(&span) {
        Ok(handle) => Ok(handle),
        Err(()) => Ok(adopt(&span)?.unwrap_or_else(none)),
    }
}

/// Gives a span that began before the processor a handle of its own, if it still records.
#[cold]
fn adopt<'py>(span: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = span.py();
    if !span.is_instance(open_telemetry(py)?.sdk_span.bind(py))? || !span.call_method0("is_recording")?.is_truthy()? {
        return Ok(None);
    }
    let handle = begin(span)?;
    if let Ok(handle) = handle.cast::<SpanHandle>() {
        let id = profile_id(handle.get(), py);
        span.call_method1(&names(py).set_attribute, (&names(py).profile_id, id))?;
    }
    Ok(Some(handle))
}

/// Stands in for OpenTelemetry's runtime context while a span processor is at work.
#[pyclass(frozen, module = "pyroscope._native")]
#[derive(Debug)]
pub(crate) struct RuntimeContext {
    /// The runtime context that was there before.
    previous: Py<PyAny>,
    /// Its ContextVar, if it is OpenTelemetry's own class; else its methods are called.
    variable: Option<ContextVar>,
}

impl RuntimeContext {
    /// Makes the sampler see what OpenTelemetry's current context says.
    #[inline]
    fn publish(&self, context: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = context.py();
        let wanted = published_for(context)?;
        let ours = variable(py)?;
        let now = ours.get(py)?;
        let same = match &now {
            Some(now) => now.is(&wanted),
            None => wanted.is_none(),
        };
        if !same {
            ours.set(&wanted)?;
        }
        Ok(())
    }

    /// As [`publish`](Self::publish); what goes wrong is our trouble and not the program's.
    #[inline]
    fn publish_quietly(&self, context: &Bound<'_, PyAny>) {
        if PROCESSORS.load(Ordering::Relaxed) > 0
            && let Err(error) = guard(|| self.publish(context))
        {
            profiler::trouble(context.py(), "following the current span", &error);
        }
    }
}

#[pymethods]
impl RuntimeContext {
    /// One that stands in for `previous`, for `OTEL_PYTHON_CONTEXT`. It follows spans from the first processor on.
    #[new]
    fn new(previous: &Bound<'_, PyAny>) -> PyResult<Self> {
        guard(|| {
            let py = previous.py();
            let own = py.import("opentelemetry.context.contextvars_context")?.getattr("ContextVarsRuntimeContext")?;
            let variable = if previous.get_type().is(&own) {
                ContextVar::from_object(&previous.getattr("_current_context")?)?
            } else {
                None
            };
            let base = py.import("opentelemetry.context.context")?.getattr("_RuntimeContext")?;
            base.call_method1("register", (py.get_type::<Self>(),))?;
            Ok(Self { previous: previous.clone().unbind(), variable })
        })
    }

    /// Makes `context` current; returns OpenTelemetry's token.
    ///
    /// Hot: bench `attach`.
    fn attach<'py>(&self, context: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = context.py();
        let token = match &self.variable {
            Some(variable) => variable.set(context)?,
            None => self.previous.bind(py).call_method1(&names(py).attach, (context,))?,
        };
        self.publish_quietly(context);
        Ok(token)
    }

    /// Undoes the `attach` that gave `token`.
    ///
    /// Hot: bench `attach`.
    fn detach(&self, token: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = token.py();
        match &self.variable {
            Some(variable) => variable.reset(token)?,
            None => {
                self.previous.bind(py).call_method1(&names(py).detach, (token,))?;
            }
        }
        self.publish_quietly(&self.get_current(py)?);
        Ok(())
    }

    /// OpenTelemetry's current context.
    fn get_current<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(variable) = &self.variable
            && let Some(context) = variable.get(py)?
        {
            return Ok(context);
        }
        self.previous.bind(py).call_method0(&names(py).get_current)
    }

    /// The ContextVar that code which knows OpenTelemetry's own class may look for.
    #[getter]
    fn _current_context(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.previous.getattr(py, &names(py).current_context)
    }

    /// The runtime context that this one stands in for.
    #[getter]
    fn previous(&self, py: Python<'_>) -> Py<PyAny> {
        self.previous.clone_ref(py)
    }
}

/// Puts a [`RuntimeContext`] in OpenTelemetry's place, unless one is there, and publishes what is current already.
pub(crate) fn install(py: Python<'_>) -> PyResult<()> {
    let module = py.import("opentelemetry.context")?;
    open_telemetry(py)?;
    let previous = module.getattr("_RUNTIME_CONTEXT")?;
    let ours = match previous.cast::<RuntimeContext>() {
        Ok(ours) => ours.clone(),
        Err(_) => {
            let ours = Bound::new(py, RuntimeContext::new(&previous)?)?;
            module.setattr("_RUNTIME_CONTEXT", &ours)?;
            ours
        }
    };
    if PROCESSORS.fetch_add(1, Ordering::Relaxed) == 0 {
        EPOCH.store(EPOCHS.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }
    let context = ours.get().get_current(py)?;
    ours.get().publish_quietly(&context);
    Ok(())
}

/// Puts the runtime context back that was there before the first processor, if ours is still in its place.
pub(crate) fn uninstall(py: Python<'_>) -> PyResult<()> {
    if PROCESSORS.fetch_sub(1, Ordering::Relaxed) > 1 {
        return Ok(());
    }
    EPOCH.store(0, Ordering::Relaxed);
    let module = py.import("opentelemetry.context")?;
    if let Ok(ours) = module.getattr("_RUNTIME_CONTEXT")?.cast::<RuntimeContext>() {
        module.setattr("_RUNTIME_CONTEXT", ours.get().previous.bind(py))?;
    }
    Ok(())
}
