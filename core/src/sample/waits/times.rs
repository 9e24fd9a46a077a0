//! Exact sums by span: each wait is added to the [`SpanTimes`](crate::SpanTimes) of the span that the thread is in, before it is
//! chosen for a sample or not.
//!
//! They are of the time in which the span itself was current, as its samples are: a child span that has an own record has its own. Time
//! of a flow that is not the span's own is beside it and not added, so no sum is more than the span's wall time.

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use super::block::{Call, LONG_NS};
use super::flow::{self, current_flow, is_concurrent};
use super::modules;
use crate::context::span_record::SpanRecord;
use crate::os::clock;
use crate::sample::handler;
use crate::sample::record;
use crate::sample::runtime::WaitFrame;
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
/// it and those after it. Of one span's sleep that would take 10 ms, for microseconds that were CPU time. So only what may be CPU time
/// as a whole loses it: short calls that copy, as a `read` of what is in memory, and those that may copy much without its being known.
pub(super) fn without_cpu(function: u32, state: State, took_ns: u64, sampled_ns: u64) -> u64 {
    let is_less = sampled_ns != took_ns && matches!(state, State::Io | State::Name);
    if is_less && (took_ns < LONG_NS || may_copy_much(function)) { sampled_ns } else { took_ns }
}

/// Whether a function may copy more than the wrappers know of, who read the thread's clock for what is much.
fn may_copy_much(function: u32) -> bool {
    let name = usize::try_from(function).ok().and_then(modules::name);
    name.is_some_and(|name| {
        name.ends_with("msg")
            || name.contains("readv")
            || name.contains("writev")
            || matches!(name, "fflush" | "fgets" | "getline" | "getdelim")
    })
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
    let Some(times) = span.times().filter(|_| unsafe { libc::getpid() } == PROCESS.load(Ordering::Relaxed)) else {
        return;
    };
    if ns > 0 {
        // SAFETY: as above.
        let is_certain = call.caller.is_null() || unsafe { runtime.defers(record) };
        let state = if is_certain { state } else { runtime.wait_state(state, call.caller.addr()) };
        let (state, ns) = runtime.own_wait(times, (state, ns), WaitFrame(call.frame));
        add_time(span, state, ns);
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

    /// The thread that it is of, as [`current_flow`](crate::current_flow) numbers it.
    pub fn flow(&self) -> u64 {
        self.flow
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
    fn an_expiry_takes_nothing_off_but_what_may_be_cpu_time_as_a_whole() {
        let function = |name| (0..).find(|number| modules::name(*number as usize) == Some(name)).unwrap();
        let left = |name, state, took_ns| without_cpu(function(name), state, took_ns, 7);
        assert_eq!([left("recv", State::Io, LONG_NS - 1), left("readv", State::Io, LONG_NS)], [7, 7]);
        for (name, state) in [("recv", State::Io), ("getaddrinfo", State::Name), ("nanosleep", State::Sleep)] {
            assert_eq!(left(name, state, LONG_NS), LONG_NS);
        }
        assert_eq!(left("nanosleep", State::Sleep, LONG_NS - 1), LONG_NS - 1);
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
