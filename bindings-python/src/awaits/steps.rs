//! What is done before and after each step of a coroutine.
//!
//! **The rule of the frame below Python code.** The hooks, which call these two functions, lie on the C stack below code of the program.
//! Until 3.13 the interpreter ends daemon threads by unwinding that stack, so nothing that has a destructor may live in a hook while the
//! step runs: what is kept over it is plain ([`Step`]).
//!
//! A call where no other one is under way on the thread is a step of a flow. So is one within another step that runs in a context of its
//! own: a task whose first step runs at once (3.12's eager tasks), or a loop within the loop. In the same context it is driven, by a
//! program's own trampoline, or by the interpreter where somebody else evaluates frames (PEP 523); then the suspension of the step around
//! it counts, and it is of that one's flow. Up to 3.11 each `await` comes by here, and is told apart from none of these.
//!
//! A greenlet may be left within a step, so whether one is under way is believed only where a generator or a coroutine runs.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use pyo3::ffi;
use spanprof_core::{current_flow, monotonic_ns, wants_span_times};

use crate::awaits::chain::frame_alone;
use crate::awaits::clock::{Clock, ticks};
use crate::awaits::known::Known;
use crate::awaits::rate::{CONCURRENT_A_SECOND, OWN_A_SECOND, Rate};
use crate::awaits::sample::{LONG_NS, add_up, consider, flow_of_span};
use crate::awaits::shared::{Shared, shared};
use crate::awaits::slots::Met;
use crate::awaits::thread::{Seen, Thread};
use crate::span::record::KNOWS_COROUTINES;
use crate::stack::interpreter::CPython;
use crate::stack::layout::TSTATE_INTERP;
use crate::stack::memory::{Memory, Object, Plain};

/// Which time of measuring this is; 0: awaits are not measured.
static GENERATION: AtomicU32 = AtomicU32::new(0);
static MAIN: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// Begins to measure. The GIL is held.
pub(super) fn begin(known: &'static Known, runtime: &'static CPython) {
    // SAFETY: the GIL is held, by a thread of the main interpreter, as this module is imported by no other.
    let shared = unsafe { shared() };
    shared.slots.set_padding(known.layout.padding);
    shared.clock = Clock::start();
    shared.rates =
        [OWN_A_SECOND, CONCURRENT_A_SECOND].map(|a_second| Rate::new(monotonic_ns(), a_second, &shared.clock));
    shared.of = Some((known, runtime));
    shared.is_continued = known.layout.is_continued;
    shared.exceptions = known.layout.exceptions;
    shared.tstate_context = runtime.layout.tstate_context;
    shared.last_generation = shared.last_generation.wrapping_add(1).max(1);
    MAIN.store(runtime.main.cast_mut(), Ordering::Relaxed);
    GENERATION.store(shared.last_generation, Ordering::Relaxed);
    KNOWS_COROUTINES.store(true, Ordering::Relaxed);
}

/// Ends it. Steps that are under way come back and do nothing more than to leave the thread as they found it. The GIL is held.
pub(super) fn end() {
    GENERATION.store(0, Ordering::Relaxed);
    KNOWS_COROUTINES.store(false, Ordering::Relaxed);
    // SAFETY: as above.
    unsafe { shared() }.slots.retire();
}

/// Whether a coroutine is noted as suspended, or was before. The GIL is held.
pub(super) fn is_known(coroutine: Object) -> bool {
    // SAFETY: as above.
    unsafe { shared() }.slots.has(coroutine)
}

/// Lets all suspensions that end on this thread meanwhile be told instead of sampled. The GIL is held.
pub(super) fn watch<T>(during: impl FnOnce() -> T) -> (T, Vec<Seen>) {
    let mut seen = Vec::new();
    let thread = Thread::own();
    // SAFETY: this thread's own.
    let outer = unsafe { &mut *thread };
    let was_in_step = std::mem::replace(&mut outer.in_step, false);
    let remaining = std::mem::replace(&mut outer.remaining[0].means, 0.0);
    outer.seen = &raw mut seen;
    let result = during();
    // SAFETY: as above.
    let outer = unsafe { &mut *thread };
    outer.seen = ptr::null_mut();
    outer.remaining[0].means = remaining;
    outer.in_step = was_in_step;
    (result, seen)
}

/// What is kept over a step.
#[derive(Clone, Copy)]
pub(super) struct Step {
    thread: *mut Thread,
    kind: Kind,
    /// No other one is under way.
    is_outermost: bool,
    was_in_step: bool,
    generation: u32,
    /// Where the coroutine was met, 0 if it was not.
    slot: u32,
    /// Its flow, and the one that the thread was in.
    flow: u64,
    outer_flow: u64,
    outer_context: Object,
    entered_at: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Of no concern.
    Other,
    /// Of a flow.
    Flow,
    /// Driven by another coroutine.
    Driven,
}

const OTHER: Step = Step {
    thread: ptr::null_mut(),
    kind: Kind::Other,
    is_outermost: false,
    was_in_step: false,
    generation: 0,
    slot: 0,
    flow: 0,
    outer_flow: 0,
    outer_context: ptr::null(),
    entered_at: 0,
};

/// Whether awaits are measured.
#[inline(always)]
pub(super) fn is_measuring() -> bool {
    GENERATION.load(Ordering::Relaxed) != 0
}

#[inline(always)]
pub(super) fn own_tstate() -> Object {
    // SAFETY: who holds the GIL has a thread state.
    unsafe { ffi::PyThreadState_Get() }.cast_const().cast()
}

/// Whether the thread runs another interpreter, under whose own GIL nothing of ours may be touched.
#[inline(always)]
pub(super) fn is_foreign(tstate: Object) -> bool {
    // SAFETY: it is alive.
    let interpreter = unsafe { Plain::pointer(tstate, TSTATE_INTERP) };
    interpreter != Some(MAIN.load(Ordering::Relaxed).cast_const())
}

/// Whether a generator or a coroutine runs on this thread, in this greenlet. Each of them has a place for the exception that it handles,
/// and the thread has one for all else.
#[inline(always)]
fn is_anything_running(tstate: Object, [exc_info, exc_state]: [usize; 2]) -> bool {
    // SAFETY: the calling thread's own.
    let innermost = unsafe { Plain::pointer(tstate, exc_info) };
    innermost != Some(tstate.wrapping_add(exc_state))
}

/// A coroutine is about to go on, or to begin.
///
/// # Safety
/// Called in a function of the type of coroutines, with one.
#[inline(always)]
pub(super) unsafe fn enter(coroutine: Object) -> Step {
    let generation = GENERATION.load(Ordering::Relaxed);
    if generation == 0 {
        return OTHER;
    }
    let tstate = own_tstate();
    if is_foreign(tstate) {
        return OTHER;
    }
    let own = Thread::own();
    // SAFETY: this thread's own.
    let thread = unsafe { &mut *own };
    // SAFETY: the GIL is held, and it is the main interpreter's.
    let shared = unsafe { shared() };
    let was_in_step = thread.in_step;
    let is_outermost = !(was_in_step && is_anything_running(tstate, shared.exceptions));
    if !is_outermost && !shared.is_continued {
        return OTHER;
    }
    // SAFETY: the calling thread's own.
    let context = unsafe { Plain::pointer(tstate, shared.tstate_context) }.unwrap_or(ptr::null());
    let outer_context = thread.context;
    let kind = if is_outermost || context != outer_context { Kind::Flow } else { Kind::Driven };
    let outer_flow = thread.flow();
    let now = ticks();
    thread.in_step = true;
    if is_outermost {
        thread.check_poll(&shared.clock, &mut shared.rates);
    }
    // SAFETY: the caller's promise, and as above.
    let met = unsafe { shared.slots.resume(coroutine) };
    let (slot, flow) = match met {
        _ if kind == Kind::Driven => (0, outer_flow),
        Some(met) if met.since != 0 => {
            thread.set_flow(met.flow);
            if wants_span_times() {
                // SAFETY: it is suspended, and the GIL is held.
                unsafe { add_up(thread, shared, coroutine, tstate, (met, now)) };
            }
            let took = now.saturating_sub(met.since);
            let class = usize::from(met.is_concurrent);
            if thread.remaining[class].is_used_up(took, shared.rates[class].per_tick) {
                // SAFETY: it is suspended, and the GIL is held.
                unsafe { consider(thread, shared, coroutine, (met, now)) };
            }
            (met.slot, met.flow)
        }
        _ => {
            // SAFETY: the caller's promise, and as above.
            let (slot, flow) = unsafe { number(thread, shared, coroutine, met, tstate) };
            thread.set_flow(flow);
            (slot, flow)
        }
    };
    if kind == Kind::Flow {
        thread.context = context;
    }
    Step {
        thread: own,
        kind,
        is_outermost,
        was_in_step,
        generation,
        slot,
        flow,
        outer_flow,
        outer_context,
        entered_at: now,
    }
}

/// Slot and number of a flow that was not seen to be suspended. One that was met before the last stop keeps its own. Of those that had
/// begun before anybody looked the thread's first one has the number of the span that is current in it, if that is the thread's: nobody
/// looked then either. Which of several that are in one span is its own cannot be known; of all, its time would count as often.
///
/// # Safety
/// As for [`enter`], and the GIL of the main interpreter is held.
#[cold]
#[inline(never)]
unsafe fn number(
    thread: &mut Thread,
    shared: &mut Shared,
    coroutine: Object,
    met: Option<Met>,
    tstate: Object,
) -> (u32, u64) {
    if let Some((known, runtime)) = shared.of {
        // SAFETY: the caller's promise.
        let has_begun = unsafe { known.layout.has_begun::<Plain>(coroutine) };
        if let Some(met) = met.filter(|_| has_begun) {
            shared.slots.renew(met.slot);
            return (met.slot, met.flow);
        }
        let may_take = has_begun && thread.taken_in != shared.last_generation;
        // SAFETY: the calling thread's own.
        let of_span = if may_take { unsafe { flow_of_span(tstate, runtime) } } else { None };
        if let Some(own) = of_span.filter(|of_span| *of_span == current_flow()) {
            thread.taken_in = shared.last_generation;
            // One that took it before the last stop has it still.
            if !shared.slots.has_flow(own) {
                return (0, own);
            }
        }
    }
    shared.last_flow += 1;
    (0, shared.last_flow)
}

/// It is suspended again, or over.
///
/// # Safety
/// As for [`enter`], on the same thread.
#[inline(always)]
pub(super) unsafe fn leave(coroutine: Object, step: Step, is_suspended: bool) {
    if step.kind == Kind::Other {
        return;
    }
    // SAFETY: this thread's own.
    let thread = unsafe { &mut *step.thread };
    thread.in_step = step.was_in_step;
    if step.kind == Kind::Flow {
        thread.set_flow(step.outer_flow);
        thread.context = step.outer_context;
    }
    // SAFETY: the GIL is held, and it is the main interpreter's.
    let shared = unsafe { shared() };
    let generation = GENERATION.load(Ordering::Relaxed);
    let now = ticks();
    if !is_suspended {
        // SAFETY: the caller's promise, and as above.
        unsafe { shared.slots.forget(coroutine) };
    } else if step.kind == Kind::Flow {
        // Where nobody looks any more its number is kept.
        let since = if generation == 0 { 0 } else { now };
        if !shared.slots.suspend(step.slot, coroutine, since) {
            // SAFETY: as above.
            unsafe { insert(shared, coroutine, since, step.flow) };
        }
    }
    if step.is_outermost && step.generation == generation {
        thread.left_at = now;
        let ran = now.saturating_sub(step.entered_at);
        if ran > thread.longest_ticks {
            // SAFETY: as above.
            unsafe { note_longest(thread, shared, coroutine, ran) };
        }
    }
}

/// Notes a coroutine that is suspended for the first time. The children of a span are in it from their beginning, so they are concurrent
/// already: in herds they have only this suspension.
///
/// # Safety
/// As for [`enter`], and the GIL of the main interpreter is held.
#[inline(never)]
unsafe fn insert(shared: &mut Shared, coroutine: Object, since: u64, flow: u64) {
    let runtime = shared.of.map(|(_, runtime)| runtime).filter(|runtime| !runtime.is_finalizing());
    // SAFETY: the calling thread's own.
    let of_span = runtime.and_then(|runtime| unsafe { flow_of_span(own_tstate(), runtime) });
    let is_concurrent = of_span.is_some_and(|of_span| of_span != flow);
    // SAFETY: the caller's promise.
    unsafe { shared.slots.insert(coroutine, since, flow, is_concurrent) };
}

/// # Safety
/// As for [`enter`], and the GIL of the main interpreter is held.
#[cold]
unsafe fn note_longest(thread: &mut Thread, shared: &Shared, coroutine: Object, ran: u64) {
    let Some((known, runtime)) = shared.of else { return };
    if shared.clock.ns(ran) < LONG_NS {
        // It is the first of this stretch.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive number")]
        let long = shared.clock.in_ticks(LONG_NS as f64) as u64;
        thread.longest_ticks = long.max(ran);
        return;
    }
    // SAFETY: the caller's promise.
    thread.longest = Some(unsafe { frame_alone(coroutine, known, runtime) });
    thread.longest_ticks = ran;
}

/// A coroutine is about to be destroyed, maybe while it was suspended: in which span nobody knows.
///
/// # Safety
/// As for [`enter`].
#[inline(always)]
pub(super) unsafe fn destroy(coroutine: Object) {
    if is_measuring() && !is_foreign(own_tstate()) {
        // SAFETY: the GIL is held, and it is the main interpreter's.
        let shared = unsafe { shared() };
        // SAFETY: the caller's promise, and as above.
        unsafe { shared.slots.forget(coroutine) };
    }
}
