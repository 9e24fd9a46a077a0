//! A thread, as the handler sees it: what it counts, where its span and its ring are.
//!
//! Records lie in one static array, so a signal that comes late never finds freed memory. A record has a generation,
//! which the timer's signal carries: the handler enters a record only if the generations agree, and whoever retires a
//! record first moves its generation on and then waits until no handler is inside. From then on its ring is no one's.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence};

use super::gate::Gate;
use super::ring::Ring;
use crate::context::current::Context;
use crate::context::span_slot::Slot;
use crate::context::tags::TagSetId;
use crate::stats::Tally;

/// Threads that can be sampled at once; more are counted as unsampled.
pub(super) const MAX_THREADS: usize = 8_192;

/// A thread, as the handler sees it.
#[derive(Debug)]
pub struct ThreadRecord {
    pub(super) gate: Gate,
    pub(super) thread_tags: AtomicU32,
    pub(super) slot: AtomicPtr<Slot>,
    pub(super) period_ns: AtomicU64,
    pub(super) expiries: AtomicU64,
    /// Those of them of which the timer is yet to tell, and what the thread's clock shows at the first of all.
    pub(super) ahead: AtomicU64,
    pub(super) first_ns: AtomicU64,
    /// What the thread [claimed](super::waits::claim) of its time in the run queue since it has this record, also where no sample says it.
    claimed_ns: AtomicU64,
    /// When that was last looked at; later than any instant before the first time.
    claimed_at_ns: AtomicU64,
    /// Its nanoseconds in the run queue by the kernel's count when it got this record, and when it lost it; [`UNKNOWN`] if nobody asked.
    queued_ns: [AtomicU64; 2],
    /// Expiries that found no moment to sample, and how many of them later samples took up.
    pub(super) deferred: AtomicU64,
    pub(super) taken_up: AtomicU64,
    /// Its timer was late and was set anew: so many signals that come tell only that, and the thread's clock tells of how many expiries.
    /// Two, as one of before may be on its way, and the timer may expire while the clock is read.
    pub(super) reminded: AtomicU32,
    /// Somebody outside the handler writes the ring, on this thread.
    busy: AtomicBool,
    pub(super) written_samples: AtomicU64,
    pub(super) written_weight: AtomicU64,
    pub(super) dropped_samples: AtomicU64,
    pub(super) dropped_weight: AtomicU64,
    /// Of those dropped: for which an alternate signal stack had no room.
    pub(super) cramped: AtomicU64,
    pub(super) handler_ns: AtomicU64,
    /// When the newest sample's handler ended, how long it took, and how often in a row the program got less time than that.
    ended_ns: AtomicU64,
    took_ns: AtomicU64,
    starved: AtomicU32,
    pub(super) ring: Ring,
}

// Rings are told by where they are, in units of 64 bytes and by a number of sixteen bits.
const _: () = assert!(size_of::<ThreadRecord>() >= 64 && size_of::<ThreadRecord>() * MAX_THREADS <= 64 << 16);

/// No number of nanoseconds.
const UNKNOWN: u64 = u64::MAX;

/// What `reminded` begins with.
pub(super) const REMINDED: u32 = 2;

/// So often in a row a sample may take longer than the program ran since the one before.
const MAX_STARVED: u32 = 8;

pub(super) static RECORDS: [ThreadRecord; MAX_THREADS] = [const { ThreadRecord::unused() }; MAX_THREADS];

/// A record of no thread, for one that has none yet: without span of the core's own, and without ring.
pub(super) fn nobody() -> &'static ThreadRecord {
    static NOBODY: ThreadRecord = ThreadRecord::unused();
    &NOBODY
}

/// The record that a timer's signal value names.
#[inline]
pub(crate) fn by_signal_value(value: u64) -> Option<&'static ThreadRecord> {
    RECORDS.get((value & 0xffff_ffff) as usize)
}

impl ThreadRecord {
    const fn unused() -> Self {
        Self {
            gate: Gate { generation: AtomicU32::new(0), inside: AtomicU32::new(0), live: AtomicBool::new(false) },
            thread_tags: AtomicU32::new(0),
            slot: AtomicPtr::new(ptr::null_mut()),
            period_ns: AtomicU64::new(0),
            expiries: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            first_ns: AtomicU64::new(u64::MAX),
            claimed_ns: AtomicU64::new(0),
            claimed_at_ns: AtomicU64::new(u64::MAX),
            queued_ns: [const { AtomicU64::new(UNKNOWN) }; 2],
            deferred: AtomicU64::new(0),
            taken_up: AtomicU64::new(0),
            reminded: AtomicU32::new(0),
            busy: AtomicBool::new(false),
            written_samples: AtomicU64::new(0),
            written_weight: AtomicU64::new(0),
            dropped_samples: AtomicU64::new(0),
            dropped_weight: AtomicU64::new(0),
            cramped: AtomicU64::new(0),
            handler_ns: AtomicU64::new(0),
            ended_ns: AtomicU64::new(0),
            took_ns: AtomicU64::new(0),
            starved: AtomicU32::new(0),
            ring: Ring::without_memory(),
        }
    }

    /// Enters the record for a signal with `value`; false = it is not for this generation. `leave` must follow either way.
    #[inline]
    pub(crate) fn enter(&self, value: u64) -> bool {
        let generation = (value >> 32) as u32;
        self.gate.enter(generation)
    }

    /// Whether the record is still the one that `value` names.
    #[inline]
    pub(crate) fn is_for(&self, value: u64) -> bool {
        self.gate.generation.load(Ordering::Relaxed) == (value >> 32) as u32 && self.gate.live.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn leave(&self) {
        self.gate.leave();
    }

    /// The span of the core's own slot, with no context tags: what [`Runtime::context`](super::runtime::Runtime::context)
    /// answers for a host without a context of its own.
    #[inline]
    pub fn slot_context(&self) -> Context {
        let slot = self.slot.load(Ordering::Relaxed);
        // SAFETY: slots are never freed.
        let span = unsafe { slot.as_ref() }.map_or(ptr::null(), Slot::current);
        Context { span, tags: TagSetId::EMPTY }
    }

    #[inline]
    pub(crate) fn thread_tags(&self) -> TagSetId {
        TagSetId(self.thread_tags.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Counts expiries that the timer told; returns what those weigh that were not counted before. Only this thread's handler counts, and
    /// who keeps it out, so no read-modify-write.
    #[inline]
    pub(crate) fn count_expiries(&self, expiries: u64) -> u64 {
        let ahead = self.ahead.load(Ordering::Relaxed);
        let known = ahead.min(expiries);
        if known > 0 {
            self.ahead.store(ahead - known, Ordering::Relaxed);
        }
        add(&self.expiries, expiries - known);
        (expiries - known) * self.period_ns()
    }

    /// Counts expiries that are due by the thread's clock and that the timer did not tell; returns what they weigh. Only who keeps
    /// this thread's handler out does: what is told meanwhile is deferred, and counted later if it is more.
    pub(super) fn take_due(&self, now_ns: u64) -> u64 {
        let due = self.due(now_ns);
        add(&self.expiries, due);
        add(&self.ahead, due);
        due * self.period_ns()
    }

    /// How many expiries are due by the thread's clock that nobody has told of.
    pub(super) fn due(&self, now_ns: u64) -> u64 {
        let first_ns = self.first_ns.load(Ordering::Relaxed);
        let Some(since) = now_ns.checked_sub(first_ns) else { return 0 };
        let known = self.counted() + self.deferred_yet().saturating_sub(self.ahead.load(Ordering::Relaxed));
        (since / self.period_ns() + 1).saturating_sub(known)
    }

    /// How many expiries the timer would have told of by now, of those that it told nothing of and will not any more.
    pub(super) fn told_by_clock(&self, now_ns: u64) -> u64 {
        self.due(now_ns) + self.ahead.load(Ordering::Relaxed).saturating_sub(self.deferred_yet())
    }

    /// Whether the clock tells, of this signal. The handler's own.
    #[inline]
    pub(super) fn is_reminded(&self) -> bool {
        self.reminded.load(Ordering::Relaxed) != 0 && self.reminded.fetch_sub(1, Ordering::Relaxed) != 0
    }

    fn deferred_yet(&self) -> u64 {
        self.deferred.load(Ordering::Relaxed).saturating_sub(self.taken_up.load(Ordering::Relaxed))
    }

    /// Expiries that were counted.
    #[inline]
    pub(super) fn counted(&self) -> u64 {
        self.expiries.load(Ordering::Relaxed)
    }

    /// Notes what the thread claims at this instant. Only its own handler does, and who keeps it out.
    #[inline]
    pub(super) fn note_claimed(&self, now_ns: u64, claimed_ns: u64) {
        add(&self.claimed_ns, claimed_ns);
        // Release, with `claimed`: who reads this instant reads what was claimed by then.
        self.claimed_at_ns.store(now_ns, Ordering::Release);
    }

    /// What it claimed so far, and when that was last looked at: later than now if it never was.
    pub(super) fn claimed(&self) -> (u64, u64) {
        let at_ns = self.claimed_at_ns.load(Ordering::Acquire);
        (self.claimed_ns.load(Ordering::Relaxed), at_ns)
    }

    /// The record is a thread's from now on, which was queued for so long, if that is known.
    pub(super) fn begin_claims(&self, queued_ns: Option<u64>) {
        self.claimed_ns.store(0, Ordering::Relaxed);
        self.claimed_at_ns.store(u64::MAX, Ordering::Relaxed);
        self.queued_ns[0].store(queued_ns.unwrap_or(UNKNOWN), Ordering::Relaxed);
        self.queued_ns[1].store(UNKNOWN, Ordering::Relaxed);
    }

    /// The record is its thread's no longer, which was queued for so long.
    pub(super) fn end_claims(&self, queued_ns: Option<u64>) {
        self.queued_ns[1].store(queued_ns.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    /// How long the thread was queued when it got this record, if that is known.
    pub(super) fn queued_at_start_ns(&self) -> Option<u64> {
        Some(self.queued_ns[0].load(Ordering::Relaxed)).filter(|&ns| ns != UNKNOWN)
    }

    /// How long the thread was queued when it lost this record, if that is known. Once: a record that its handler had not left is read
    /// again.
    pub(super) fn take_queued_at_end_ns(&self) -> Option<u64> {
        Some(self.queued_ns[1].swap(UNKNOWN, Ordering::Relaxed)).filter(|&ns| ns != UNKNOWN)
    }

    /// Where its expiries are counted, and the time of its handlers.
    pub(super) fn counters(&self) -> [*const AtomicU64; 2] {
        [&raw const self.expiries, &raw const self.handler_ns]
    }

    /// What an expiry weighs.
    pub(super) fn period_ns(&self) -> u64 {
        self.period_ns.load(Ordering::Relaxed)
    }

    /// Whether a sample is being taken, of this thread or by one before it: who comes in between must not write.
    #[inline]
    pub(super) fn is_entered(&self) -> bool {
        self.gate.inside.load(Ordering::Relaxed) != 0
    }

    /// Puts expiries off. Only this thread's handler does.
    #[inline]
    pub(crate) fn defer(&self, expiries: u64) {
        add(&self.deferred, expiries);
    }

    /// What was put off and not taken up yet is the caller's now. Only this thread calls it, one at a time; a handler that
    /// comes in between puts more off, which is found the next time.
    #[inline]
    pub(crate) fn take_deferred(&self) -> u64 {
        let deferred = self.deferred.load(Ordering::Relaxed);
        let expiries = deferred - self.taken_up.load(Ordering::Relaxed);
        self.taken_up.store(deferred, Ordering::Relaxed);
        expiries
    }

    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// Keeps this thread's handler out of the ring, or lets it in again.
    #[inline]
    pub(crate) fn set_busy(&self, busy: bool) {
        // The handler runs on this very thread: what it must not see torn only has to stay on its side in the program.
        compiler_fence(Ordering::SeqCst);
        self.busy.store(busy, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn count_written(&self, weight: u64) {
        add(&self.written_samples, 1);
        add(&self.written_weight, weight);
    }

    #[inline]
    pub(crate) fn count_dropped(&self, weight: u64) {
        add(&self.dropped_samples, 1);
        add(&self.dropped_weight, weight);
    }

    /// As [`count_dropped`](Self::count_dropped), of a sample for which the stack of the handler has no room.
    #[inline]
    pub(crate) fn count_cramped(&self, weight: u64) {
        add(&self.cramped, 1);
        self.count_dropped(weight);
    }

    /// A sample is about to be taken; whether its stack may be walked.
    ///
    /// A walk that takes longer than the time between two samples would be interrupted at the same instruction for ever: when it
    /// ends the next signal waits already. So after [`MAX_STARVED`] samples in a row that took longer than the program ran
    /// before them there is one without a stack. Only this thread's handler calls it.
    #[inline]
    pub(crate) fn begin_sample(&self, now_ns: u64) -> bool {
        let ran = now_ns.saturating_sub(self.ended_ns.load(Ordering::Relaxed));
        let is_starved = ran < self.took_ns.load(Ordering::Relaxed);
        let starved = if is_starved { self.starved.load(Ordering::Relaxed) + 1 } else { 0 };
        let walks = starved < MAX_STARVED;
        self.starved.store(if walks { starved } else { 0 }, Ordering::Relaxed);
        walks
    }

    /// The sample that [`begin_sample`](Self::begin_sample) announced was taken.
    #[inline]
    pub(crate) fn end_sample(&self, since_ns: u64, now_ns: u64) {
        let took = now_ns.saturating_sub(since_ns);
        add(&self.handler_ns, took);
        self.took_ns.store(took, Ordering::Relaxed);
        self.ended_ns.store(now_ns, Ordering::Relaxed);
    }

    pub(super) fn written(&self) -> Tally {
        Tally {
            samples: self.written_samples.load(Ordering::Relaxed),
            weight: self.written_weight.load(Ordering::Relaxed),
        }
    }

    /// Samples taken, whatever became of them.
    pub(super) fn samples(&self) -> u64 {
        let counts = [&self.written_samples, &self.dropped_samples, &self.deferred];
        counts.map(|count| count.load(Ordering::Relaxed)).iter().sum()
    }

    pub(super) fn dropped(&self) -> Tally {
        Tally {
            samples: self.dropped_samples.load(Ordering::Relaxed),
            weight: self.dropped_weight.load(Ordering::Relaxed),
        }
    }
}

#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of `samples` samples are walked that take so long, with so much time for the program between them.
    fn walked(samples: usize, took: u64, between: u64) -> Vec<bool> {
        let record = ThreadRecord::unused();
        let mut now = 1_000_000;
        let sample = |_| {
            now += between;
            let walks = record.begin_sample(now);
            let since = now;
            now += if walks { took } else { 1 };
            record.end_sample(since, now);
            walks
        };
        (0..samples).map(sample).collect()
    }

    #[test]
    fn a_program_that_gets_no_time_between_samples_has_one_without_a_stack() {
        let walked = walked(30, 5_000_000, 1_000);
        let without: Vec<usize> = (0..30).filter(|number| !walked[*number]).collect();
        // The one after it finds that the program ran for longer than that took.
        assert_eq!(without, [8, 17, 26]);
    }

    #[test]
    fn what_was_due_is_counted_once_whoever_tells_it_first() {
        let record = ThreadRecord::unused();
        record.period_ns.store(10, Ordering::Relaxed);
        record.first_ns.store(3, Ordering::Relaxed);
        assert_eq!([2, 3, 12].map(|now| record.take_due(now)), [0, 10, 0]);
        // The timer tells that one, and two more at a time.
        assert_eq!([1, 2].map(|told| record.count_expiries(told)), [0, 20]);
        // One that came in between is deferred, so it is known; two are due beside it.
        record.defer(1);
        assert_eq!(record.take_due(53), 20);
        assert_eq!(record.count_expiries(record.take_deferred()), 0);
        assert_eq!([2, 1].map(|told| record.count_expiries(told)), [10, 10]);
        assert_eq!(record.counted(), 7);
    }

    #[test]
    fn a_timer_that_is_set_anew_has_told_what_is_due_by_the_clock() {
        let record = ThreadRecord::unused();
        record.period_ns.store(10, Ordering::Relaxed);
        record.first_ns.store(3, Ordering::Relaxed);
        assert_eq!([2, 3, 42].map(|now| record.told_by_clock(now)), [0, 1, 4]);
        assert_eq!(record.count_expiries(record.told_by_clock(42)), 40);
        // What was counted ahead of the timer will not be told any more, nor what it told while that was put off.
        assert_eq!(record.take_due(62), 20);
        assert_eq!(record.count_expiries(record.told_by_clock(73)), 20);
        assert_eq!((record.count_expiries(1), record.counted()), (10, 9));
        record.take_due(102);
        record.defer(1);
        assert_eq!(record.count_expiries(record.told_by_clock(113) + record.take_deferred()), 20);
        assert_eq!((record.count_expiries(1), record.counted()), (10, 13));
    }

    #[test]
    fn a_program_that_gets_on_is_always_walked() {
        assert_eq!(walked(100, 5_000_000, 5_000_000), [true; 100]);
        assert_eq!(walked(100, 10_000, 200_000), [true; 100]);
    }
}
