//! OpenTelemetry's runtime context while a span processor is at work, which tells the sampler what is current.
//!
//! OpenTelemetry's current span is an entry of the dict that its own ContextVar holds; a handler cannot look into
//! that. So [`RuntimeContext`] takes the place of OpenTelemetry's runtime context and keeps a second variable in step:
//! **its value is a function of OpenTelemetry's**, worked out anew after each attach and detach, and set only where it
//! changes. Tokens are OpenTelemetry's own, so one made before we came or used after we left works.
//!
//! A runtime context of another class runs Python code, so what stands in for it is Python, `_context.py`, which calls
//! [`publish`]. It is that module too that puts either of them in its place.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyLookupError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString};

use crate::calls;
use crate::errors::{guard, is_anyone_inside};
use crate::messages;
use crate::span::context_var::ContextVar;
use crate::span::published::PROCESSOR_EPOCH;
use crate::span::record::{SpanHandle, begin, handle_of, profile_id};

/// What we must know of the OpenTelemetry that is installed.
#[derive(Debug)]
struct OpenTelemetry {
    /// The key of the current span in a context.
    span_key: Py<PyAny>,
    /// The class of spans that record nothing.
    non_recording: Py<PyAny>,
    /// A Python function that calls [`adopt`] for a span that still records.
    adopt: Py<PyAny>,
}

/// Not pyo3's lock, which lets go of the GIL while it is set: a fork meanwhile would leave it so in the child.
static OPEN_TELEMETRY: OnceLock<OpenTelemetry> = OnceLock::new();

/// The variable that holds the current [`SpanHandle`], or None outside spans.
pub(crate) fn variable(py: Python<'_>) -> PyResult<&ContextVar> {
    static VARIABLE: PyOnceLock<ContextVar> = PyOnceLock::new();
    VARIABLE.get_or_try_init(py, || ContextVar::new(py, "pyroscope_span"))
}

/// Processors at work: the runtime context is ours while there are any.
static PROCESSORS: AtomicUsize = AtomicUsize::new(0);
/// The epoch that the next first processor begins.
static NEXT_PROCESSOR_EPOCH: AtomicU32 = AtomicU32::new(1);
/// The interpreter is about to end.
static RETIRED: AtomicBool = AtomicBool::new(false);
/// How long [`retire`] waits.
const RETIRE_TIMEOUT: Duration = Duration::from_millis(100);

/// Whether spans are no longer followed, as the interpreter is about to end.
#[inline]
pub(crate) fn is_retired() -> bool {
    RETIRED.load(Ordering::Relaxed)
}

/// The span that `context` (a dict of OpenTelemetry's) says is current.
#[inline]
fn span_in<'py>(context: &Bound<'py, PyAny>, known: &OpenTelemetry) -> PyResult<Option<Bound<'py, PyAny>>> {
    let key = known.span_key.bind(context.py());
    match context.cast::<PyDict>() {
        Ok(dict) => dict.get_item(key),
        Err(_) => Ok(calls::find_item(context, key)),
    }
}

/// What the sampler is to see while `context` is current: a handle, or None.
#[inline]
pub(crate) fn published_for<'py>(context: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = context.py();
    let none = || py.None().into_bound(py);
    let Some(known) = OPEN_TELEMETRY.get() else {
        return Ok(none());
    };
    let Some(span) = span_in(context, known)? else {
        return Ok(none());
    };
    if span.get_type().as_ptr() == known.non_recording.as_ptr() {
        return Ok(none());
    }
    match handle_of(&span) {
        Ok(handle) => Ok(handle),
        // It began before the processor.
        Err(()) => {
            calls::call(known.adopt.bind(py), &span)?;
            Ok(handle_of(&span).unwrap_or_else(|()| none()))
        }
    }
}

/// Gives a span that began before the processor a handle of its own. Returns the value for its attribute, if it is to
/// have one.
#[pyfunction]
pub(crate) fn adopt<'py>(span: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyString>>> {
    guard(|| {
        // When it began is over: it has no sums of its time.
        let handle = begin(span, None)?;
        Ok(handle.cast::<SpanHandle>().ok().map(|handle| profile_id(handle.get(), span.py())))
    })
}

/// Makes the sampler see what OpenTelemetry's current context says. What goes wrong is our trouble and not the program's.
#[pyfunction]
pub(crate) fn publish(context: &Bound<'_, PyAny>) {
    publish_quietly(context);
}

#[inline]
fn publish_quietly(context: &Bound<'_, PyAny>) {
    if PROCESSOR_EPOCH.load(Ordering::Relaxed) != 0
        && let Err(error) = guard(|| set_published(context))
    {
        messages::report_callback_error(context.py(), "following the current span", &error);
    }
}

thread_local! {
    /// Where the handle is that was last made current on this thread, in whatever context; 0: none. To compare, it may be gone.
    static PUBLISHED: Cell<usize> = const { Cell::new(0) };
}

#[inline]
fn set_published(context: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = context.py();
    let wanted = published_for(context)?;
    let ours = variable(py)?;
    let now = ours.get(py)?;
    let same = match &now {
        Some(now) => now.is(&wanted),
        None => wanted.is_none(),
    };
    if !same {
        // SAFETY: no handler, and the context keeps the span that is still current.
        unsafe { spanprof_core::sample_due() };
        // A context that is entered by `Context.run`, by a step of a task or by a switch of greenlets brings its own span with it.
        let address = |published: &Bound<'_, PyAny>| if published.is_none() { 0 } else { published.as_ptr().addr() };
        let is_ours = PUBLISHED.replace(address(&wanted)) == now.as_ref().map_or(0, address);
        // SAFETY: as above.
        unsafe { spanprof_core::span_switched(is_ours) };
        if let Ok(handle) = wanted.cast::<SpanHandle>() {
            handle.get().note_flow();
        }
        if spanprof_core::wants_span_times() {
            SpanHandle::follow_root(py, now.as_ref().and_then(handle_in), handle_in(&wanted));
        }
        ours.set(&wanted)?;
    }
    Ok(())
}

fn handle_in<'a>(published: &'a Bound<'_, PyAny>) -> Option<&'a SpanHandle> {
    published.cast::<SpanHandle>().ok().map(Bound::get)
}

/// Stands in for OpenTelemetry's runtime context while a span processor is at work.
#[pyclass(frozen, module = "pyroscope._native")]
#[derive(Debug)]
pub(crate) struct RuntimeContext {
    /// The runtime context that was there before.
    previous: Py<PyAny>,
    /// Its ContextVar.
    variable: ContextVar,
}

#[pymethods]
impl RuntimeContext {
    /// One that stands in for `previous`, whose ContextVar is `variable`. It follows spans from the first processor on.
    #[new]
    fn new(previous: &Bound<'_, PyAny>, variable: &Bound<'_, PyAny>) -> PyResult<Self> {
        guard(|| match ContextVar::from_object(variable)? {
            Some(variable) => Ok(Self { previous: previous.clone().unbind(), variable }),
            None => Err(PyTypeError::new_err("variable must be a ContextVar")),
        })
    }

    /// Makes `context` current; returns OpenTelemetry's token.
    ///
    /// Hot: bench `attach`.
    fn attach<'py>(&self, context: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guard(|| {
            let token = self.variable.set(context)?;
            publish_quietly(context);
            Ok(token)
        })
    }

    /// Undoes the `attach` that gave `token`.
    ///
    /// Hot: bench `attach`.
    fn detach(&self, token: &Bound<'_, PyAny>) -> PyResult<()> {
        guard(|| {
            self.variable.reset(token)?;
            publish_quietly(&self.current(token.py())?);
            Ok(())
        })
    }

    /// OpenTelemetry's current context.
    fn get_current<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        guard(|| self.current(py))
    }

    /// The ContextVar that code which knows OpenTelemetry's own class may look for.
    #[getter]
    fn _current_context(&self, py: Python<'_>) -> Py<PyAny> {
        self.variable.as_object().clone_ref(py)
    }

    /// The runtime context that this one stands in for.
    #[getter]
    fn previous(&self, py: Python<'_>) -> Py<PyAny> {
        self.previous.clone_ref(py)
    }
}

impl RuntimeContext {
    #[inline]
    fn current<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.variable.get(py)?.ok_or_else(|| PyLookupError::new_err("no context is current"))
    }
}

/// One processor more follows spans. `span_key` and `non_recording` are OpenTelemetry's, `adopt` calls [`adopt`].
#[pyfunction]
pub(crate) fn follow(span_key: Py<PyAny>, non_recording: Py<PyAny>, adopt: Py<PyAny>) -> PyResult<()> {
    guard(|| {
        // The first one's stay.
        let _ = OPEN_TELEMETRY.set(OpenTelemetry { span_key, non_recording, adopt });
        if PROCESSORS.fetch_add(1, Ordering::Relaxed) == 0 && !is_retired() {
            PROCESSOR_EPOCH.store(NEXT_PROCESSOR_EPOCH.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        }
        Ok(())
    })
}

/// One processor less. Returns whether it was the last.
#[pyfunction]
pub(crate) fn unfollow() -> bool {
    let last = PROCESSORS.fetch_sub(1, Ordering::Relaxed) == 1;
    if last {
        PROCESSOR_EPOCH.store(0, Ordering::Relaxed);
    }
    last
}

/// The interpreter is about to end: from now on spans are not followed. Waits a moment, without the GIL, for threads that
/// are in functions of ours.
#[pyfunction]
pub(crate) fn retire(py: Python<'_>) {
    const PAUSE: Duration = Duration::from_millis(1);
    RETIRED.store(true, Ordering::Relaxed);
    PROCESSOR_EPOCH.store(0, Ordering::Relaxed);
    let began = Instant::now();
    while is_anyone_inside() && began.elapsed() < RETIRE_TIMEOUT {
        py.detach(|| std::thread::sleep(PAUSE));
    }
}
