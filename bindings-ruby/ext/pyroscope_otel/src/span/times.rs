//! What the time of a span went to, as attributes of it say at its end, where that is asked for.
//!
//! The sums lie in an object of ours, which the span holds, and each slot in which the span counts
//! ([`for_each_object`](crate::span::record::for_each_object)): threads add to them without the GVL.
//!
//! They are the time of the fiber in which the span was first current. What other fibers do in it meanwhile is beside that one's
//! suspension, and other threads' time is left out as in samples (`Ids::is_concurrent`).

use std::cell::Cell;
use std::ffi::c_void;
use std::process;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use magnus::rb_sys::{AsRawValue, FromRawValue, protect};
use magnus::value::ReprValue;
use magnus::{Error, RHash, Ruby, Value};
use rb_sys::{ID, VALUE};
use spanprof_core::{SpanCpu, SpanTimes, State, current_flow};

use crate::data_type::{DataType, owning_type};
use crate::errors::guard;
use crate::span::record::Slot;
use crate::span::saved;
use crate::value::{FALSE, Gvl, NIL, TRUE, data_of, id, rb_fiber};

/// The sums of one span.
struct Times {
    waits: SpanTimes,
    /// Of a local root that began outside of fibers, while it or a span of its trace is current.
    cpu: Option<SpanCpu>,
    /// Where the data lie of the fiber in which it began.
    began_in: usize,
    /// The fiber and the thread in which it was first current; 0: it never was.
    fiber: Cell<usize>,
    flow: Cell<u64>,
    /// Where it began: a forked child has a copy, whose time is its parent's.
    process: u32,
}

static TYPE: DataType = owning_type(c"pyroscope/times", free);

/// Under which a span holds its sums. It begins with no @: Ruby shows it to nobody.
fn name() -> ID {
    static NAME: OnceLock<ID> = OnceLock::new();
    *NAME.get_or_init(|| id("__pyroscope_times"))
}

/// One span processor more wants them, or one fewer.
pub(crate) fn want(wanted: bool) {
    if wanted { spanprof_core::want_span_times() } else { spanprof_core::unwant_span_times() }
}

/// No slot points there: the collector found no object that does, or it is Ruby's end, before which slots stopped to count
/// (`profiler::finish`).
unsafe extern "C" fn free(times: *mut c_void) {
    // SAFETY: what `begin` made, which nobody else has any more.
    drop(unsafe { Box::from_raw(times.cast::<Times>()) });
}

/// A span begins that is to have sums.
pub(crate) fn begin(gvl: Gvl, span: VALUE, is_local_root: bool) -> Result<(), Error> {
    let fiber = rb_fiber();
    let is_outside = is_local_root && !saved::is_on() && is_blocking(fiber)?;
    let times = Box::into_raw(Box::new(Times {
        waits: SpanTimes::new(),
        cpu: is_outside.then(SpanCpu::default),
        began_in: data_of(fiber),
        fiber: Cell::new(0),
        flow: Cell::new(0),
        process: process::id(),
    }));
    // SAFETY: set when Ruby began.
    let class = unsafe { rb_sys::rb_cObject };
    // SAFETY: a class, data that are no object's yet, and a type that stays.
    match protect(|| unsafe { rb_sys::rb_data_typed_object_wrap(class, times.cast(), &raw const TYPE.0) }) {
        Ok(object) => {
            gvl.set_ivar(span, name(), object);
            Ok(())
        }
        Err(error) => {
            // SAFETY: no object has it.
            drop(unsafe { Box::from_raw(times) });
            Err(error)
        }
    }
}

/// Whether a fiber blocks its thread, as that one's first does: no other fiber runs there meanwhile that has spans of its own.
fn is_blocking(fiber: VALUE) -> Result<bool, Error> {
    // SAFETY: an object.
    let fiber = unsafe { Value::from_raw(fiber) };
    Ok(fiber.funcall::<_, _, Value>("blocking?", ())?.as_raw() == TRUE)
}

/// The sums of a span, if it has some.
fn of(gvl: Gvl, span: VALUE) -> Option<(VALUE, &'static Times)> {
    let object = gvl.ivar(span, name());
    if object == NIL {
        return None;
    }
    // SAFETY: the variable, of which nobody else knows, has what `begin` made.
    let times = unsafe { times_in(object) };
    // SAFETY: there as long as the object is, which callers have in hand, or a slot has.
    unsafe { times.as_ref() }.map(|times| (object, times))
}

/// # Safety
/// The object is one that [`begin`] made.
unsafe fn times_in(object: VALUE) -> *const Times {
    // SAFETY: the caller's promise.
    unsafe { rb_sys::macros::RTYPEDDATA_GET_DATA(object) }.cast::<Times>()
}

/// A span becomes current to the fiber that runs. Where its waits are added, null if nowhere, and the object that has that place.
pub(crate) fn enter(gvl: Gvl, slot: &Slot, span: VALUE, trace_id: [u64; 2]) -> (*const SpanTimes, VALUE) {
    if !spanprof_core::wants_span_times() {
        return (ptr::null(), FALSE);
    }
    let found = of(gvl, span);
    let is_root =
        found.is_some_and(|(object, times)| times.cpu.is_some() && slot.root_times.load(Ordering::Relaxed) != object);
    if is_root || slot.trace_id() != Some(trace_id) {
        leave_root(slot);
    }
    let Some((object, times)) = found else { return (ptr::null(), FALSE) };
    let (fiber, flow) = (data_of(rb_fiber()), current_flow());
    if times.fiber.get() == 0 {
        times.fiber.set(fiber);
        times.flow.set(flow);
    }
    if let Some(cpu) = times.cpu.as_ref().filter(|_| slot.root_times.load(Ordering::Relaxed) != object) {
        cpu.enter(times.flow.get());
        slot.root_times.store(object, Ordering::Relaxed);
    }
    // In a forked child a thread's flow is another one.
    if (times.fiber.get(), times.flow.get()) == (fiber, flow) {
        (&raw const times.waits, object)
    } else {
        (ptr::null(), FALSE)
    }
}

/// What is current is in none of the spans any more of which the thread's local root is one.
#[inline]
pub(crate) fn leave_root(slot: &Slot) {
    let object = slot.root_times.load(Ordering::Relaxed);
    if object == FALSE {
        return;
    }
    // SAFETY: the slot holds what `begin` made.
    let times = unsafe { times_in(object) };
    // SAFETY: the collector marks what a slot holds.
    let times = unsafe { times.as_ref() };
    if let Some((times, cpu)) = times.and_then(|times| times.cpu.as_ref().map(|cpu| (times, cpu))) {
        cpu.leave(times.flow.get());
    }
    slot.root_times.store(FALSE, Ordering::Relaxed);
}

/// What the time of a span went to, by the names of attributes, when it has ended after so many nanoseconds; nil for one that has no sums
/// here.
pub(crate) fn span_times(ruby: &Ruby, span: Value, wall_ns: i64) -> Result<Option<RHash>, Error> {
    guard(ruby, || {
        // SAFETY: called by Ruby.
        let gvl = unsafe { Gvl::held() };
        let Some((object, times)) = of(gvl, span.as_raw()) else { return Ok(None) };
        if times.process != process::id() {
            return Ok(None);
        }
        // Where it was current in another fiber or thread first, that one's waits are its time; while its own fiber is suspended, the
        // thread runs others.
        let is_there =
            [times.fiber.get(), data_of(rb_fiber())] == [times.began_in; 2] && times.waits.get(State::Await) == 0;
        if is_there
            && times.waits.get(State::Cpu) == 0
            && let Some(cpu_ns) = times.cpu.as_ref().and_then(|cpu| cpu.total_ns(times.flow.get()))
        {
            times.waits.add_cpu(cpu_ns, u64::try_from(wall_ns).unwrap_or(0));
        }
        let found: Vec<_> = times.waits.attributes().map(|(_, name, ns)| (name, ns)).collect();
        let told = ruby.hash_new();
        for (name, ns) in found {
            told.aset(name, ns)?;
        }
        // Until here the collector sees it.
        std::hint::black_box(object);
        Ok(Some(told))
    })
}
