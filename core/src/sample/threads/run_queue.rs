//! How long threads were ready to run and had no processor: other threads had them, or the container had used up its share.
//!
//! By the clock a thread's time is what it ran, what it waited, and the rest, which its samples and its spans that end
//! [claim](super::super::waits::claim). In that rest may also be waits that no wrapper saw; the kernel counts how long the thread stood in the
//! queue (schedstat), in which are also the ends of waits, from being woken to running. Of the time between two drains at which it was asked
//! the smaller number counts, so neither can be taken for the queue: claims get as much as the kernel's number is of all of them, and all of it
//! where that is more. It is asked later than the thread claimed last: what it counted in between is for the next time.
//! Three microseconds a thread, once a drain that read anything of it, and where it gets a record and loses it, these with the registry's lock
//! held; what threads that do not announce their end stood in the queue for since the last drain before it is lost.

use std::collections::HashMap;

use crate::os::clock;
use crate::sample::record::RECORDS;

/// How much of its claims a thread gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    ready_ns: u64,
    claimed_ns: u64,
}

impl Part {
    /// So many nanoseconds of those that were claimed.
    pub(crate) fn new(ready_ns: u64, claimed_ns: u64) -> Self {
        Self { ready_ns, claimed_ns }
    }

    /// Of one claim.
    pub(crate) fn of(self, claimed_ns: u64) -> u64 {
        let part = u128::from(claimed_ns) * u128::from(self.ready_ns) / u128::from(self.claimed_ns.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

/// What was known of a thread when it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// What it had claimed, and what the kernel had counted.
    claimed_ns: u64,
    queued_ns: u64,
    /// What may have been counted since it claimed last.
    late_ns: u64,
    part: Part,
}

/// The threads that were asked, by the number of their record.
#[derive(Debug, Default)]
pub(crate) struct RunQueues {
    seen: HashMap<u32, Seen>,
}

impl RunQueues {
    /// How much a thread gets of what it claims, `None` if it has ended: by its time since this was last asked of it, the first time since it
    /// got its record.
    pub(crate) fn part(&mut self, number: u32, tid: Option<i32>) -> Part {
        let Some(record) = RECORDS.get(number as usize) else { return Part::default() };
        let (claimed_ns, claimed_at_ns) = record.claimed();
        let queued_ns = tid.and_then(queued_ns).or_else(|| record.take_queued_at_end_ns());
        let Some(queued_ns) = queued_ns else {
            return self.seen.get(&number).map(|seen| seen.part).unwrap_or_default();
        };
        let late_ns = clock::monotonic_ns().saturating_sub(claimed_at_ns);
        let at_start = record.queued_at_start_ns().map(|queued_ns| Seen { queued_ns, ..Seen::default() });
        self.advance(number, at_start, Seen { claimed_ns, queued_ns, late_ns, part: Part::default() })
    }

    /// The thread's number may be another one's next.
    pub(crate) fn forget(&mut self, number: u32) {
        self.seen.remove(&number);
    }

    fn advance(&mut self, number: u32, at_start: Option<Seen>, mut now: Seen) -> Part {
        // Without memory for one more thread nothing is known of it.
        if self.seen.try_reserve(1).is_err() {
            return Part::default();
        }
        let Some(before) = self.seen.get(&number).copied().or(at_start) else {
            self.seen.insert(number, Seen { late_ns: 0, ..now });
            return Part::default();
        };
        let queued_ns = now.queued_ns.saturating_sub(before.queued_ns) + before.late_ns;
        let claimed_ns = now.claimed_ns.saturating_sub(before.claimed_ns);
        let ready_ns = claimed_ns.min(queued_ns);
        now.late_ns = now.late_ns.min(queued_ns - ready_ns);
        // A claim is counted before it is in the ring, so it may be read a drain later.
        now.part = if claimed_ns == 0 { before.part } else { Part::new(ready_ns, claimed_ns) };
        self.seen.insert(number, now);
        now.part
    }
}

/// How long the kernel says that a thread stood in the queue; `None` where it does not say, or the thread is gone.
pub(super) fn queued_ns(tid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(claimed_ns: u64, queued_ns: u64) -> Seen {
        Seen { claimed_ns, queued_ns, ..Seen::default() }
    }

    #[test]
    fn of_what_a_thread_claims_and_what_the_kernel_counts_the_smaller_difference_counts() {
        let mut queues = RunQueues::default();
        assert_eq!(queues.advance(1, None, seen(50, 1_000)), Part::default());
        // All of it, less as a wait was not seen, less as waits' ends were in the queue.
        assert_eq!(queues.advance(1, None, seen(130, 1_080)), Part::new(80, 80));
        assert_eq!(queues.advance(1, None, seen(10_130, 1_100)), Part::new(20, 10_000));
        assert_eq!(queues.advance(1, None, seen(10_140, 9_000)), Part::new(10, 10));
        // One that was counted at the drain before, and read at this one.
        assert_eq!(queues.advance(1, None, seen(10_140, 9_100)), Part::new(10, 10));
    }

    #[test]
    fn a_claim_gets_its_part_and_not_more() {
        assert_eq!(
            [Part::new(20, 80).of(40), Part::new(80, 80).of(3_000_000_000), Part::default().of(40)],
            [10, 3_000_000_000, 0]
        );
        assert_eq!(Part::new(u64::MAX, 1).of(u64::MAX), u64::MAX);
    }

    #[test]
    fn what_was_queued_after_the_newest_claim_is_for_the_next_time() {
        let mut queues = RunQueues::default();
        queues.advance(1, None, seen(0, 0));
        assert_eq!(queues.advance(1, None, Seen { late_ns: 30, ..seen(50, 100) }), Part::new(50, 50));
        assert_eq!(queues.advance(1, None, seen(140, 160)), Part::new(90, 90));
        assert_eq!(queues.advance(1, None, seen(240, 170)), Part::new(10, 100));
    }

    #[test]
    fn another_thread_in_the_same_record_begins_anew_or_where_its_start_is_known() {
        let mut queues = RunQueues::default();
        queues.advance(1, None, seen(0, 0));
        queues.forget(1);
        assert_eq!(queues.advance(1, None, seen(900, 900)), Part::default());
        queues.forget(1);
        assert_eq!(queues.advance(1, Some(seen(0, 5)), seen(70, 95)), Part::new(70, 70));
        assert_eq!(queues.advance(1, Some(seen(0, 5)), seen(90, 99)), Part::new(4, 20));
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
