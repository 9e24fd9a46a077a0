//! How long a fiber was suspended: noted when it is left, and a sample when it goes on. Its stack is whole then, and its span current.
//!
//! A fiber that comes straight back from the one that it resumed (an Enumerator's) did not wait: that one worked for it. Where the
//! other is a loop that resumes many, it did: the thread's first fiber, in which schedulers run, or one that was seen to resume
//! several.
//!
//! Fibers are known by where they lie, where others begin when they have died. That is not seen of one that is suspended, nor is a
//! switch after which the thread is killed at once, or raises: Ruby does not call us then. So a note counts for the thread that made it
//! and until a fiber begins at its place, and a fiber whose span changes is known to run.
//!
//! Called with the GVL held, in the main Ractor, and only while waits are measured.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use spanprof_core::{FrameWriter, State, monotonic_ns};

use crate::span::current;
use crate::span::record::{self, Slot};
use crate::stack::frame_id::FIBER_WAITS;
use crate::stack::unwind::Interpreter;
use crate::value::{FALSE, NIL, data_of};

/// A few places for each value of a hash: who finds none takes that of the fiber that was left first, which is then not known. Of 10,000 fibers next
/// to none; memory is used where fibers are noted alone.
const WAYS: usize = 4;
const SETS: usize = 32_768;

/// A fiber that was left, by where its data lie, as objects move.
#[derive(Clone, Copy)]
struct Left {
    fiber: usize,
    /// The fiber that it was left for last.
    to: usize,
    /// When that was; 0: it runs.
    since_ns: u64,
    /// The number of its thread, see [`Slot::thread`].
    thread: u32,
    /// It was left for several.
    is_loop: bool,
    /// Of which start it is, see [`START`].
    start: u16,
}

const NOBODY: Left = Left { fiber: 0, to: 0, since_ns: 0, thread: 0, is_loop: false, start: 0 };

impl Left {
    fn is_of(&self, fiber: usize) -> bool {
        self.fiber == fiber && self.start == START.load(Ordering::Relaxed)
    }
}

struct Table(UnsafeCell<[[Left; WAYS]; SETS]>);

// SAFETY: used with the GVL held.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new([[NOBODY; WAYS]; SETS]));
static IS_ON: AtomicBool = AtomicBool::new(false);
/// Counts the starts and stops: what was noted before the last one is not looked at.
static START: AtomicU16 = AtomicU16::new(0);

/// Notes from here on how long fibers are suspended, or no more.
pub(crate) fn measure(on: bool) {
    if IS_ON.swap(on, Ordering::Relaxed) || on {
        START.fetch_add(1, Ordering::Relaxed);
        record::for_each_slot(Slot::forget_fibers);
    }
}

/// A fiber was switched to; its span is in the slot.
pub(crate) fn switched() {
    let Some(slot) = record::own_or_claim() else { return };
    // SAFETY: called by Ruby.
    let fiber = unsafe { rb_sys::rb_fiber_current() };
    if !IS_ON.load(Ordering::Relaxed) {
        // By it handlers know that the slot speaks for the fiber that runs.
        slot.set_fiber(fiber);
        return;
    }
    let previous = slot.fiber();
    if fiber == previous {
        return;
    }
    slot.set_fiber(fiber);
    let (own, now_ns) = (data_of(fiber), monotonic_ns());
    let mut comes_from = 0;
    let mut from_loop = false;
    if previous != FALSE {
        comes_from = data_of(previous);
        // SAFETY: a Fiber, which the slot kept alive.
        if unsafe { rb_sys::rb_fiber_alive_p(previous) } == FALSE {
            forget(comes_from);
        } else {
            from_loop = leave(comes_from, own, now_ns, slot.thread());
        }
    }
    match go_on(own, slot.thread()).filter(|left| !is_of_another(own, *left, comes_from)) {
        Some(left) => {
            from_loop |= comes_from == slot.first_fiber() && is_for_others();
            if left.to != comes_from || from_loop {
                let took_ns = now_ns.saturating_sub(left.since_ns);
                add_to_span(slot, took_ns);
                sample(slot, took_ns);
            }
        }
        // It was not made just now and was not seen before: the fiber in which the thread began.
        None if slot.first_fiber() == 0 && !is_fresh() => slot.set_first_fiber(own),
        None => {}
    }
}

/// Whether a note is of a fiber that died while it was suspended, unseen, at whose place another one begins: taken for that one's, it
/// would make a loop of it. Who goes on as it was left comes from the one that it was left for.
fn is_of_another(fiber: usize, left: Left, comes_from: usize) -> bool {
    let is_of_another = left.to != comes_from && is_fresh();
    if is_of_another {
        forget(fiber);
    }
    is_of_another
}

/// Whether a thread's first fiber that goes on does so for others than the one that is resumed next: not where fibers have the span of
/// the one that made them, and nothing schedules them.
fn is_for_others() -> bool {
    // SAFETY: called by Ruby; it reads a word.
    !current::INHERITS.load(Ordering::Relaxed) || unsafe { rb_sys::rb_fiber_scheduler_get() } != NIL
}

/// Adds a suspension to the sums of its span, sampled or not. The slot knows of sums only in the fiber whose time they are.
fn add_to_span(slot: &Slot, took_ns: u64) {
    // SAFETY: null, or in this thread's slot, which only this thread changes.
    if let Some(span) = unsafe { slot.context().span.as_ref() }
        && span.times().is_some()
        && !is_fresh()
    {
        spanprof_core::add_time(span, State::Await, took_ns);
    }
}

fn sample(slot: &Slot, took_ns: u64) {
    let inside = slot.context();
    if inside.span.is_null() {
        return;
    }
    // One that died while it was suspended, without being seen, left a note for the next one at its place.
    let Some((weight, count)) = spanprof_core::flow_weight(took_ns, || !is_fresh()) else { return };
    let walk = |out: &mut FrameWriter<'_>| {
        out.push(FIBER_WAITS);
        Interpreter.walk_own(out);
    };
    // SAFETY: no signal handler, and no walk: the interpreter's own code runs. The span lies in this thread's slot, which only this
    // thread changes.
    unsafe { spanprof_core::sample_flow(State::Await, weight, count, inside, walk) };
}

/// Whether the fiber that runs has only begun.
fn is_fresh() -> bool {
    Interpreter.depth(2) < 2
}

fn set_of(fiber: usize) -> &'static mut [Left; WAYS] {
    let set = (fiber >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (usize::BITS - SETS.trailing_zeros());
    // SAFETY: the GVL is held, and no other reference lives in the functions that ask for this.
    unsafe { &mut (*TABLE.0.get())[set] }
}

/// Notes that a fiber was left for another one. Returns whether it is a loop.
fn leave(fiber: usize, to: usize, now_ns: u64, thread: u32) -> bool {
    let set = set_of(fiber);
    let start = START.load(Ordering::Relaxed);
    let known = set.iter().position(|left| left.is_of(fiber));
    let age = |left: &Left| (left.start == start && left.fiber != 0, left.since_ns);
    let at = known.or_else(|| (0..WAYS).min_by_key(|at| age(&set[*at])));
    let Some(left) = at.and_then(|at| set.get_mut(at)) else { return false };
    let is_loop = known.is_some() && left.thread == thread && (left.is_loop || left.to != to);
    *left = Left { fiber, to, since_ns: now_ns, thread, is_loop, start };
    is_loop
}

/// Notes that a fiber goes on. Returns what was noted when it was left.
fn go_on(fiber: usize, thread: u32) -> Option<Left> {
    let left = set_of(fiber).iter_mut().find(|left| left.is_of(fiber) && left.since_ns != 0)?;
    let noted = *left;
    left.since_ns = 0;
    (noted.thread == thread).then_some(noted)
}

fn forget(fiber: usize) {
    if let Some(left) = set_of(fiber).iter_mut().find(|left| left.is_of(fiber)) {
        *left = NOBODY;
    }
}
