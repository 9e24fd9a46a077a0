//! What is done before and after each step of a coroutine.
//!
//! **The rule of the frame below Python code.** The hooks, which call these two functions, lie on the C stack below code of the program.
//! Until 3.13 the interpreter ends daemon threads by unwinding that stack, so nothing that has a destructor may live in a hook while the
//! step runs: what is kept over it is plain ([`Step`]).
//!
//! Only a call where no other one is under way on the thread is a step of a flow. A coroutine that is new within another one's step is a
//! task whose first step runs at once (3.12's eager tasks): its suspension counts. One that was suspended before is driven by a program's
//! own trampoline, whose own suspension counts already. Up to 3.11 each `await` comes by here, so both are told apart from it by nothing.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use pyo3::ffi;
use spanprof_core::{FrameWriter, State, sample_flow};

use crate::awaits::chain::{Chain, frame_alone};
use crate::awaits::clock::{Clock, monotonic_ns, ticks};
use crate::awaits::known::Known;
use crate::awaits::rate::Rate;
use crate::awaits::slots::Slots;
use crate::awaits::thread::{Seen, Thread};
use crate::span::published::FLOW_OF_RECORD;
use crate::stack::frame_id::{CONCURRENT, LOOP_BUSY};
use crate::stack::interpreter::CPython;
use crate::stack::layout::TSTATE_INTERP;
use crate::stack::memory::{Memory, Object, Plain};

/// Which time of measuring this is; 0: awaits are not measured.
static GENERATION: AtomicU32 = AtomicU32::new(0);
static MAIN: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// As in [`CoroutineLayout`](crate::awaits::layout::CoroutineLayout).
static IS_CONTINUED: AtomicBool = AtomicBool::new(false);

/// What all threads share, each while it holds the GIL of the main interpreter.
struct Shared {
    slots: Slots,
    clock: Clock,
    rate: Rate,
    /// The number of the flow that was met last.
    last_flow: u64,
    last_generation: u32,
    of: Option<(&'static Known, &'static CPython)>,
}

struct UnderGil(UnsafeCell<Shared>);

// SAFETY: `shared` is called by who holds that GIL.
unsafe impl Sync for UnderGil {}

static SHARED: UnderGil = UnderGil(UnsafeCell::new(Shared {
    slots: Slots::new(),
    clock: Clock::new(),
    rate: Rate::new(0),
    last_flow: 0,
    last_generation: 0,
    of: None,
}));

/// # Safety
/// The GIL of the main interpreter is held, and no other reference from here is in use.
#[inline(always)]
unsafe fn shared<'a>() -> &'a mut Shared {
    let shared = SHARED.0.get();
    // SAFETY: the caller's promise.
    unsafe { &mut *shared }
}

/// Begins to measure. The GIL is held.
pub(super) fn begin(known: &'static Known, runtime: &'static CPython) {
    // SAFETY: the GIL is held, by a thread of the main interpreter, as this module is imported by no other.
    let shared = unsafe { shared() };
    shared.slots.clear(known.layout.padding);
    shared.clock = Clock::start();
    shared.rate = Rate::new(monotonic_ns());
    shared.of = Some((known, runtime));
    shared.last_generation = shared.last_generation.wrapping_add(1).max(1);
    MAIN.store(runtime.main.cast_mut(), Ordering::Relaxed);
    IS_CONTINUED.store(known.layout.is_continued, Ordering::Relaxed);
    GENERATION.store(shared.last_generation, Ordering::Relaxed);
}

/// Ends it. Steps that are under way come back and do nothing more than to leave the thread as they found it. The GIL is held.
pub(super) fn end() {
    GENERATION.store(0, Ordering::Relaxed);
    // SAFETY: as above.
    unsafe { shared() }.slots.clear(None);
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
    let was_inside = std::mem::replace(&mut outer.inside, false);
    let remaining = std::mem::replace(&mut outer.remaining.ticks, 0);
    outer.seen = &raw mut seen;
    let result = during();
    // SAFETY: as above.
    let outer = unsafe { &mut *thread };
    outer.seen = ptr::null_mut();
    outer.remaining.ticks = remaining;
    outer.inside = was_inside;
    (result, seen)
}

/// What is kept over a step.
#[derive(Clone, Copy)]
pub(super) struct Step {
    thread: *mut Thread,
    kind: Kind,
    was_inside: bool,
    generation: u32,
    /// Where the coroutine was met, 0 if it was not.
    slot: u32,
    /// Its flow, and the one that the thread was in.
    flow: u64,
    outer_flow: u64,
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
    was_inside: false,
    generation: 0,
    slot: 0,
    flow: 0,
    outer_flow: 0,
    entered_at: 0,
};

/// A step that is long enough to be named as what kept the loop busy.
const LONG_NS: u64 = 1_000_000;
/// The least time that a coroutine is told to be ready for.
const SHORTEST_BUSY_NS: u64 = 50_000;
/// A timer is due no earlier before the suspension that waits for it; a loop may have a clock of its own.
const TIMER_BEFORE_NS: u64 = 100_000_000;

/// Whether the thread runs another interpreter, under whose own GIL nothing of ours may be touched.
#[inline(always)]
fn is_foreign() -> bool {
    // SAFETY: whoever calls a coroutine has a thread state.
    let tstate: Object = unsafe { ffi::PyThreadState_Get() }.cast_const().cast();
    // SAFETY: it is alive.
    let interpreter = unsafe { Plain::pointer(tstate, TSTATE_INTERP) };
    interpreter != Some(MAIN.load(Ordering::Relaxed).cast_const())
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
    let own = Thread::own();
    // SAFETY: this thread's own.
    let thread = unsafe { &mut *own };
    let was_inside = thread.inside;
    if (was_inside && !IS_CONTINUED.load(Ordering::Relaxed)) || is_foreign() {
        return OTHER;
    }
    // SAFETY: the GIL is held, and it is the main interpreter's.
    let shared = unsafe { shared() };
    let outer_flow = thread.flow().get();
    thread.inside = true;
    let now = ticks();
    if !was_inside {
        thread.look_at_poll(&shared.clock);
    }
    // SAFETY: the caller's promise, and as above.
    let step = match unsafe { shared.slots.resume(coroutine) } {
        Some(met) => {
            let kind = if was_inside { Kind::Driven } else { Kind::Flow };
            let step = Step {
                thread: own,
                kind,
                was_inside,
                generation,
                slot: met.slot,
                flow: met.flow,
                outer_flow,
                entered_at: now,
            };
            if kind == Kind::Flow && met.since != 0 {
                thread.flow().set(met.flow);
                let took = now.saturating_sub(met.since);
                thread.remaining.ticks = thread.remaining.ticks.saturating_sub_unsigned(took);
                if thread.remaining.ticks <= 0 {
                    // SAFETY: it is suspended, and the GIL is held.
                    unsafe { consider(thread, shared, coroutine, (met.since, now), met.flow) };
                }
            }
            step
        }
        None => {
            shared.last_flow += 1;
            let flow = shared.last_flow;
            Step { thread: own, kind: Kind::Flow, was_inside, generation, slot: 0, flow, outer_flow, entered_at: now }
        }
    };
    if step.kind == Kind::Flow {
        thread.flow().set(step.flow);
    }
    step
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
    thread.inside = step.was_inside;
    if step.kind == Kind::Flow {
        thread.flow().set(step.outer_flow);
    }
    if step.generation != GENERATION.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the GIL is held, and it is the main interpreter's.
    let shared = unsafe { shared() };
    let now = ticks();
    if !is_suspended {
        // SAFETY: the caller's promise, and as above.
        unsafe { shared.slots.forget(coroutine) };
    } else if step.kind == Kind::Flow {
        // SAFETY: as above.
        unsafe { shared.slots.suspend(step.slot, coroutine, now, step.flow) };
    }
    if !step.was_inside {
        thread.left_at = now;
        let ran = now.saturating_sub(step.entered_at);
        if ran > thread.longest_ticks {
            // SAFETY: as above.
            unsafe { note_longest(thread, shared, coroutine, ran) };
        }
    }
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
    if GENERATION.load(Ordering::Relaxed) != 0 && !is_foreign() {
        // SAFETY: the GIL is held, and it is the main interpreter's.
        let shared = unsafe { shared() };
        // SAFETY: the caller's promise, and as above.
        unsafe { shared.slots.forget(coroutine) };
    }
}

/// A suspension is over that may be a sample.
///
/// # Safety
/// A coroutine that is suspended, and the GIL of the main interpreter is held.
#[cold]
#[inline(never)]
unsafe fn consider(thread: &mut Thread, shared: &mut Shared, coroutine: Object, (since, now): (u64, u64), flow: u64) {
    let Some((known, runtime)) = shared.of else { return };
    let took = now.saturating_sub(since);
    // SAFETY: null or the self-test's, which waits for this.
    if let Some(seen) = unsafe { thread.seen.as_mut() } {
        thread.remaining.ticks = 0;
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
    let mean = shared.clock.in_ticks(shared.rate.mean_ns);
    let Some(weight) = thread.remaining.weight_of(took, mean, now) else { return };
    if runtime.is_finalizing() {
        return;
    }
    // SAFETY: whoever calls a coroutine has a thread state.
    let tstate: Object = unsafe { ffi::PyThreadState_Get() }.cast_const().cast();
    // SAFETY: the calling thread's own.
    let context = unsafe { runtime.context_of::<Plain>(tstate) };
    if context.span.is_null() {
        return;
    }
    shared.clock.compare(now);
    let (took, weight, now) = (shared.clock.ns(took), shared.clock.ns(weight), shared.clock.at(now));
    shared.rate.count(now);
    // SAFETY: the caller's promise.
    let chain = unsafe { Chain::of(coroutine, known, runtime) };
    let is_own = {
        let flow_of_span = context.span.cast::<u8>().wrapping_add(FLOW_OF_RECORD).cast::<u64>();
        // SAFETY: a span that is current is in a handle of ours, which the context keeps alive, and is written with the GIL held.
        unsafe { ptr::read(flow_of_span) == flow }
    };
    let ready_at = ready_at(thread, &chain, now - took, now);
    // What is shorter is the loop's own work, and not worth a sample.
    let ready_at = if now - ready_at < SHORTEST_BUSY_NS { now } else { ready_at };
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
                out.push(chain.leaf);
            }
            chain.push_to(out);
            // SAFETY: the calling thread's own; who starts the profiler mapped the definitions and enabled safe loads.
            unsafe { runtime.walk_thread(tstate, ptr::null(), out) };
            if !is_own {
                out.push(CONCURRENT);
            }
        };
        // SAFETY: in no handler and no walk; the context keeps its span.
        unsafe { sample_flow(state, weight, count, context, walk) };
    }
}

/// From when on a coroutine could have gone on that was suspended from `since` to `now`: when its timer was due, else since when the
/// loop runs other things without a break. The kernel does not say when bytes came to a socket, so that is the earliest there may be.
fn ready_at(thread: &Thread, chain: &Chain, since: u64, now: u64) -> u64 {
    let due = chain.due.filter(|due| *due >= since.saturating_sub(TIMER_BEFORE_NS));
    let ready = due.or(Some(thread.busy_since).filter(|busy| *busy != 0)).unwrap_or(now);
    ready.clamp(since, now)
}
