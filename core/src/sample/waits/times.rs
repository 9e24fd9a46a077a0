//! Exact sums by span: each wait is added to the [`SpanTimes`](crate::SpanTimes) of the span that the thread is in, before it is
//! chosen for a sample or not.
//!
//! They are of the time in which the span itself was current, as its samples are: a child span that has an own record has its own. Time
//! of a flow that is not the span's own is beside it and not added, so no sum is more than the span's wall time.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use super::block::{Block, Call, Held, LONG_NS};
use super::flow::{self, current_flow, is_concurrent};
use super::modules;
use crate::context::span_record::SpanRecord;
use crate::context::span_times::SpanTimes;
use crate::os::clock;
use crate::sample::handler;
use crate::sample::record;
use crate::sample::runtime::{Runtime, WaitFrame};
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
    if let Some(times) = own_times(span, state) {
        times.add(state, ns);
    }
}

/// Those of a span whose own flow runs.
#[inline]
fn own_times(span: &SpanRecord, state: State) -> Option<&SpanTimes> {
    span.times().filter(|_| !is_concurrent(span.flow(), state))
}

/// What of a wait is no CPU time, for exact sums.
///
/// The samples' way (`Block::without_cpu`) is right on average: an expiry of the thread's timer within a call takes a whole period off
/// it and those after it. Of one span's sleep that would take 10 ms, for microseconds that were CPU time. So only what may be CPU time
/// as a whole loses it: short calls that copy, as a `read` of what is in memory, and those that may copy much without its being known. One
/// that waits for several things at once (`polls`) copies nothing, and may be a sleep of the host's.
pub(super) fn without_cpu(function: u32, polls: bool, state: State, took_ns: u64, sampled_ns: u64) -> u64 {
    let is_less = sampled_ns != took_ns && !polls && matches!(state, State::Io | State::Name);
    if is_less && (took_ns < LONG_NS || may_be_cpu_time(function)) { sampled_ns } else { took_ns }
}

/// Whether a function may copy more than the wrappers know of, who read the thread's clock for what is much, or may free or find a file's
/// room, which is CPU time where the file system is memory.
fn may_be_cpu_time(function: u32) -> bool {
    let name = usize::try_from(function).ok().and_then(modules::name);
    name.is_some_and(|name| {
        name.ends_with("msg")
            || name.contains("readv")
            || name.contains("writev")
            || name.contains("truncate")
            || name.contains("fallocate")
            || name.starts_with("rename")
            || name.contains("open")
            || name.starts_with("unlink")
            || matches!(name, "fflush" | "fgets" | "getline" | "getdelim" | "close" | "fclose" | "remove" | "msync")
    })
}

/// A wait of the calling thread, of which the last part was for the interpreter's lock.
#[cold]
pub(super) fn add_wait(block: &mut Block, call: &Call, (state, ns): (State, u64), (lock_state, lock_ns): (State, u64)) {
    let Some((runtime, span, times)) = current() else { return };
    let is_short = call.took_ns < LONG_NS;
    if ns > 0 {
        let state = state as u64 | if is_short { SHORT } else { 0 };
        let time = Held { ns, state, caller: call.caller.addr(), times: ptr::from_ref(times).addr() };
        add_when_known(block, (runtime, span, times), time, WaitFrame(call.frame));
    }
    if lock_ns > 0 {
        add(span, lock_state, lock_ns, is_short);
    }
}

/// Beside a held state's number: a call of less than [`LONG_NS`].
const SHORT: u64 = 1 << 32;

fn add(span: &SpanRecord, state: State, ns: u64, is_short: bool) {
    match own_times(span, state) {
        Some(times) if is_short => times.add_short(state, ns),
        Some(times) => times.add(state, ns),
        None => {}
    }
}

/// What was held as the stack could not be read: now it can, or it is held on.
pub(super) fn settle(block: &mut Block) {
    let held = block.take_held();
    if held.iter().all(|time| time.ns == 0) {
        return;
    }
    let Some(current @ (_, _, times)) = current() else { return };
    for time in held {
        if time.ns > 0 && time.times == ptr::from_ref(times).addr() {
            add_when_known(block, current, time, WaitFrame::LEFT);
        }
    }
}

type Current<'a> = (&'static dyn Runtime, &'a SpanRecord, &'a SpanTimes);

/// The span with times in which the calling thread is.
fn current<'a>() -> Option<Current<'a>> {
    let runtime = handler::runtime()?;
    // Spans with times are the hosts', who find them without a record: the thread may have none yet.
    // SAFETY: the calling thread is asked about itself.
    let context = unsafe { runtime.context(record::nobody(), ptr::null()) };
    // SAFETY: null, or current on this thread, so it is there.
    let span = unsafe { context.span.as_ref() }?;
    // SAFETY: takes nothing and cannot fail.
    let times = span.times().filter(|_| unsafe { libc::getpid() } == PROCESS.load(Ordering::Relaxed))?;
    Some((runtime, span, times))
}

/// Adds it in the state that the stack says, or in the call's own where that cannot be known; else it is held.
fn add_when_known(block: &mut Block, (runtime, span, times): Current<'_>, time: Held, frame: WaitFrame) {
    let add = |state, ns| {
        let (state, ns) = runtime.own_wait(times, (state, ns), frame);
        add(span, state, ns, time.state & SHORT != 0);
    };
    let state_of = |time: Held| u32::try_from(time.state & !SHORT).ok().and_then(State::of).unwrap_or_default();
    // SAFETY: the calling thread is asked about itself.
    let is_hidden = time.caller != 0 && unsafe { runtime.defers(record::nobody()) };
    if !is_hidden {
        let state = if time.caller == 0 { state_of(time) } else { runtime.wait_state(state_of(time), time.caller) };
        add(state, time.ns);
        return;
    }
    let mutex = runtime.interpreter_mutex();
    if mutex.is_null() || !block.hold_time(mutex, time) {
        add(state_of(time), time.ns);
    }
}

thread_local! {
    /// Counts which of this thread's spans [entered](SpanCpu::enter) last.
    static ENTRIES: Cell<u64> = const { Cell::new(0) };
}

/// The CPU time of a span's own thread while the span is current there.
///
/// Whoever makes the span tells when that begins and ends. Where the thread meanwhile went into another span, and nobody said that it left
/// this one, as in a loop that runs within a span and serves others, the time is not known.
#[derive(Debug, Default)]
pub struct SpanCpu {
    /// The thread's CPU time as it entered, 0: the span is not current there.
    since_ns: AtomicU64,
    /// Until then; [`UNKNOWN`](Self::UNKNOWN).
    sum_ns: AtomicU64,
    /// As the thread counted when it entered last; 0: it never did.
    entry: AtomicU64,
}

impl SpanCpu {
    const UNKNOWN: u64 = u64::MAX;

    /// The calling thread is in the span from now on. `flow`: the span's own; in another one it does nothing, as in a coroutine, whose
    /// thread does other things as well, and where flows are not known. 0.3 µs: a system call.
    pub fn enter(&self, flow: u64) {
        let entry = ENTRIES.get() + 1;
        ENTRIES.set(entry);
        if current_flow() == flow && flow::is_of_thread(flow) {
            self.entry.store(entry, Ordering::Relaxed);
            self.since_ns.store(own_cpu_ns().max(1), Ordering::Relaxed);
        }
    }

    /// The calling thread is in the span no more.
    pub fn leave(&self, flow: u64) {
        if self.since_ns.load(Ordering::Relaxed) != 0 && current_flow() == flow {
            self.sum_ns.store(self.total_ns(flow).unwrap_or(Self::UNKNOWN), Ordering::Relaxed);
            self.since_ns.store(0, Ordering::Relaxed);
        }
    }

    /// The time is not known, and will not be: the span's own thread went into it or out of it where it runs for others too. Others do
    /// nothing.
    pub fn forget(&self, flow: u64) {
        if flow == 0 || current_flow() == flow {
            self.sum_ns.store(Self::UNKNOWN, Ordering::Relaxed);
            self.since_ns.store(0, Ordering::Relaxed);
        }
    }

    /// The time so far. `None` where it is not known: in another flow, or if this one was never in the span.
    pub fn total_ns(&self, flow: u64) -> Option<u64> {
        let (since, entry) = (self.since_ns.load(Ordering::Relaxed), self.entry.load(Ordering::Relaxed));
        let sum = Some(self.sum_ns.load(Ordering::Relaxed)).filter(|sum| *sum != Self::UNKNOWN)?;
        if entry == 0 || current_flow() != flow {
            return None;
        }
        match since {
            0 => Some(sum),
            _ => (ENTRIES.get() == entry).then(|| sum.saturating_add(own_cpu_ns().saturating_sub(since))),
        }
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

    #[test]
    fn an_expiry_takes_nothing_off_but_what_may_be_cpu_time_as_a_whole() {
        let function = |name| (0..).find(|number| modules::name(*number as usize) == Some(name)).unwrap();
        let left = |name, state, took_ns| without_cpu(function(name), false, state, took_ns, 7);
        assert_eq!([left("recv", State::Io, LONG_NS - 1), left("readv", State::Io, LONG_NS)], [7, 7]);
        for name in ["close", "unlink", "rename", "ftruncate64", "posix_fallocate", "openat64", "fopen64"] {
            assert_eq!(left(name, State::Io, LONG_NS), 7, "{name}: to find or free room may be CPU time");
        }
        for (name, state) in [("recv", State::Io), ("getaddrinfo", State::Name), ("nanosleep", State::Sleep)] {
            assert_eq!(left(name, state, LONG_NS), LONG_NS);
        }
        assert_eq!(left("nanosleep", State::Sleep, LONG_NS - 1), LONG_NS - 1);
        assert_eq!(without_cpu(function("ppoll"), true, State::Io, LONG_NS - 1, 7), LONG_NS - 1);
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

    fn burn(ms: u128) {
        let began = clock::own_thread_cpu();
        while (clock::own_thread_cpu() - began).as_millis() < ms {}
    }

    #[test]
    fn cpu_time_is_that_of_its_own_thread_outside_of_coroutines_and_while_it_is_there() {
        let (cpu, own) = (SpanCpu::default(), current_flow());
        assert_eq!(cpu.total_ns(own), None, "it was never there");
        burn(20);
        for _ in 0..2 {
            cpu.enter(own);
            burn(10);
            assert_eq!(std::thread::scope(|scope| scope.spawn(|| cpu.total_ns(own)).join().unwrap()), None);
            std::thread::scope(|scope| scope.spawn(|| cpu.leave(own)).join().unwrap());
            cpu.leave(own);
            burn(20);
        }
        let known = cpu.total_ns(own);
        assert!((20_000_000..40_000_000).contains(&known.unwrap()));
        std::thread::scope(|scope| scope.spawn(|| cpu.forget(own)).join().unwrap());
        assert_eq!(cpu.total_ns(own), known);
        // SAFETY: this thread's own.
        let flow = unsafe { &*own_flow() };
        flow.set(7);
        cpu.enter(7);
        assert_eq!(
            [cpu.total_ns(7), cpu.total_ns(own)],
            [Some(known.unwrap()), None],
            "in a coroutine nothing is added"
        );
        flow.set(0);
    }

    #[test]
    fn cpu_time_is_not_known_where_the_thread_went_into_another_span_without_leaving_the_first() {
        let (outer, inner, own) = (SpanCpu::default(), SpanCpu::default(), current_flow());
        outer.enter(own);
        inner.enter(own);
        inner.leave(own);
        assert_eq!([outer.total_ns(own).is_some(), inner.total_ns(own).is_some()], [false, true]);
        outer.leave(own);
        outer.enter(own);
        assert_eq!(outer.total_ns(own), None, "nor is it later");
        inner.forget(own);
        assert_eq!(inner.total_ns(own), None);
    }
}
