//! How threads are sampled, and what is told of those that are and of those that are not.

use crate::profile_type::SampleClock;
use crate::stats::Tally;

/// A profiler's number: what one that was given up does late changes nothing of the one after it. The later the higher.
pub(crate) type Owner = u64;

/// Samples that no handler took: weight that a thread's clock says is due, without a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unseen {
    pub(crate) why: Why,
    pub(crate) expiries: u64,
    pub(crate) weight: u64,
}

/// Why nobody saw the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It ran before its timer was made.
    Starting,
    /// It ended before the kernel's tick told of the expiry.
    Ended,
    /// The profiler stopped before that.
    Stopped,
}

/// How threads are sampled, while a profiler runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampling {
    pub(crate) owner: Owner,
    pub(crate) clock: SampleClock,
    pub(crate) period_ns: u64,
    /// Whether threads get timers; without, there are only samples that they take themselves.
    pub(crate) timers: bool,
    pub(crate) signal: i32,
    pub(crate) ring_bytes: usize,
    /// Whether it matters how long threads stand in the run queue.
    pub(crate) run_queues: bool,
    pub(crate) report: Report,
}

/// The CPU time of the process for which no sample stands yet.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    /// What the process had used the last time.
    pub(super) cpu_ns: u64,
    pub(super) owed_ns: u64,
    /// Whether a thread was reminded then.
    pub(super) late: bool,
    /// Expiries of threads that ended since.
    pub(super) ended: u64,
}

/// Which tags describe threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    pub(crate) id: bool,
    pub(crate) name: bool,
}

/// What a thread that is not sampled has none of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsampled {
    /// The kernel's answer to timer_create.
    Timer(i32),
    /// A timer takes one of the signals that may be pending for the user, and the last of them are left to the host.
    PendingSignals,
    /// All rings together have as much memory as they may have, or the kernel gives no more.
    Ring,
}

/// Counts over all threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) written: Tally,
    pub(crate) dropped: Tally,
    /// Of those dropped: for which an alternate signal stack had no room.
    pub(crate) cramped: u64,
    /// Of those dropped: waits whose threads had no record, or took a sample just then.
    pub(crate) waits_dropped: u64,
    pub(crate) deferred: u64,
    pub(crate) handler_ns: u64,
    pub(crate) threads: u64,
    pub(crate) without_timer: u64,
    pub(crate) without_ring: u64,
}
