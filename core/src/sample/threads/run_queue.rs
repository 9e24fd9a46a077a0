//! How long threads were ready to run and had no processor: other threads had them, or the container had used up its share.
//!
//! By the clock a thread's time is what it ran, what it waited, and the rest. Its handler notes the rest at each expiry of its timer
//! ([`ThreadRecord::note_ready`](crate::sample::record::ThreadRecord::note_ready)). In that rest are also waits that no wrapper saw; the
//! kernel counts how long the thread stood in the queue (schedstat), in which are also the ends of waits, from being woken to running.
//! Of two instants the smaller difference counts, so neither can be taken for the queue. The kernel is asked at a drain, which comes
//! later than the newest expiry: what it counted in between is for the next time. Two microseconds a thread, once a drain.

use std::collections::HashMap;

use crate::os::clock;
use crate::sample::record::RECORDS;

/// What was known of a thread when it was last asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    generation: u32,
    rest_ns: u64,
    queued_ns: u64,
    /// What may have been counted as queued since the newest expiry.
    late_ns: u64,
}

/// The threads that were asked, by the number of their record.
#[derive(Debug, Default)]
pub(crate) struct RunQueues {
    seen: HashMap<u32, Seen>,
}

impl RunQueues {
    /// How long a thread stood in the queue since this was last asked of it, as of its newest expiry; 0 the first time.
    pub(crate) fn ready_ns(&mut self, number: u32, tid: i32) -> u64 {
        let Some(record) = RECORDS.get(number as usize) else { return 0 };
        let (rest_ns, generation) = record.ready();
        let Some(queued_ns) = queued_ns(tid) else { return 0 };
        let late_ns = clock::monotonic_ns().saturating_sub(record.sampled_ns());
        self.advance(number, Seen { generation, rest_ns, queued_ns, late_ns })
    }

    /// The thread's number may be another one's next.
    pub(crate) fn forget(&mut self, number: u32) {
        self.seen.remove(&number);
    }

    fn advance(&mut self, number: u32, mut now: Seen) -> u64 {
        // Without memory for one more thread nothing is known of it.
        if self.seen.try_reserve(1).is_err() {
            return 0;
        }
        let before = self.seen.get(&number).filter(|before| before.generation == now.generation);
        let ready_ns = before.map_or(0, |before| {
            let queued = now.queued_ns.saturating_sub(before.queued_ns) + before.late_ns;
            // An expiry may come at the end of a wait that is not noted yet; then the next rest is less by it.
            let rest = now.rest_ns.wrapping_sub(before.rest_ns).cast_signed();
            let ready = u64::try_from(rest).unwrap_or(0).min(queued);
            now.late_ns = now.late_ns.min(queued - ready);
            ready
        });
        self.seen.insert(number, now);
        ready_ns
    }
}

/// How long the kernel says that a thread stood in the queue; `None` where it does not say, or the thread is gone.
fn queued_ns(tid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(rest_ns: u64, queued_ns: u64) -> Seen {
        Seen { generation: 7, rest_ns, queued_ns, late_ns: 0 }
    }

    #[test]
    fn of_the_rest_of_a_threads_time_and_its_queue_the_smaller_difference_counts() {
        let mut queues = RunQueues::default();
        // The rest is a difference of clocks, below nothing at first.
        let start = 0_u64.wrapping_sub(50);
        assert_eq!(queues.advance(1, seen(start, 1_000)), 0);
        // All of it, less as a wait was not seen, less as waits' ends were in the queue.
        assert_eq!(queues.advance(1, seen(start.wrapping_add(80), 1_080)), 80);
        assert_eq!(queues.advance(1, seen(start.wrapping_add(10_080), 1_100)), 20);
        assert_eq!(queues.advance(1, seen(start.wrapping_add(10_090), 9_000)), 10);
        // A wait that was noted late.
        assert_eq!(queues.advance(1, seen(start.wrapping_add(90), 9_500)), 0);
        assert_eq!(queues.advance(1, seen(start.wrapping_add(100), 9_510)), 10);
    }

    #[test]
    fn what_was_queued_after_the_newest_expiry_is_for_the_next_time() {
        let mut queues = RunQueues::default();
        queues.advance(1, seen(0, 0));
        assert_eq!(queues.advance(1, Seen { late_ns: 30, ..seen(50, 100) }), 50);
        assert_eq!(queues.advance(1, Seen { late_ns: 0, ..seen(140, 160) }), 90);
        assert_eq!(queues.advance(1, seen(240, 170)), 10);
    }

    #[test]
    fn another_thread_in_the_same_record_begins_anew() {
        let mut queues = RunQueues::default();
        queues.advance(1, seen(0, 0));
        assert_eq!(queues.advance(1, Seen { generation: 8, ..seen(500, 500) }), 0);
        queues.forget(1);
        assert_eq!(queues.advance(1, Seen { generation: 8, ..seen(900, 900) }), 0);
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
