//! Exact sums by span: each wait is added to the [`SpanTimes`](crate::SpanTimes) of the span that the thread is in, before it is
//! chosen for a sample or not.
//!
//! They are of the time in which the span itself was current, as its samples are: a child span that has an own record has its own. Time
//! of a flow that is not the span's own is beside it and not added, so no sum is more than the span's wall time.

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use super::block::{Call, LONG_NS};
use super::flow::{self, current_flow, is_concurrent};
use crate::context::span_record::SpanRecord;
use crate::os::clock;
use crate::sample::handler;
use crate::sample::record;
use crate::wait_state::State;

/// How many want them: who does not pays for one load a wait.
static WANTED: AtomicUsize = AtomicUsize::new(0);
/// The process whose waits are measured: a child of vfork is another one in its memory.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Somebody makes spans with [`SpanTimes`](crate::SpanTimes) from now on, until as many [`unwant_span_times`].
pub fn want_span_times() {
    WANTED.fetch_add(1, Ordering::Relaxed);
}

/// One fewer does.
pub fn unwant_span_times() {
    WANTED.fetch_sub(1, Ordering::Relaxed);
}

/// Whether anybody does.
#[inline]
pub fn wants_span_times() -> bool {
    WANTED.load(Ordering::Relaxed) != 0
}

/// Waits are measured in this process.
pub(super) fn start() {
    // SAFETY: takes nothing and cannot fail.
    PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

/// Adds time that the calling thread, or the flow that it runs, spent in `span`: to the span's [`SpanTimes`](crate::SpanTimes), if it
/// has any and the flow is the span's own. For suspensions of flows, of which the host alone knows: [`State::Await`], [`State::Busy`].
/// To be called where the flow goes on, with its number in [`own_flow`](crate::own_flow) already. 3 ns.
#[inline]
pub fn add_time(span: &SpanRecord, state: State, ns: u64) {
    if let Some(times) = span.times()
        && !is_concurrent(span.flow(), state)
    {
        times.add(state, ns);
    }
}

/// What of a wait is no CPU time, for exact sums.
///
/// The samples' way (`Block::without_cpu`) is right on average: an expiry of the thread's timer within a call takes a whole period off
/// it and those after it. Of one span's sleep that would take 10 ms, for microseconds that were CPU time. So a call that copies and
/// computes nothing loses nothing, and a long one of the others only what is certain: of `n` expiries `n` − 1 periods. Short ones of
/// these are many, and may be CPU time as a whole, as a `read` of what is in memory: they share their debts.
pub(super) fn without_cpu(state: State, took_ns: u64, sampled_ns: u64, expiries: u64, period_ns: u64) -> u64 {
    match state {
        State::Io | State::Name if took_ns < LONG_NS => sampled_ns,
        State::Io | State::Name => took_ns.saturating_sub(expiries.saturating_sub(1).saturating_mul(period_ns)),
        _ => took_ns,
    }
}

/// A wait of the calling thread, of which the last part was for the interpreter's lock.
#[cold]
pub(super) fn add_wait(call: &Call, (state, ns): (State, u64), (lock_state, lock_ns): (State, u64)) {
    let Some(runtime) = handler::runtime() else { return };
    // Spans with times are the hosts', who find them without a record: the thread may have none yet.
    let record = record::nobody();
    // SAFETY: the calling thread is asked about itself.
    let context = unsafe { runtime.context(record, ptr::null()) };
    // SAFETY: null, or current on this thread, so it is there.
    let Some(span) = (unsafe { context.span.as_ref() }) else { return };
    // SAFETY: takes nothing and cannot fail.
    if span.times().is_none() || unsafe { libc::getpid() } != PROCESS.load(Ordering::Relaxed) {
        return;
    }
    if ns > 0 {
        // SAFETY: as above.
        let is_certain = call.caller.is_null() || unsafe { runtime.defers(record) };
        add_time(span, if is_certain { state } else { runtime.wait_state(state, call.caller.addr()) }, ns);
    }
    if lock_ns > 0 {
        add_time(span, lock_state, lock_ns);
    }
}

/// Since when, by the CPU time of a thread, a span is under way on it.
#[derive(Clone, Copy, Debug)]
pub struct CpuSince {
    flow: u64,
    cpu_ns: u64,
}

impl CpuSince {
    /// From now on. `None` in a coroutine, whose thread does other things as well, and where flows are not known. 0.3 µs: a system call.
    pub fn now() -> Option<Self> {
        let flow = current_flow();
        flow::is_of_thread(flow).then(|| Self { flow, cpu_ns: own_cpu_ns() })
    }

    /// The CPU time since then of the calling thread, if it is that one, and in no coroutine; `None` otherwise, and in a forked child.
    pub fn elapsed_ns(&self) -> Option<u64> {
        (current_flow() == self.flow).then(|| own_cpu_ns().saturating_sub(self.cpu_ns))
    }
}

/// The clock and not getrusage, which is cheaper by 0.1 µs and, on kernels that count CPU time by ticks, up to one behind.
fn own_cpu_ns() -> u64 {
    u64::try_from(clock::own_thread_cpu().as_nanos()).unwrap_or(0)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::super::flow::own_flow;
    use super::*;
    use crate::context::span_times::SpanTimes;

    #[test]
    fn one_expiry_in_a_long_wait_takes_nothing_off_and_short_calls_that_may_compute_pay_their_debts() {
        const PERIOD_NS: u64 = 10_000_000;
        let long = |expiries| without_cpu(State::Io, 50_000_000, 0, expiries, PERIOD_NS);
        assert_eq!([0, 1, 2, 3, 9].map(long), [50_000_000, 50_000_000, 40_000_000, 30_000_000, 0]);
        let short = |state| without_cpu(state, LONG_NS - 1, 7, 1, PERIOD_NS);
        assert_eq!([State::Io, State::Name, State::Sleep, State::Lock].map(short), [7, 7, LONG_NS - 1, LONG_NS - 1]);
    }

    #[test]
    fn time_of_another_flow_is_not_added_nor_is_any_where_nobody_asks() {
        let times = SpanTimes::new();
        // SAFETY: the name is static.
        let record = || unsafe { SpanRecord::new([1, 2], 3, "GET /") };
        // SAFETY: the times outlive the record.
        let span = unsafe { record().with_times(&raw const times) };
        span.enter(current_flow);
        add_time(&span, State::Io, 5);
        std::thread::scope(|scope| scope.spawn(|| add_time(&span, State::Io, 100)).join().unwrap());
        // SAFETY: this thread's own.
        let flow = unsafe { &*own_flow() };
        flow.set(7);
        // What a coroutine does is what its thread's span does, and its being suspended is not.
        add_time(&span, State::Io, 20);
        add_time(&span, State::Await, 400);
        flow.set(0);
        assert_eq!([State::Io, State::Await].map(|state| times.get(state)), [25, 0]);
        assert!(record().times().is_none());
        add_time(&record(), State::Io, 5);
    }

    #[test]
    fn cpu_time_is_told_on_its_own_thread_outside_of_coroutines() {
        let since = CpuSince::now().unwrap();
        let burnt = clock::own_thread_cpu();
        while (clock::own_thread_cpu() - burnt).as_millis() < 20 {}
        assert!((20_000_000..10_000_000_000).contains(&since.elapsed_ns().unwrap()));
        assert_eq!(std::thread::scope(|scope| scope.spawn(|| since.elapsed_ns()).join().unwrap()), None);
        // SAFETY: this thread's own.
        let flow = unsafe { &*own_flow() };
        flow.set(7);
        assert!(CpuSince::now().is_none() && since.elapsed_ns().is_none());
        flow.set(0);
    }
}
