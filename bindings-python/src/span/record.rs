//! A span as the sampler sees it: a [`SpanHandle`], made when the span starts and kept by the span itself (attribute
//! `_pyroscope`). With the scope `root` a span inside a local root keeps the root's handle: that is what its samples
//! carry, and starting it costs nothing more.

use std::process;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyString, PyTuple};
use spanprof_core::{SpanCpu, SpanRecord, SpanTimes, State, current_flow};

use crate::calls::{find_attr, get_attr, set_attr, uncollected};
use crate::span::published::{PROCESSOR_EPOCH, PublishedSpan};
use crate::strings::names;

/// Whether a coroutine is told from the thread that runs it, as it is while awaits are measured.
pub(crate) static KNOWS_COROUTINES: AtomicBool = AtomicBool::new(false);
/// No flow has this number.
const NO_FLOW: u64 = SpanRecord::ELSEWHERE;

static HOOKS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// What tells an event loop ([`runs_a_loop`]); found when the module is imported.
pub(crate) fn loop_hooks(py: Python<'_>) -> PyResult<&Py<PyAny>> {
    HOOKS.get_or_try_init(py, || Ok(py.import("sys")?.getattr("get_asyncgen_hooks")?.unbind()))
}

/// Whether an event loop runs on the calling thread: asyncio's, uvloop's and trio's look after asynchronous generators meanwhile. 0.2 µs.
fn runs_a_loop(py: Python<'_>) -> bool {
    let first = |hooks: &Py<PyAny>| uncollected(py, || hooks.bind(py).call0()?.get_item(0));
    loop_hooks(py).and_then(first).is_ok_and(|first| !first.is_none())
}

/// A span as the sampler reads it, and the string that its name is in.
#[pyclass(frozen, module = "pyroscope._native")]
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SpanHandle {
    pub(crate) span: PublishedSpan,
    /// Where waits are added, if the span is to say them; the record points there.
    times: Option<Box<Times>>,
    _name: Name,
}

/// What is asked of a span that gets attributes for its time.
#[derive(Debug)]
pub(crate) struct Times {
    waits: SpanTimes,
    of: Local,
    /// Where it began: a forked child has a copy, whose time is its parent's.
    process: u32,
}

/// Which local root a span is in.
#[derive(Debug)]
pub(crate) enum Local {
    /// It is one, and says its CPU time.
    Root(SpanCpu),
    /// The root says its times too, or nobody knows it.
    Child(Option<Py<SpanHandle>>),
}

/// Keeps a record's name alive.
#[derive(Debug)]
#[expect(dead_code, reason = "held, not read")]
enum Name {
    Python(Py<PyString>),
    /// A name that UTF-8 cannot hold as it is.
    Mended(Box<str>),
}

impl SpanHandle {
    /// The handle of `span`, a span of the SDK. `local`: it is to say what its time went to.
    fn of(span: &Bound<'_, PyAny>, context: &Bound<'_, PyTuple>, local: Option<Local>) -> PyResult<Self> {
        let py = span.py();
        let trace_id = context.get_item(0)?;
        let trace_id = [high_half(&trace_id)?, low_half(&trace_id)?];
        let span_id = low_half(&context.get_item(1)?)?;
        let name = get_attr(span, &names(py).name)?;
        let name = name.cast::<PyString>()?;
        let (record, name) = match name.to_str() {
            // SAFETY: a str keeps its UTF-8 form, unchanged, for as long as it lives, and the handle keeps the str.
            Ok(text) => (unsafe { SpanRecord::new(trace_id, span_id, text) }, Name::Python(name.clone().unbind())),
            Err(_) => {
                let text = name.to_string_lossy().into_owned().into_boxed_str();
                // SAFETY: the box does not move its content, and the handle keeps it.
                (unsafe { SpanRecord::new(trace_id, span_id, &text) }, Name::Mended(text))
            }
        };
        let times = local.map(|of| Box::new(Times { waits: SpanTimes::new(), of, process: process::id() }));
        let waits = times.as_ref().map_or(ptr::null(), |times| &raw const times.waits);
        // SAFETY: as with the name: the handle keeps the box.
        let record = unsafe { record.with_times(waits) };
        let span = PublishedSpan { record, processor_epoch: PROCESSOR_EPOCH.load(Ordering::Relaxed) };
        Ok(Self { span, times, _name: name })
    }

    /// What its time went to, by the names of attributes, when it has ended after `wall_ns`; `None` if nobody asked, and in a forked child.
    /// `has_own_thread`: what the thread ran is what it ran for this span.
    pub(crate) fn times(&self, wall_ns: u64, has_own_thread: bool) -> Option<Vec<(&'static str, u64)>> {
        let times = self.times.as_ref().filter(|times| times.process == process::id())?;
        if let Local::Root(cpu) = &times.of
            && has_own_thread
            && times.waits.get(State::Cpu) == 0
            && let Some(cpu_ns) = cpu.total_ns(self.span.record.flow())
        {
            times.waits.add_cpu(cpu_ns, wall_ns);
        }
        Some(times.waits.attributes().map(|(_, name, ns)| (name, ns)).collect())
    }

    /// The local root that the span is in, if that one says its CPU time.
    fn local_root(&self) -> Option<&Self> {
        match &self.times.as_ref()?.of {
            Local::Root(_) => Some(self),
            Local::Child(root) => root.as_ref().map(Py::get),
        }
    }

    /// The same, of a span that begins in this one.
    pub(crate) fn root_of_child(handle: &Bound<'_, Self>) -> Option<Py<Self>> {
        match &handle.get().times.as_ref()?.of {
            Local::Root(_) => Some(handle.clone().unbind()),
            Local::Child(root) => root.as_ref().map(|root| root.clone_ref(handle.py())),
        }
    }

    /// What is current in the calling flow changes. With the GIL held.
    pub(crate) fn follow_root(py: Python<'_>, from: Option<&Self>, to: Option<&Self>) {
        let [from, to] = [from, to].map(|span| span.and_then(Self::local_root));
        if from.map(ptr::from_ref) == to.map(ptr::from_ref) {
            return;
        }
        let is_known = KNOWS_COROUTINES.load(Ordering::Relaxed) || !runs_a_loop(py);
        if let Some((span, cpu)) = from.and_then(Self::cpu) {
            if is_known { cpu.leave(span.flow()) } else { cpu.forget(span.flow()) }
        }
        if let Some((span, cpu)) = to.and_then(Self::cpu) {
            cpu.enter(if is_known { span.flow() } else { NO_FLOW });
            if !is_known {
                cpu.forget(span.flow());
            }
        }
    }

    fn cpu(&self) -> Option<(&SpanRecord, &SpanCpu)> {
        match &self.times.as_ref()?.of {
            Local::Root(cpu) => Some((&self.span.record, cpu)),
            Local::Child(_) => None,
        }
    }

    /// Whether it has the times of the span with this context, and not of one around it.
    fn has_times_of(&self, context: &Bound<'_, PyTuple>) -> bool {
        let span_id = context.get_item(1).and_then(|id| low_half(&id));
        self.times.is_some() && span_id.is_ok_and(|id| id == self.span.record.span_id())
    }

    /// It becomes current: the flow in which it does for the first time is its own. With the GIL held.
    #[inline]
    pub(crate) fn note_flow(&self) {
        self.span.record.enter(current_flow);
    }

    /// A handle with this id, for the self-test.
    pub(crate) fn probe(span_id: u64) -> Self {
        // SAFETY: the name is static.
        let record = unsafe { SpanRecord::new([0, span_id], span_id, "probe") };
        let span = PublishedSpan { record, processor_epoch: PROCESSOR_EPOCH.load(Ordering::Relaxed) };
        Self { span, times: None, _name: Name::Mended(Box::from("")) }
    }
}

/// The handle of a span that has one of this epoch. `Err`: it has none, or an earlier one's.
#[inline]
pub(crate) fn handle_of<'py>(span: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>, ()> {
    let handle = find_attr(span, &names(span.py()).handle).ok_or(())?;
    if is_of_this_epoch(&handle) { Ok(handle) } else { Err(()) }
}

/// Whether a value may be published: None, or a handle of this epoch.
#[inline]
pub(crate) fn is_of_this_epoch(value: &Bound<'_, PyAny>) -> bool {
    match value.cast::<SpanHandle>() {
        Ok(handle) => handle.get().span.processor_epoch == PROCESSOR_EPOCH.load(Ordering::Relaxed),
        Err(_) => true,
    }
}

/// Makes the handle of a span that is to be seen under its own id; None for a span that nobody exports.
pub(crate) fn begin<'py>(span: &Bound<'py, PyAny>, local: Option<Local>) -> PyResult<Bound<'py, PyAny>> {
    let py = span.py();
    let context = get_attr(span, &names(py).context)?;
    let context = context.cast::<PyTuple>()?;
    // SpanContext is (trace_id, span_id, is_remote, trace_flags, …).
    let flags: u32 = context.get_item(3)?.extract()?;
    if flags & 1 == 0 {
        let none = py.None().into_bound(py);
        set_attr(span, &names(py).handle, &none)?;
        return Ok(none);
    }
    if spanprof_core::wants_span_times()
        && let Ok(known) = handle_of(span)
        && known.cast::<SpanHandle>().is_ok_and(|known| known.get().has_times_of(context))
    {
        // Another processor, before this one, was asked for them.
        return Ok(known);
    }
    let handle = SpanHandle::of(span, context, local)?;
    let handle = uncollected(py, || Bound::new(py, handle))?.into_any();
    set_attr(span, &names(py).handle, &handle)?;
    Ok(handle)
}

/// The lower 64 bits of the id of `span`.
#[inline]
pub(crate) fn id_of(span: &Bound<'_, PyAny>) -> PyResult<u64> {
    let context = get_attr(span, &names(span.py()).context)?;
    low_half(&context.cast::<PyTuple>()?.get_item(1)?)
}

/// The bits of an int above the lower 64, as many.
#[inline]
fn high_half(number: &Bound<'_, PyAny>) -> PyResult<u64> {
    let number = number.cast::<PyInt>()?;
    // SAFETY: two ints.
    let shifted = unsafe { ffi::PyNumber_Rshift(number.as_ptr(), names(number.py()).sixty_four.as_ptr()) };
    // SAFETY: a new reference, or null with an exception set.
    low_half(&unsafe { Bound::from_owned_ptr_or_err(number.py(), shifted) }?)
}

/// The lower 64 bits of an int.
#[inline]
fn low_half(number: &Bound<'_, PyAny>) -> PyResult<u64> {
    let number = number.cast::<PyInt>()?;
    // SAFETY: an int.
    let value = unsafe { ffi::PyLong_AsUnsignedLongLongMask(number.as_ptr()) };
    if value == u64::MAX
        && let Some(error) = PyErr::take(number.py())
    {
        return Err(error);
    }
    Ok(value)
}

/// The value of the attribute `pyroscope.profile.id`.
pub(crate) fn profile_id<'py>(handle: &SpanHandle, py: Python<'py>) -> Bound<'py, PyString> {
    let id = hex(handle.span.record.span_id());
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

#[cfg(test)]
mod tests {
    use super::hex;

    #[test]
    fn ids_are_sixteen_hex_digits() {
        assert_eq!(&hex(0x00ab_cdef_0123_4567), b"00abcdef01234567");
    }
}
