//! How long threads were ready to run and had no processor: other threads had them, or the container had used up its share.
//!
//! By the clock a thread's time is what it ran, what it waited, and the rest. Its handler notes the rest at each expiry of its timer
//! ([`ThreadRecord::note_ready`](crate::sample::record::ThreadRecord::note_ready)). In that rest are also waits that no wrapper saw; the
//! kernel counts how long the thread stood in the queue (schedstat), in which are also the ends of waits, from being woken to running.
//! Of two instants the smaller difference counts, so neither can be taken for the queue. The kernel is asked at a drain, which comes
//! later than the newest expiry: what it counted in between is for the next time. Whose it is samples [claim](super::super::waits::claim).
//! Three microseconds a thread, once a drain, and at the
//! start and the end of a thread that announces them, these with the registry's lock held; what others stood in the queue for since the
//! last drain before their end is lost.

use std::collections::HashMap;

use crate::os::{clock, thread_id};
use crate::sample::record::{RECORDS, ThreadRecord};
use crate::sample::waits::wrappers;

/// What was known of a thread when it was last asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    rest_ns: u64,
    queued_ns: u64,
    /// What may have been counted as queued since the newest expiry.
    late_ns: u64,
    /// What nobody has claimed yet.
    left_ns: u64,
}

/// The threads that were asked, by the number of their record.
#[derive(Debug, Default)]
pub(crate) struct RunQueues {
    seen: HashMap<u32, Seen>,
}

impl RunQueues {
    /// Takes so much at most of the time that a thread stood in the queue. Claims and the newest expiry are not of one instant, so what is
    /// left is to be had the next time, and half of it the time after that.
    pub(crate) fn take_ns(&mut self, number: u32, tid: Option<i32>, most_ns: u64) -> u64 {
        let ready_ns = self.ready_ns(number, tid);
        let Some(seen) = self.seen.get_mut(&number) else { return 0 };
        Self::take_of(seen, ready_ns, most_ns)
    }

    fn take_of(seen: &mut Seen, ready_ns: u64, most_ns: u64) -> u64 {
        let taken_ns = (seen.left_ns + ready_ns).min(most_ns);
        // What was left first goes first.
        let (old_ns, spent_ns) = (seen.left_ns.saturating_sub(taken_ns), taken_ns.saturating_sub(seen.left_ns));
        seen.left_ns = old_ns / 2 + ready_ns - spent_ns;
        taken_ns
    }

    /// How long a thread, `None` if it has ended, stood in the queue since this was last asked of it, as of its newest expiry. The first
    /// time since it started; 0 if it did before the profiler.
    fn ready_ns(&mut self, number: u32, tid: Option<i32>) -> u64 {
        let Some(record) = RECORDS.get(number as usize) else { return 0 };
        let queued_ns = tid.and_then(queued_ns).or_else(|| record.take_queued_at_end_ns());
        let Some(queued_ns) = queued_ns else { return 0 };
        let late_ns = clock::monotonic_ns().saturating_sub(record.noted_ns());
        let at_start =
            record.ready_at_start_ns().map(|(rest_ns, queued_ns)| Seen { rest_ns, queued_ns, late_ns: 0, left_ns: 0 });
        self.advance(number, at_start, Seen { rest_ns: record.ready_ns(), queued_ns, late_ns, left_ns: 0 })
    }

    /// The thread's number may be another one's next.
    pub(crate) fn forget(&mut self, number: u32) {
        self.seen.remove(&number);
    }

    fn advance(&mut self, number: u32, at_start: Option<Seen>, mut now: Seen) -> u64 {
        // Without memory for one more thread nothing is known of it.
        if self.seen.try_reserve(1).is_err() {
            return 0;
        }
        let before = self.seen.get(&number).copied().or(at_start);
        let ready_ns = before.map_or(0, |before| {
            let queued = now.queued_ns.saturating_sub(before.queued_ns) + before.late_ns;
            // An expiry may come at the end of a wait that is not noted yet; then the next rest is less by it.
            let rest = now.rest_ns.wrapping_sub(before.rest_ns).cast_signed();
            let ready = u64::try_from(rest).unwrap_or(0).min(queued);
            now.late_ns = now.late_ns.min(queued - ready);
            now.left_ns = before.left_ns;
            ready
        });
        self.seen.insert(number, now);
        ready_ns
    }
}

/// The rest and the queue of a thread that gets this record; `until_expiry_ns` is the CPU time to its next expiry.
pub(super) fn at_start(record: &ThreadRecord, tid: i32, until_expiry_ns: u64) -> Option<(u64, u64)> {
    let ran_ns = record.period_ns().saturating_sub(until_expiry_ns);
    // How long another thread waited before is not known; without that it has more of the rest already, so less is to come.
    let waited_ns = if tid == thread_id::tid() { wrappers::waited_ns() } else { 0 };
    Some((clock::monotonic_ns().wrapping_sub(waited_ns).wrapping_sub(ran_ns), queued_ns(tid)?))
}

/// How long the kernel says that a thread stood in the queue; `None` where it does not say, or the thread is gone.
pub(super) fn queued_ns(tid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(rest_ns: u64, queued_ns: u64) -> Seen {
        Seen { rest_ns, queued_ns, late_ns: 0, left_ns: 0 }
    }

    #[test]
    fn of_the_rest_of_a_threads_time_and_its_queue_the_smaller_difference_counts() {
        let mut queues = RunQueues::default();
        // The rest is a difference of clocks, below nothing at first.
        let start = 0_u64.wrapping_sub(50);
        assert_eq!(queues.advance(1, None, seen(start, 1_000)), 0);
        // All of it, less as a wait was not seen, less as waits' ends were in the queue.
        assert_eq!(queues.advance(1, None, seen(start.wrapping_add(80), 1_080)), 80);
        assert_eq!(queues.advance(1, None, seen(start.wrapping_add(10_080), 1_100)), 20);
        assert_eq!(queues.advance(1, None, seen(start.wrapping_add(10_090), 9_000)), 10);
        // A wait that was noted late.
        assert_eq!(queues.advance(1, None, seen(start.wrapping_add(90), 9_500)), 0);
        assert_eq!(queues.advance(1, None, seen(start.wrapping_add(100), 9_510)), 10);
    }

    #[test]
    fn what_was_queued_after_the_newest_expiry_is_for_the_next_time() {
        let mut queues = RunQueues::default();
        queues.advance(1, None, seen(0, 0));
        assert_eq!(queues.advance(1, None, Seen { late_ns: 30, ..seen(50, 100) }), 50);
        assert_eq!(queues.advance(1, None, Seen { late_ns: 0, ..seen(140, 160) }), 90);
        assert_eq!(queues.advance(1, None, seen(240, 170)), 10);
    }

    #[test]
    fn what_nobody_claims_is_to_be_had_the_next_time_and_half_of_it_later() {
        let mut queues = RunQueues::default();
        queues.advance(1, None, seen(0, 0));
        let mut take = |rest_ns, most_ns| {
            let ready_ns = queues.advance(1, None, seen(rest_ns, rest_ns));
            RunQueues::take_of(queues.seen.get_mut(&1).unwrap(), ready_ns, most_ns)
        };
        assert_eq!([take(100, 60), take(110, 30), take(110, 0), take(110, 100)], [60, 30, 0, 7]);
    }

    #[test]
    fn another_thread_in_the_same_record_begins_anew_or_where_its_start_is_known() {
        let mut queues = RunQueues::default();
        queues.advance(1, None, seen(0, 0));
        queues.forget(1);
        assert_eq!(queues.advance(1, None, seen(900, 900)), 0);
        queues.forget(1);
        assert_eq!(queues.advance(1, Some(seen(1_000, 5)), seen(1_070, 95)), 70);
        assert_eq!(queues.advance(1, Some(seen(1_000, 5)), seen(1_090, 99)), 4);
    }

    #[test]
    fn the_kernel_says_how_long_this_thread_was_queued() {
        let Some(before) = queued_ns(crate::os::thread_id::tid()) else {
            println!("skipped: this kernel keeps no schedstat");
            return;
        };
        assert!(queued_ns(crate::os::thread_id::tid()).is_some_and(|after| after >= before));
        assert_eq!(queued_ns(-1), None);
    }
}
