//! Waits: how long a thread was in a call of libc that can wait, and where, measured on that very thread.
//!
//! [`modules`] puts wrappers into the slots by which the modules of the process call libc (`calls.c`): clock, call, clock. A call
//! of 2 µs or more is a wait. Some of them become samples, there and then, by the thread itself: with its span, its stack and what
//! the call was. No signal is sent, no other thread is looked at, and a thread that waits is not woken.
//!
//! What runs here runs within a call that the program makes, maybe in a signal handler of its own, maybe with a lock of its
//! allocator's held. So it obeys the rules of `sample/handler.rs`: no allocation, no lock (one is tried), no panic.

mod block;
mod modules;
mod wrappers;

use std::sync::atomic::{AtomicU64, Ordering};

use self::block::Block;
pub(crate) use self::modules::lock;
use super::handler::{self, WAKE, Wait};
use super::record::{self, ThreadRecord};
use super::threads::{self, Owner};
use crate::context::current::Context;
use crate::os::{clock, thread_id};
use crate::profile_type::ProfileTypeId;
use crate::sample::frames::{FrameId, FrameWriter};
use crate::wait_state::State;

/// Calls that took less are none: nobody was switched out for them.
const SHORTEST_NS: u64 = 2_000;
/// The mean of the exponential distribution that decides which waits become samples: a thread that waits has this often a
/// sample, and each wait that is long beside it is one.
const LEAST_MEAN_NS: u64 = 1_000_000;
const MOST_MEAN_NS: u64 = 1_000_000_000;
/// Samples of waits a second, of the whole process, that are aimed at.
const SAMPLES_A_SECOND: u64 = 1_000;

static MEAN_NS: AtomicU64 = AtomicU64::new(LEAST_MEAN_NS);
/// Whose samples these are, 0 for nobody's.
static OWNER: AtomicU64 = AtomicU64::new(0);
/// The profile type that they have there.
static PROFILE_TYPE: AtomicU64 = AtomicU64::new(0);
/// Samples since the mean was steered, and when that was.
static SAMPLED: AtomicU64 = AtomicU64::new(0);
static STEERED_NS: AtomicU64 = AtomicU64::new(0);

/// A call that took long enough to be a wait. As `calls.c` has it.
#[derive(Debug)]
#[repr(C)]
struct Call {
    function: u32,
    state: u32,
    took_ns: u64,
    /// Expiries of the thread's CPU timer meanwhile.
    expiries: u64,
    /// What was waited for: a lock's address.
    argument: u64,
    /// The mutex that is held now because of it, or null.
    mutex: *const (),
    caller: *const (),
}

/// Frame ids of calls that waited: the highest but the core's other ones. The first is the wait for the interpreter's lock, the
/// others are numbers of functions.
pub(crate) const FIRST_FRAME: FrameId = u64::MAX - 4_095;
const INTERPRETER_LOCK: FrameId = FIRST_FRAME;

/// The function that a frame id of a wait means.
pub(crate) fn function_of(id: FrameId) -> Option<&'static str> {
    match id.checked_sub(FIRST_FRAME)? {
        0 => Some("(waits for the GIL)"),
        function => modules::name(usize::try_from(function - 1).ok()?),
    }
}

/// Takes a sample of a flow of the calling thread (a coroutine, a fiber, a task) that just goes on: the time in which it was suspended,
/// or ready and not run yet. As [`sample_here`](crate::sample_here) otherwise, and false where waits are not measured.
///
/// # Safety
/// As for [`sample_here`](crate::sample_here).
pub unsafe fn sample_flow(
    state: State,
    weight_ns: u64,
    count: u16,
    context: Context,
    walk: impl Fn(&mut FrameWriter<'_>),
) -> bool {
    if OWNER.load(Ordering::Acquire) == 0 {
        return false;
    }
    // SAFETY: the caller's promise.
    unsafe { handler::sample_state_here(profile_type(), state, weight_ns, count, context, walk) }
}

#[expect(clippy::cast_possible_truncation, reason = "an identifier of eight bits was stored")]
fn profile_type() -> ProfileTypeId {
    ProfileTypeId(PROFILE_TYPE.load(Ordering::Relaxed) as u8)
}

/// Measures waits from now on, for a profiler whose samples of them have this type. Tells how many slots call us; 0: this
/// process has none that may be changed, or this processor is not known.
pub(crate) fn start(owner: Owner, profile_type: ProfileTypeId) -> usize {
    PROFILE_TYPE.store(u64::from(profile_type.0), Ordering::Relaxed);
    MEAN_NS.store(LEAST_MEAN_NS, Ordering::Relaxed);
    SAMPLED.store(0, Ordering::Relaxed);
    STEERED_NS.store(clock::monotonic_ns(), Ordering::Relaxed);
    OWNER.store(owner, Ordering::Release);
    modules::install(SHORTEST_NS, on_wait, on_unlock)
}

/// Ends it, if it is this profiler's. Threads that wait come back through the wrappers, which measure nothing any more.
pub(crate) fn stop(owner: Owner) {
    if OWNER.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        modules::uninstall();
    }
}

/// In a forked child: nothing is measured until a profiler starts.
pub(crate) fn forget() {
    OWNER.store(0, Ordering::Relaxed);
    modules::forget();
}

/// On each tick of the profiler's thread: modules that came, and how many waits become samples.
pub(crate) fn tick(owner: Owner) {
    if OWNER.load(Ordering::Acquire) != owner {
        return;
    }
    modules::look_again();
    let now = clock::monotonic_ns();
    let since = now.saturating_sub(STEERED_NS.swap(now, Ordering::Relaxed)).max(1);
    let sampled = SAMPLED.swap(0, Ordering::Relaxed);
    let a_second = sampled.saturating_mul(1_000_000_000) / since;
    let mean = MEAN_NS.load(Ordering::Relaxed);
    // It follows from the past alone, so no sum is biased by it.
    let next = match a_second {
        many if many > 2 * SAMPLES_A_SECOND => mean * 2,
        few if few < SAMPLES_A_SECOND / 2 => mean / 2,
        _ => mean,
    };
    MEAN_NS.store(next.clamp(LEAST_MEAN_NS, MOST_MEAN_NS), Ordering::Relaxed);
}

/// Nanoseconds that the calling thread waited so far, in calls that were measured.
pub fn waited_ns() -> u64 {
    // SAFETY: the calling thread's own block, which nobody else writes.
    wrappers::own_block().map_or(0, |block| unsafe { (*block).total_ns })
}

/// Where it is noted for the calling thread when its last wait in `poll`, `select` or `epoll_wait` began and when it ended, by
/// CLOCK_MONOTONIC; zeros before the first. There as long as the thread is; null where no waits can be measured.
pub fn own_poll() -> *const [u64; 2] {
    // SAFETY: a field of the calling thread's own block.
    wrappers::own_block().map_or(std::ptr::null(), |block| unsafe { &raw const (*block).polled })
}

/// Whether a function waits for several things at once.
fn is_poll(function: u32) -> bool {
    let name = usize::try_from(function).ok().and_then(modules::name);
    matches!(name, Some("epoll_wait" | "epoll_pwait" | "epoll_pwait2" | "poll" | "ppoll" | "select" | "pselect"))
}

/// A call that took its time has returned.
extern "C" fn on_wait(block: *mut Block, call: *const Call) {
    // SAFETY: this thread's own block; a signal's handler that also waits comes and goes within.
    let block = unsafe { &mut *block };
    // SAFETY: valid while this runs.
    let call = unsafe { &*call };
    let Some(mut state) = State::of(call.state) else { return };
    if state == State::Lock && handler::is_interpreter_lock(call.argument, call.caller.addr()) {
        state = State::InterpreterLock;
    }
    let now = clock::monotonic_ns();
    if is_poll(call.function) {
        block.polled = [now.saturating_sub(call.took_ns), now];
    }
    let cpu_ns = if call.expiries == 0 { 0 } else { call.expiries * period_ns(block) };
    let took_ns = block.without_cpu(call.took_ns, cpu_ns);
    if took_ns == 0 {
        return;
    }
    block.total_ns += took_ns;
    #[expect(clippy::cast_precision_loss, reason = "a second at most")]
    let mean = MEAN_NS.load(Ordering::Relaxed) as f64;
    let Some(weight) = block.weight_of(took_ns, mean, now) else { return };
    if block.is_busy != 0 {
        // In a signal handler that came while we were at it: who is interrupted holds the ring.
        threads::drop_wait(weight);
        return;
    }
    if state == State::InterpreterLock && !call.mutex.is_null() {
        // A wait for the interpreter's lock goes on in pieces without an unlocking in between: one wait, in one place.
        if block.pending_mutex == call.mutex {
            block.pending_weight += weight;
            block.pending_ns += took_ns;
        } else {
            (block.pending_mutex, block.pending_weight, block.pending_ns) = (call.mutex, weight, took_ns);
        }
        return;
    }
    let leaf =
        if state == State::InterpreterLock { INTERPRETER_LOCK } else { FIRST_FRAME + 1 + u64::from(call.function) };
    sample(block, state, leaf, weight, took_ns);
}

/// The mutex at which a wait was kept is unlocked.
extern "C" fn on_unlock(block: *mut Block) {
    // SAFETY: as in `on_wait`.
    let block = unsafe { &mut *block };
    block.pending_mutex = std::ptr::null();
    sample(block, State::InterpreterLock, INTERPRETER_LOCK, block.pending_weight, block.pending_ns);
}

fn sample(block: &mut Block, state: State, leaf: FrameId, weight: u64, took_ns: u64) {
    block.is_busy = 1;
    let thread = thread_id::tid();
    let known = known_record(block, thread).or_else(|| {
        let (record, value) = threads::find_record(thread)?;
        block.set_record(value, thread, record.expiries());
        Some((record, value))
    });
    let profile_type = profile_type();
    let count = u16::try_from((weight + took_ns / 2) / took_ns.max(1)).unwrap_or(u16::MAX).max(1);
    match known {
        Some((record, value)) => {
            // SAFETY: on the record's thread, outside of its handler and of any walk.
            if unsafe { handler::sample_wait(record, value, Wait { profile_type, state, count, weight, leaf }) } {
                SAMPLED.fetch_add(1, Ordering::Relaxed);
            }
        }
        // A thread that is not found yet, or a child of vfork, which is another process in our memory.
        None => {
            threads::drop_wait(weight);
            WAKE.wake();
        }
    }
    block.is_busy = 0;
}

fn known_record(block: &Block, thread: i32) -> Option<(&'static ThreadRecord, u64)> {
    let value = block.record();
    let record = record::by_signal_value(value).filter(|record| block.thread == thread && record.is_for(value))?;
    Some((record, value))
}

/// What an expiry of the thread's timer weighs; 0 if the record is another thread's by now.
fn period_ns(block: &Block) -> u64 {
    let value = block.record();
    record::by_signal_value(value).filter(|record| record.is_for(value)).map_or(0, ThreadRecord::period_ns)
}
