//! Which span is current, told to the sampler in a ContextVar of ours.
//!
//! OpenTelemetry's current span is an entry of the dict that its own ContextVar holds; a handler cannot look into
//! that. So [`RuntimeContext`] takes the place of OpenTelemetry's runtime context and keeps a second variable in step:
//! **its value is a function of OpenTelemetry's**, worked out anew after each attach and detach, and set only where it
//! changes. Tokens are OpenTelemetry's own, so one made before we came or used after we left works.
//!
//! The value is a [`SpanHandle`], made when a span starts and kept by the span itself (attribute `_pyroscope`). With
//! the scope `root` a span inside a local root keeps the root's handle: that is what its samples carry, and starting
//! it costs nothing more.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple};
use spanprof_core::SpanRecord;

use crate::context_var::ContextVar;
use crate::errors::guard;
use crate::profiler;
use crate::unwind::SPANS_FOLLOWED;

/// A span as the sampler reads it, and the string that its name is in.
#[pyclass(frozen, module = "pyroscope._native")]
#[derive(Debug)]
pub(crate) struct SpanHandle {
    pub(crate) record: SpanRecord,
    _name: Name,
}

/// Keeps a record's name alive.
#[derive(Debug)]
#[expect(dead_code, reason = "held, not read")]
enum Name {
    Python(Py<PyString>),
    /// A name that UTF-8 cannot hold as it is.
    Mended(Box<str>),
}

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

impl SpanHandle {
    /// The handle of `span`, a span of the SDK.
    fn of(span: &Bound<'_, PyAny>, context: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let py = span.py();
        let trace_id = context.get_item(0)?;
        let high = trace_id.call_method1(intern!(py, "__rshift__"), (64_u8,))?;
        let trace_id = [low_half(&high)?, low_half(&trace_id)?];
        let span_id = low_half(&context.get_item(1)?)?;
        let name = span.getattr(intern!(py, "_name"))?;
        let name = name.cast::<PyString>()?;
        Ok(match name.to_str() {
            Ok(text) => {
                // SAFETY: a str keeps its UTF-8 form, unchanged, for as long as it lives, and the handle keeps the str.
                let record = unsafe { SpanRecord::new(trace_id, span_id, text) };
                Self { record, _name: Name::Python(name.clone().unbind()) }
            }
            Err(_) => {
                let text = name.to_string_lossy().into_owned().into_boxed_str();
                // SAFETY: the box does not move its content, and the handle keeps it.
                let record = unsafe { SpanRecord::new(trace_id, span_id, &text) };
                Self { record, _name: Name::Mended(text) }
            }
        })
    }

    /// A handle with this id, for the self-test.
    pub(crate) fn probe(span_id: u64) -> Self {
        // SAFETY: the name is static.
        let record = unsafe { SpanRecord::new([0, span_id], span_id, "probe") };
        Self { record, _name: Name::Mended(Box::from("")) }
    }
}

/// The lower 64 bits of an int.
#[inline]
fn low_half(number: &Bound<'_, PyAny>) -> PyResult<u64> {
    // SAFETY: an object; anything but an int makes it set an exception.
    let value = unsafe { ffi::PyLong_AsUnsignedLongLongMask(number.as_ptr()) };
    if value == u64::MAX
        && let Some(error) = PyErr::take(number.py())
    {
        return Err(error);
    }
    Ok(value)
}

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
fn published_for<'py>(context: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = context.py();
    let none = || py.None().into_bound(py);
    let Some(span) = span_in(context)? else {
        return Ok(none());
    };
    if span.get_type().as_ptr() == open_telemetry(py)?.non_recording.as_ptr() {
        return Ok(none());
    }
    match span.getattr(intern!(py, "_pyroscope")) {
        Ok(handle) => Ok(handle),
        Err(_) => Ok(adopt(&span)?.unwrap_or_else(none)),
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
        span.call_method1(intern!(py, "set_attribute"), (intern!(py, "pyroscope.profile.id"), id))?;
    }
    Ok(Some(handle))
}

/// Makes the handle of a span that is to be seen under its own id; None for a span that nobody exports.
fn begin<'py>(span: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = span.py();
    let context = span.getattr(intern!(py, "_context"))?;
    let context = context.cast::<PyTuple>()?;
    // SpanContext is (trace_id, span_id, is_remote, trace_flags, …).
    let flags: u32 = context.get_item(3)?.extract()?;
    if flags & 1 == 0 {
        let none = py.None().into_bound(py);
        span.setattr(intern!(py, "_pyroscope"), &none)?;
        return Ok(none);
    }
    let handle = Bound::new(py, SpanHandle::of(span, context)?)?.into_any();
    span.setattr(intern!(py, "_pyroscope"), &handle)?;
    Ok(handle)
}

/// The value of the attribute `pyroscope.profile.id`.
fn profile_id<'py>(handle: &SpanHandle, py: Python<'py>) -> Bound<'py, PyString> {
    let id = hex(handle.record.span_id());
    PyString::new(py, std::str::from_utf8(&id).unwrap_or_default())
}

/// Sixteen lower-case hex digits.
fn hex(id: u64) -> [u8; 16] {
    let mut text = [0; 16];
    for (at, digit) in text.iter_mut().enumerate() {
        let nibble = id.to_be_bytes()[at / 2] >> (4 * (1 - at % 2)) & 15;
        *digit = nibble + if nibble < 10 { b'0' } else { b'a' - 10 };
    }
    text
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
            None => self.previous.bind(py).call_method1(intern!(py, "attach"), (context,))?,
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
                self.previous.bind(py).call_method1(intern!(py, "detach"), (token,))?;
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
        self.previous.bind(py).call_method0(intern!(py, "get_current"))
    }

    /// The ContextVar that code which knows OpenTelemetry's own class may look for.
    #[getter]
    fn _current_context(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.previous.getattr(py, intern!(py, "_current_context"))
    }

    /// The runtime context that this one stands in for.
    #[getter]
    fn previous(&self, py: Python<'_>) -> Py<PyAny> {
        self.previous.clone_ref(py)
    }
}

/// The callbacks of one span processor.
#[pyclass(frozen, module = "pyroscope._native")]
#[derive(Debug)]
pub(crate) struct SpanHooks {
    scope_all: bool,
    open: AtomicBool,
}

#[pymethods]
impl SpanHooks {
    /// Takes the runtime context's place. `scope_all`: every span under its own id, not only local roots.
    #[new]
    fn new(py: Python<'_>, scope_all: bool) -> PyResult<Self> {
        guard(|| {
            install(py)?;
            Ok(Self { scope_all, open: AtomicBool::new(true) })
        })
    }

    /// A span starts. Returns the value for its attribute `pyroscope.profile.id`, None if it is to have none: the
    /// caller sets it, as that runs Python code (see `_process.py`). Never raises.
    ///
    /// Hot: bench `span`.
    #[pyo3(signature = (span, parent_context = None))]
    fn start<'py>(
        &self,
        span: &Bound<'py, PyAny>,
        parent_context: Option<&Bound<'py, PyAny>>,
    ) -> Option<Bound<'py, PyString>> {
        let py = span.py();
        profiler::housekeep(py);
        guard(|| self.started(span, parent_context)).unwrap_or_else(|error| {
            profiler::trouble(py, "starting a span", &error);
            None
        })
    }

    /// `SpanProcessor.on_end`: tells the final name of a span that was sampled. Never raises.
    ///
    /// Hot: bench `span`.
    fn on_end(&self, span: &Bound<'_, PyAny>) {
        if let Err(error) = guard(|| ended(span)) {
            profiler::trouble(span.py(), "ending a span", &error);
        }
    }

    /// `SpanProcessor._on_ending`: nothing to do.
    fn _on_ending(&self, _span: &Bound<'_, PyAny>) {}

    /// Gives OpenTelemetry its runtime context back, when the last processor says so. Any number of times.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        guard(|| if self.open.swap(false, Ordering::Relaxed) { uninstall(py) } else { Ok(()) })
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
            span.setattr(intern!(py, "_pyroscope"), root)?;
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
    let parent = span.getattr(intern!(py, "_parent"))?;
    if parent.is_none() || parent.cast::<PyTuple>()?.get_item(2)?.is_truthy()? {
        return Ok(None);
    }
    let handle = match parent_context {
        Some(context) => Some(published_for(context)?),
        // The current context, whose handle is what is published now.
        None => variable(py)?.get(py)?,
    };
    Ok(handle.filter(|handle| !handle.is_none()))
}

fn ended(span: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = span.py();
    let context = span.getattr(intern!(py, "_context"))?;
    let span_id = low_half(&context.cast::<PyTuple>()?.get_item(1)?)?;
    if spanprof_core::is_sampled(span_id) {
        let name = span.getattr(intern!(py, "_name"))?;
        spanprof_core::span_ended(span_id, &name.cast::<PyString>()?.to_string_lossy());
    }
    Ok(())
}

/// Puts a [`RuntimeContext`] in OpenTelemetry's place, unless one is there, and publishes what is current already.
fn install(py: Python<'_>) -> PyResult<()> {
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
    PROCESSORS.fetch_add(1, Ordering::Relaxed);
    SPANS_FOLLOWED.store(true, Ordering::Relaxed);
    let context = ours.get().get_current(py)?;
    ours.get().publish_quietly(&context);
    Ok(())
}

/// Puts the runtime context back that was there before the first processor, if ours is still in its place.
fn uninstall(py: Python<'_>) -> PyResult<()> {
    if PROCESSORS.fetch_sub(1, Ordering::Relaxed) > 1 {
        return Ok(());
    }
    SPANS_FOLLOWED.store(false, Ordering::Relaxed);
    let module = py.import("opentelemetry.context")?;
    if let Ok(ours) = module.getattr("_RUNTIME_CONTEXT")?.cast::<RuntimeContext>() {
        module.setattr("_RUNTIME_CONTEXT", ours.get().previous.bind(py))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::hex;

    #[test]
    fn ids_are_sixteen_hex_digits() {
        assert_eq!(&hex(0x00ab_cdef_0123_4567), b"00abcdef01234567");
    }
}
