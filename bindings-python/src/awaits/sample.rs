//! What becomes of a suspension that is to be a sample: its span, its chain, and since when the loop could have gone on with it.

use std::ptr;

use pyo3::ffi;
use spanprof_core::{Context, FrameId, FrameWriter, SpanRecord, State, add_time, sample_flow};

use crate::awaits::chain::{Chain, due_of};
use crate::awaits::shared::Shared;
use crate::awaits::slots::Met;
use crate::awaits::thread::{Seen, Thread};
use crate::stack::frame_id::{AWAIT, LOOP_BUSY, NO_PYTHON_FRAME};
use crate::stack::interpreter::CPython;
use crate::stack::memory::{Object, Plain};

/// A step that is long enough to be named as what kept the loop busy.
pub(super) const LONG_NS: u64 = 1_000_000;
/// The least time that a coroutine is told to be ready for.
const SHORTEST_BUSY_NS: u64 = 50_000;
/// A timer is due no earlier before the suspension that waits for it; a loop may have a clock of its own.
const TIMER_BEFORE_NS: u64 = 100_000_000;

/// The number of the flow that the span of this context began in.
#[inline]
fn flow_of(context: &Context) -> Option<u64> {
    // SAFETY: null, or in a handle of ours, which the context keeps alive.
    unsafe { context.span.as_ref() }.map(SpanRecord::flow)
}

/// The number of the flow that the span began in which is current.
///
/// # Safety
/// The calling thread's own, and the GIL of the main interpreter is held.
pub(super) unsafe fn flow_of_span(tstate: Object, runtime: &CPython) -> Option<u64> {
    // SAFETY: the caller's promise.
    flow_of(&unsafe { runtime.context_of::<Plain>(tstate) })
}

/// A suspension is over that may be a sample.
///
/// # Safety
/// A coroutine that is suspended, and the GIL of the main interpreter is held.
#[cold]
#[inline(never)]
pub(super) unsafe fn consider(thread: &mut Thread, shared: &mut Shared, coroutine: Object, (met, now): (Met, u64)) {
    let Some((known, runtime)) = shared.of else { return };
    let took = now.saturating_sub(met.since);
    let class = usize::from(met.is_concurrent);
    // SAFETY: null or the self-test's, which waits for this.
    if let Some(seen) = unsafe { thread.seen.as_mut() } {
        thread.remaining[class].means = 0.0;
        // SAFETY: the caller's promise.
        let chain = unsafe { Chain::of(coroutine, known, runtime) };
        let mut ids = [0; spanprof_core::MAX_FRAMES];
        let mut out = FrameWriter::new(&mut ids);
        out.push(chain.leaf);
        chain.push_to(&mut out);
        let frames = out.frames();
        seen.push(Seen { took_ns: shared.clock.ns(took), frames: ids[..frames].to_vec() });
        return;
    }
    let rate = &mut shared.rates[class];
    let Some(weight) = thread.remaining[class].weight_of(took, rate.per_tick, now) else { return };
    // One that was brought back by its own finalizer dies without another one, and what is noted of it meets a new one at its place.
    // SAFETY: the caller's promise.
    if runtime.is_finalizing() || !unsafe { known.layout.has_begun::<Plain>(coroutine) } {
        return;
    }
    // SAFETY: whoever calls a coroutine has a thread state.
    let tstate: Object = unsafe { ffi::PyThreadState_Get() }.cast_const().cast();
    // SAFETY: the calling thread's own.
    let context = unsafe { runtime.context_of::<Plain>(tstate) };
    let of_span = flow_of(&context);
    let is_concurrent = of_span.is_some_and(|of_span| of_span != met.flow);
    shared.slots.note_class(met.slot, is_concurrent);
    if of_span.is_none() {
        // SAFETY: as below; there is no span.
        unsafe { sample_flow(State::Await, shared.clock.ns(weight), 1, context, |_| {}) };
        return;
    }
    shared.clock.compare(now);
    let (took, weight, now) = (shared.clock.ns(took), shared.clock.ns(weight), shared.clock.at(now));
    rate.count(now, &shared.clock);
    // SAFETY: the caller's promise.
    let chain = unsafe { Chain::of(coroutine, known, runtime) };
    let ready_at = ready_at(thread, chain.due, now - took, now);
    let over = Over { took, weight, now, ready_at };
    // SAFETY: the caller's promise, and as above.
    unsafe { take(thread, runtime, (tstate, context), over, chain.leaf, |out| chain.push_to(out)) };
}

/// A suspension is over that may be a sample, of the greenlet that goes on now. Whether its span began in another one, if that was looked at.
///
/// # Safety
/// `tstate` is the calling thread's own, whose flow's number is this greenlet's already, and the GIL of the main interpreter is held.
#[cold]
#[inline(never)]
pub(super) unsafe fn consider_greenlet(
    thread: &mut Thread,
    shared: &mut Shared,
    tstate: Object,
    (met, now): (Met, u64),
) -> Option<bool> {
    let (_, runtime) = shared.of?;
    let took = now.saturating_sub(met.since);
    let class = usize::from(met.is_concurrent);
    let rate = &mut shared.rates[class];
    let weight = thread.remaining[class].weight_of(took, rate.per_tick, now)?;
    // Another one died at its place, and nobody told: see `greenlets`.
    // SAFETY: the caller's promise.
    if unsafe { begins(tstate, runtime) } {
        return None;
    }
    // SAFETY: the caller's promise.
    let context = unsafe { runtime.context_of::<Plain>(tstate) };
    let Some(of_span) = flow_of(&context) else {
        // SAFETY: as below; there is no span.
        unsafe { sample_flow(State::Await, shared.clock.ns(weight), 1, context, |_| {}) };
        return None;
    };
    shared.clock.compare(now);
    let (took, weight, now) = (shared.clock.ns(took), shared.clock.ns(weight), shared.clock.at(now));
    rate.count(now, &shared.clock);
    let over = Over { took, weight, now, ready_at: ready_at(thread, None, now - took, now) };
    // SAFETY: the caller's promise; the context keeps its span.
    unsafe { take(thread, runtime, (tstate, context), over, AWAIT, |_| {}) };
    Some(of_span != met.flow)
}

/// A suspension, in nanoseconds, times by CLOCK_MONOTONIC.
#[derive(Clone, Copy)]
struct Over {
    took: u64,
    weight: u64,
    now: u64,
    ready_at: u64,
}

/// Takes the samples of a suspension: what it awaited below `leaf`, and that it was ready.
///
/// # Safety
/// As for [`consider`]; `tstate` is the calling thread's own, and the context keeps its span.
unsafe fn take(
    thread: &Thread,
    runtime: &CPython,
    (tstate, context): (Object, Context),
    Over { took, weight, now, ready_at }: Over,
    leaf: FrameId,
    push_chain: impl Fn(&mut FrameWriter<'_>),
) {
    #[expect(clippy::cast_possible_truncation, reason = "a part of the weight")]
    let busy = (u128::from(weight) * u128::from(now - ready_at) / u128::from(took.max(1))) as u64;
    let culprit = thread.longest.filter(|_| now - ready_at >= LONG_NS);
    let count = u16::try_from((weight + took / 2) / took.max(1)).unwrap_or(u16::MAX).max(1);
    for (state, weight) in [(State::Await, weight - busy), (State::Busy, busy)] {
        if weight == 0 {
            continue;
        }
        let walk = |out: &mut FrameWriter<'_>| {
            if state == State::Busy {
                out.push(LOOP_BUSY);
                if let Some(culprit) = culprit {
                    out.push(culprit);
                }
            } else {
                out.push(leaf);
            }
            push_chain(out);
            // SAFETY: the calling thread's own; who starts the profiler mapped the definitions and enabled safe loads.
            unsafe { runtime.walk_thread(tstate, ptr::null(), out) };
        };
        // SAFETY: in no handler and no walk; the context keeps its span.
        unsafe { sample_flow(state, weight, count, context, walk) };
    }
}

/// From when on a coroutine could have gone on that was suspended from `since` to `now`: when its timer was due, else since when the
/// loop runs other things without a break. The kernel does not say when bytes came to a socket, so that is the earliest there may be.
fn ready_at(thread: &Thread, due: Option<u64>, since: u64, now: u64) -> u64 {
    let due = due.filter(|due| *due >= since.saturating_sub(TIMER_BEFORE_NS));
    let ready = due.or(Some(thread.busy_since).filter(|busy| *busy != 0)).unwrap_or(now);
    let ready = ready.clamp(since, now);
    // What is shorter is the loop's own work.
    if now - ready < SHORTEST_BUSY_NS { now } else { ready }
}

/// A suspension is over: adds it to the sums of the span that is current, if that wants any and it is the span's own flow.
///
/// # Safety
/// As for [`consider`], and the number of the flow is the thread's already.
#[cold]
#[inline(never)]
pub(super) unsafe fn add_up(
    thread: &Thread,
    shared: &mut Shared,
    coroutine: Object,
    tstate: Object,
    (met, now): (Met, u64),
) {
    let Some((known, runtime)) = shared.of else { return };
    if runtime.is_finalizing() {
        return;
    }
    // SAFETY: the calling thread's own.
    let context = unsafe { runtime.context_of::<Plain>(tstate) };
    // SAFETY: null, or in a handle of ours, which the context keeps alive.
    let Some(span) = (unsafe { context.span.as_ref() }) else { return };
    // One that has not begun has met what is noted of another, which died at its place: see `consider`.
    // SAFETY: the caller's promise.
    if span.times().is_none() || span.flow() != met.flow || !unsafe { known.layout.has_begun::<Plain>(coroutine) } {
        return;
    }
    // SAFETY: it is suspended, and the GIL is held.
    add(thread, shared, span, (met.since, now), || unsafe { due_of(coroutine, known, runtime) });
}

/// The same, of the greenlet that goes on now.
///
/// # Safety
/// As for [`consider_greenlet`].
#[cold]
#[inline(never)]
pub(super) unsafe fn add_up_greenlet(thread: &Thread, shared: &mut Shared, tstate: Object, (met, now): (Met, u64)) {
    let Some((_, runtime)) = shared.of else { return };
    // SAFETY: the caller's promise.
    let context = unsafe { runtime.context_of::<Plain>(tstate) };
    // SAFETY: null, or in a handle of ours, which the context keeps alive.
    let Some(span) = (unsafe { context.span.as_ref() }) else { return };
    // SAFETY: the caller's promise.
    if span.times().is_some() && span.flow() == met.flow && !unsafe { begins(tstate, runtime) } {
        add(thread, shared, span, (met.since, now), || None);
    }
}

/// Adds a suspension between two ticks to the sums of its span. `due`: when its timer was, if it waited for one.
fn add(
    thread: &Thread,
    shared: &mut Shared,
    span: &SpanRecord,
    (since, now): (u64, u64),
    due: impl FnOnce() -> Option<u64>,
) {
    shared.clock.compare(now);
    let took = shared.clock.ns(now.saturating_sub(since));
    let now = shared.clock.at(now);
    let ready_at = if took < SHORTEST_BUSY_NS { now } else { ready_at(thread, due(), now - took, now) };
    for (state, ns) in [(State::Await, took - (now - ready_at)), (State::Busy, now - ready_at)] {
        if ns > 0 {
            add_time(span, state, ns);
        }
    }
}

/// Whether the greenlet that runs has no frame yet.
///
/// # Safety
/// As for [`CPython::walk_thread`].
pub(super) unsafe fn begins(tstate: Object, runtime: &CPython) -> bool {
    let mut ids = [0; 1];
    let mut out = FrameWriter::new(&mut ids);
    // SAFETY: the caller's promise.
    unsafe { runtime.walk_thread(tstate, ptr::null(), &mut out) };
    out.frames() == 0 || ids[0] == NO_PYTHON_FRAME
}
