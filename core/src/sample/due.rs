//! What is due where a thread's span changes: expiries of a young thread's timer, and what the span was kept from running for.
//!
//! The kernel looks at CPU timers at its tick, each 1 to 10 ms, so a sample falls some milliseconds of CPU time after the instant
//! that it is of. In a thread that lives on, what spans lose to their followers by that they get from those before them. A thread that
//! handles one request and ends has no follower: half of a span of 5 ms would be found at the thread's end, outside of every span. So
//! while a thread is young its clock is read before its span changes, and what is due by then is a sample of that span.

use std::ptr;

use super::frames::{FrameId, FrameWriter};
use super::handler::{runtime, write, write_claim};
use super::record::ThreadRecord;
use super::ring::Measure;
use super::runtime::Runtime;
use super::threads;
use super::waits;
use super::waits::claim;
use crate::os::clock;
use crate::profile_type::ProfileTypeId;
use crate::wait_state::State;

/// The CPU time that a thread is young for: then what is found at its end is less than a twentieth of all.
const YOUNG_NS: u64 = 50_000_000;
/// What the stacks of such samples begin with: the functions that burnt it may have returned.
pub(crate) const SEEN_LATE: FrameId = u64::MAX - 11;

/// Takes a sample of the calling thread, in the context in which it still is, of the CPU time that is due and of which its timer has
/// not told yet. To be called before its span changes. 5 ns, and 0.2 µs more in a young thread.
///
/// # Safety
/// As for [`sample_here`](crate::sample_here), by a host whose [`Runtime`](crate::Runtime) measures waits.
#[inline]
pub unsafe fn sample_due() {
    if let Some((record, value)) = threads::known_record()
        && record.counted() * record.period_ns() < YOUNG_NS
    {
        // SAFETY: the caller's promise.
        unsafe { take(record, value) };
    }
}

/// # Safety
/// As for [`sample_due`]; the record was the thread's with this value.
#[cold]
unsafe fn take(record: &ThreadRecord, value: u64) {
    let Some(runtime) = runtime() else { return };
    if record.enter(value) && !record.is_busy() {
        record.set_busy(true);
        let now_ns = u64::try_from(clock::own_thread_cpu().as_nanos()).unwrap_or(0);
        let value = record.take_due(now_ns);
        if value > 0 {
            // SAFETY: the calling thread's own record, and no call is under way in which its stack could not be read.
            let inside = unsafe { runtime.context(record, ptr::null()) };
            let claim = claim::take(record, inside, clock::monotonic_ns());
            let measure = Measure { profile_type: ProfileTypeId::TIMER, state: State::Cpu, count: 1, claim, value };
            // SAFETY: entered, and busy keeps this thread's handler out.
            unsafe { write(record, runtime, measure, inside, walk_late(record, runtime)) };
        }
        record.set_busy(false);
    }
    record.leave();
}

/// The calling thread goes into another span, or out of one: what the span in which it still is was kept from running for since the
/// thread's sample before, or since it went into it, is that span's share of the run queue. To be called before its span changes, by a thread
/// that runs no coroutine; one whose [flow](crate::own_flow) is known to be one does nothing. `is_ours`: the span in which it still is
/// became current by the change before of which this was told. Where that is not so, contexts take turns on the thread, which may do so
/// again without a change of spans: from then on nothing is a span's own there, and its time in the queue is its CPU samples'. A load while
/// no wall time is measured, else 40 ns, and a system call for each half a millisecond that the thread ran; a sample's cost where it was kept.
///
/// # Safety
/// As for [`sample_due`].
#[inline]
pub unsafe fn span_switched(is_ours: bool) {
    if claim::ends_with_span(is_ours) {
        // SAFETY: the caller's promise.
        unsafe { note_claim() };
    }
}

/// # Safety
/// As for [`span_switched`].
#[cold]
unsafe fn note_claim() {
    let (Some(runtime), Some((record, value))) = (runtime(), threads::known_record()) else { return };
    let Some((now_ns, rest_ns)) = claim::take_rest_of_span() else { return };
    if record.enter(value) && !record.is_busy() {
        record.set_busy(true);
        // SAFETY: as in `take`.
        let inside = unsafe { runtime.context(record, ptr::null()) };
        let claimed_ns = if inside.span.is_null() { 0 } else { rest_ns };
        // Those too of which nothing is written: each that is stands for some.
        record.note_claimed(now_ns, claimed_ns);
        if claimed_ns > 0
            && let Some(weight_ns) = waits::weight_of_claim(claimed_ns, now_ns)
        {
            // SAFETY: as in `take`.
            if unsafe { write_claim(record, runtime, weight_ns, inside, walk_late(record, runtime)) } {
                waits::count_claim();
            }
        }
        record.set_busy(false);
    }
    record.leave();
}

fn walk_late(record: &ThreadRecord, runtime: &'static dyn Runtime) -> impl Fn(&mut FrameWriter<'_>) {
    move |out| {
        out.push(SEEN_LATE);
        // SAFETY: the calling thread's own record, and no call is under way in which its stack could not be read.
        unsafe { runtime.walk(record, ptr::null(), out) };
    }
}
