//! What a thread knows of its own waits: how long it waited so far, and when a wait becomes a sample; what a wrapper says of one.

use std::sync::atomic::AtomicU64;

use crate::stats::Tally;

/// A wait that is to become a sample.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Pending {
    /// What the stack begins with, and the state, as numbers.
    pub(super) leaf: u16,
    pub(super) state: u16,
    /// Whose it is: see [`fates`](super::fates).
    pub(super) generation: u16,
    /// How many waits it is that were to be samples.
    pub(super) waits: u16,
    /// What it stands for, and how long it was; 0: there is none.
    pub(super) weight: u64,
    pub(super) took_ns: u64,
    /// Who called, 0 if the state is certain.
    pub(super) caller: usize,
}

impl Pending {
    const NONE: Self = Self { leaf: 0, state: 0, generation: 0, waits: 0, weight: 0, took_ns: 0, caller: 0 };

    pub(super) fn tally(self) -> Tally {
        Tally { samples: self.waits.into(), weight: self.weight }
    }
}

/// From when on a thread's time belongs to its next sample: see [`claim`](super::claim). All zeros: not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Mark {
    /// What it neither ran nor waited so far, from some instant, and what it ran.
    pub(super) rest_ns: u64,
    pub(super) cpu_ns: u64,
    /// Whose profiler it was noted for: [`OWNER`].
    pub(super) owner: u64,
}

/// Whose waits are measured, 0: nobody's.
pub(super) static OWNER: AtomicU64 = AtomicU64::new(0);

/// What is to be added to a span's times once the stack can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Held {
    /// 0: nothing is.
    pub(super) ns: u64,
    /// The state of the call, as a number ([with how long it was](super::times)), and who called.
    pub(super) state: u64,
    pub(super) caller: usize,
    /// Whose it is: an address to compare, what is there may be gone.
    pub(super) times: usize,
}

impl Held {
    const NONE: Self = Self { ns: 0, state: 0, caller: 0, times: 0 };
}

/// A thread's block, in initial-exec thread-local storage; all zeros in a new thread. As `calls.c` has it.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Block {
    /// Nanoseconds waited so far.
    pub(super) total_ns: u64,
    /// Where the thread's timer expiries, and the nanoseconds of their handlers, are counted; null while its record is not known.
    pub(super) expiries: *const AtomicU64,
    handled: *const AtomicU64,
    /// The mutex at whose unlocking the waits that are pending become samples; null: none are pending.
    pending_until: *const (),
    /// When the call began that is under way, 0: none is, or one within it ended.
    pub(super) since_ns: u64,
    /// What the thread's clock of CPU time showed then, of a call that copies much; else 0, and its CPU time is in what it waited.
    pub(super) since_cpu_ns: u64,
    /// Those: one for the interpreter's lock, and the one before it.
    pending: [Pending; 2],
    /// What the thread's record is entered with, its bits inverted: 0 = not known.
    record: u64,
    /// CPU time within short calls, those for files and names and all others, and within long ones of the function `long_function`, that is
    /// still to be taken off.
    short_debts_ns: [u64; 2],
    long_debt_ns: u32,
    long_function: u32,
    /// How much may still be waited before the next sample, in means; 0 = not drawn yet.
    budget: f64,
    random: u64,
    /// The thread that this is: another one runs here in a child of vfork.
    pub(super) thread: i32,
    /// It takes the sample of a wait, within which no other is taken: where on its stack, in units of 16 bytes; 0: it does not.
    pub(super) busy_at: u32,
    /// When the last wait for several things at once began, and when it ended: the thread's event loop had nothing to do.
    pub(super) polled: [u64; 2],
    /// The numbers of the flow that the thread runs, 0 for none but itself, and of the thread, 0 = not given yet.
    pub(super) flow: u64,
    pub(super) thread_flow: u64,
    /// Nanoseconds waited so far, with what of it was CPU time.
    pub(super) whole_ns: u64,
    /// What a CPU sample's [claim](super::claim) is of.
    pub(super) mark: Mark,
    /// How often it had lost its processor when that was last asked.
    pub(super) preempted: u64,
    /// How often it had given it away when that was last asked; how long its short calls for files and names were told to have waited since,
    /// and what the expiries within them weigh.
    gave_away: u64,
    told_ns: u64,
    told_burnt_ns: u64,
    /// So much was told of what was no wait, and is still to be taken off such calls.
    told_debt_ns: u64,
    /// How many calls that are likely to be waits were not asked about since; and so many from now on are.
    unasked: u32,
    careful: u32,
    /// When it last was found to have given it away.
    pub(super) waited_at_ns: u64,
    /// 1: coroutines or contexts took turns on it, so that another span may have been current than it was told.
    pub(super) mixed: u64,
    /// Of the wait that the program asked for, and of what was no wait for the interpreter's lock in the one after it.
    held: [Held; 2],
}

/// From here on a call is likely to be a wait.
pub(super) const LIKELY_NS: u64 = 20_000;
/// From here on it costs next to nothing to ask about one for a file or a name.
pub(super) const ASKED_NS: u64 = 100_000;
/// So many likely waits are asked about after one of them was none.
const CAREFUL: u32 = 64;
/// What expiries within calls weigh until it is known whether these waited is owed up to here: the kernel tells of several at once.
pub(super) const MOST_OWED_NS: u64 = 20_000_000;
/// A wait from here on pays no debts but those of its own function.
pub(super) const LONG_NS: u64 = 1_000_000;

const _: () = assert!(size_of::<Block>() == 45 * 8);

/// A call that took long enough to be a wait. As `calls.c` has it.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Call {
    pub(super) function: u32,
    pub(super) state: u16,
    /// It waited for several things at once: 1.
    pub(super) polls: u16,
    pub(super) took_ns: u64,
    /// When it returned, by CLOCK_MONOTONIC.
    pub(super) ended_ns: u64,
    /// Expiries of the thread's CPU timer meanwhile, and how long their handlers took.
    pub(super) expiries: u64,
    pub(super) handled_ns: u64,
    /// CPU time meanwhile by the thread's clock, 0 if that was not read.
    pub(super) cpu_ns: u64,
    /// What was waited for: a lock's address.
    pub(super) argument: u64,
    /// The mutex that is held now because of it, or null.
    pub(super) mutex: *const (),
    pub(super) caller: *const (),
    /// The wrapper's frame: see [`WaitFrame`](crate::WaitFrame).
    pub(super) frame: *const [u64; 2],
}

impl Block {
    /// With the call that is under way; `cpu_ns`: what the thread's clock of CPU time shows.
    pub(super) fn waited_whole_ns(&self, now_ns: u64, cpu_ns: u64) -> u64 {
        let under_way_ns = if self.since_ns == 0 { 0 } else { now_ns.saturating_sub(self.since_ns) };
        let burnt_ns = if self.since_cpu_ns == 0 { 0 } else { cpu_ns.saturating_sub(self.since_cpu_ns) };
        self.whole_ns + under_way_ns.saturating_sub(burnt_ns)
    }

    pub(super) fn record(&self) -> u64 {
        !self.record
    }

    pub(super) fn set_record(&mut self, value: u64, thread: i32, [expiries, handled]: [*const AtomicU64; 2]) {
        (self.record, self.thread, self.handled, self.expiries) = (!value, thread, handled, expiries);
    }

    /// Whether the thread gave its processor away, as who waits does, since this was last asked; `times`: so often so far. Where nobody counts
    /// that, it may have. If it did not, what its short calls were told to have waited is CPU time, which the next ones pay; so it is if it did
    /// once, in a call that is likely to be a wait (`in_this`), and no other such call came before. Else what their expiries weigh is paid. If it
    /// did less often than such calls came, one of them was none: the next ones are [asked about](Self::is_careful), each.
    pub(super) fn waited(&mut self, times: Option<u64>, in_this: bool) -> bool {
        let before = std::mem::replace(&mut self.gave_away, times.unwrap_or(u64::MAX));
        let since = times.filter(|_| before != u64::MAX).map(|times| times.wrapping_sub(before));
        let unasked = std::mem::take(&mut self.unasked);
        if since.is_some_and(|since| since < u64::from(unasked) + u64::from(in_this)) {
            self.careful = CAREFUL;
        }
        let (told_ns, burnt_ns) = (std::mem::take(&mut self.told_ns), std::mem::take(&mut self.told_burnt_ns));
        if since == Some(0) || since == Some(1) && in_this && unasked == 0 {
            self.told_debt_ns += told_ns;
        } else {
            let debt_ns = self.short_debt_ns(true);
            *debt_ns = (*debt_ns).max(debt_ns.saturating_add(burnt_ns).min(MOST_OWED_NS.max(burnt_ns)));
        }
        since != Some(0)
    }

    /// Whether a call that is likely to be a wait is asked about though it is short.
    pub(super) fn is_careful(&mut self) -> bool {
        let is_careful = self.careful > 0;
        self.careful = self.careful.saturating_sub(1);
        is_careful
    }

    /// A call that is likely to be a wait is not asked about.
    pub(super) fn skip(&mut self) {
        self.unasked = self.unasked.saturating_add(1);
    }

    /// Whether with so much more its short calls were told to have waited for long since that was last asked.
    pub(super) fn tells_much(&self, took_ns: u64) -> bool {
        self.told_ns + took_ns >= LONG_NS
    }

    /// A short call for a file or a name is told to have waited. What expiries within it weigh is known to be owed once it is known
    /// whether the thread waited; until then nothing is. One that was asked about by itself is known.
    pub(super) fn tell(&mut self, took_ns: u64, burnt_ns: u64, is_known: bool) -> u64 {
        if is_known {
            return burnt_ns;
        }
        // With what it pays: if it is CPU time, too, so much is still to be paid.
        self.told_ns += took_ns;
        self.told_burnt_ns = self.told_burnt_ns.saturating_add(burnt_ns);
        0
    }

    /// What a call is told to have waited, less what others were that did not.
    pub(super) fn without_told(&mut self, took_ns: u64) -> u64 {
        let paid = self.told_debt_ns.min(took_ns);
        self.told_debt_ns -= paid;
        took_ns - paid
    }

    fn short_debt_ns(&mut self, is_of_file: bool) -> &mut u64 {
        &mut self.short_debts_ns[usize::from(is_of_file)]
    }

    /// It lost its processor, since that was last asked.
    pub(super) fn expect_preemption(&mut self) {
        self.preempted = u64::MAX;
    }

    /// What was not taken off is forgotten, as is how often the thread gave its processor away: a forked child's counts anew.
    pub(super) fn forget_debt(&mut self) {
        (self.short_debts_ns, self.long_debt_ns) = ([0; 2], 0);
        (self.told_ns, self.told_burnt_ns, self.told_debt_ns, self.gave_away) = (0, 0, 0, u64::MAX);
        (self.unasked, self.careful) = (0, 0);
    }

    /// Keeps a wait until `mutex` is unlocked. A second one of the same call goes on with the first: a wait for the interpreter's lock
    /// goes on in pieces without an unlocking in between. Returns what there is no room for; what is left of an earlier profiler goes.
    pub(super) fn hold(&mut self, mutex: *const (), wait: Pending) -> Tally {
        let mut lost = Tally::default();
        if self.pending_until != mutex {
            let pending = self.take_pending().into_iter().filter(|pending| pending.generation == wait.generation);
            pending.for_each(|pending| lost += pending.tally());
            self.pending_until = mutex;
        }
        let is_none = |pending: &Pending| pending.weight == 0 || pending.generation != wait.generation;
        let same =
            |pending: &&mut Pending| is_none(pending) || (pending.leaf, pending.state) == (wait.leaf, wait.state);
        match self.pending.iter_mut().find(same) {
            Some(pending) if is_none(pending) => *pending = wait,
            Some(pending) => {
                *pending = Pending {
                    waits: pending.waits.saturating_add(wait.waits),
                    weight: pending.weight + wait.weight,
                    took_ns: pending.took_ns + wait.took_ns,
                    ..wait
                }
            }
            None => lost += wait.tally(),
        }
        lost
    }

    /// Keeps time of a span until `mutex` is unlocked. A second wait of the same call goes on with the first; false: there is no room.
    pub(super) fn hold_time(&mut self, mutex: *const (), time: Held) -> bool {
        let goes_on = |held: &&mut Held| {
            held.ns == 0 || (held.state, held.caller, held.times) == (time.state, time.caller, time.times)
        };
        let Some(held) = self.held.iter_mut().find(goes_on) else { return false };
        // What is pending until another mutex is unlocked is of a call that is over, and goes with this one.
        self.pending_until = mutex;
        *held = Held { ns: held.ns + time.ns, ..time };
        true
    }

    /// The times of spans that are held, which they are no longer.
    pub(super) fn take_held(&mut self) -> [Held; 2] {
        std::mem::replace(&mut self.held, [Held::NONE; 2])
    }

    /// What is pending, which it is no longer.
    pub(super) fn take_pending(&mut self) -> [Pending; 2] {
        self.pending_until = std::ptr::null();
        std::mem::replace(&mut self.pending, [Pending::NONE; 2])
    }

    /// Whether waits are pending.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending_until.is_null()
    }

    /// CPU time that a call burnt is in the profile as CPU time: what its expiries weigh is taken off, so each call has the right
    /// expectation. What would be below nothing is a debt of the thread's next short waits, of those for files and names or of others
    /// (`is_of_file`), or of its next long ones of the same function: who burns CPU time in such calls pays it, and other waits stay what
    /// they were. It is never more than `most_ns`.
    pub(super) fn without_cpu(
        &mut self,
        (function, is_of_file): (u32, bool),
        took_ns: u64,
        cpu_ns: u64,
        most_ns: u64,
    ) -> u64 {
        let is_long = took_ns >= LONG_NS;
        let before = if !is_long {
            std::mem::take(self.short_debt_ns(is_of_file))
        } else if self.long_function == function {
            u64::from(std::mem::take(&mut self.long_debt_ns))
        } else {
            0
        };
        let debt = before.saturating_add(cpu_ns);
        let paid = debt.min(took_ns);
        let rest = (debt - paid).min(most_ns);
        if !is_long {
            *self.short_debt_ns(is_of_file) = rest;
        } else if rest > 0 {
            (self.long_debt_ns, self.long_function) = (u32::try_from(rest).unwrap_or(u32::MAX), function);
        }
        took_ns - paid
    }

    /// The nanoseconds that a wait of `took_ns` stands for if it becomes a sample, and `None` if it does not: it does with probability
    /// 1 − e^(−took/mean), and stands for took / that, so sums are unbiased, and exact for waits that are long beside the mean.
    #[expect(clippy::cast_precision_loss, reason = "a wait of 104 days loses a nanosecond")]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative; too much becomes the most"
    )]
    pub(super) fn weight_of(&mut self, took_ns: u64, mean_ns: f64, seed: u64) -> Option<u64> {
        // Each is to be a sample, also what a debt left only nanoseconds of.
        if mean_ns <= 1.0 {
            return Some(took_ns);
        }
        if self.budget <= 0.0 {
            self.budget = self.exponential(seed);
        }
        let took = took_ns as f64;
        self.budget -= took / mean_ns;
        if self.budget > 0.0 {
            return None;
        }
        self.budget = self.exponential(seed);
        Some((took / -(-took / mean_ns).exp_m1() + 0.5) as u64)
    }

    /// How many waits a sample stands for that weighs so much, of one that took so long: more or less than that is a whole number, and on
    /// average as much.
    pub(super) fn count_of(&mut self, weight: u64, took_ns: u64) -> u16 {
        let took_ns = took_ns.max(1);
        let is_more = self.next_random(0) % took_ns < weight % took_ns;
        u16::try_from(weight / took_ns + u64::from(is_more)).unwrap_or(u16::MAX).max(1)
    }

    /// A number that is distributed as the times between events of a rate of 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    fn exponential(&mut self, seed: u64) -> f64 {
        -(((self.next_random(seed) >> 11) + 1) as f64 / 9_007_199_254_740_993.0).ln()
    }

    /// xorshift64: no more is asked of it.
    fn next_random(&mut self, seed: u64) -> u64 {
        if self.random == 0 {
            self.random = (seed ^ std::ptr::from_ref(self).addr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> Block {
        // SAFETY: as in a new thread: numbers and null.
        let block: Block = unsafe { std::mem::zeroed() };
        // Where the block lies is chance, what is drawn from here on is not.
        Block { random: 0x2545_f491_4f6c_dd1d, ..block }
    }

    #[test]
    fn what_waits_stand_for_adds_up_to_what_they_took() {
        for (took_ns, waits, tolerance) in
            [(3_000, 2_000_000, 0.05), (400_000, 200_000, 0.02), (30_000_000, 1_000, 1e-6)]
        {
            let mut block = block();
            let weights: Vec<u64> = (0..waits).filter_map(|_| block.weight_of(took_ns, 1e6, 7)).collect();
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let ratio = weights.iter().sum::<u64>() as f64 / (took_ns * waits) as f64;
            assert!((ratio - 1.0).abs() < tolerance, "{took_ns} ns: {ratio}");
        }
    }

    #[test]
    fn where_each_is_a_sample_it_stands_for_itself() {
        let mut block = block();
        for took_ns in [1, 2, 3, 40, 5_000_000].repeat(20) {
            let weight = block.weight_of(took_ns, 1.0, 7).unwrap();
            assert_eq!((weight, block.count_of(weight, took_ns)), (took_ns, 1));
        }
    }

    #[test]
    fn what_samples_count_adds_up_to_the_waits_there_were() {
        for took_ns in [100_000, 700_000, 2_000_000] {
            let mut block = block();
            let mut counted = 0;
            for _ in 0..200_000 {
                if let Some(weight) = block.weight_of(took_ns, 1e6, 7) {
                    counted += u64::from(block.count_of(weight, took_ns));
                }
            }
            assert!((196_000..204_000).contains(&counted), "{took_ns} ns: {counted}");
        }
    }

    #[test]
    fn a_thread_whose_record_is_not_known_has_the_value_of_none() {
        assert_eq!(block().record(), u64::MAX);
    }

    #[test]
    fn waits_are_pending_until_one_mutex_is_unlocked() {
        let mutexes = [1_u64, 2];
        let [first, second] = [&raw const mutexes[0], &raw const mutexes[1]].map(<*const u64>::cast::<()>);
        let wait =
            |leaf, weight| Pending { leaf, state: 3, generation: 1, waits: 1, weight, took_ns: weight, caller: 0 };
        let mut block = block();
        assert!(!block.has_pending());
        assert_eq!(
            [block.hold(first, wait(1, 10)), block.hold(first, wait(2, 5)), block.hold(first, wait(1, 3))],
            [Tally::default(); 3]
        );
        let one = |weight| Tally { samples: 1, weight };
        assert_eq!(block.hold(first, wait(7, 4)), one(4));
        assert!(block.has_pending());
        assert_eq!(
            block.take_pending().map(|pending| (pending.leaf, pending.waits, pending.weight, pending.took_ns)),
            [(1, 2, 13, 13), (2, 1, 5, 5)]
        );
        assert_eq!(
            (block.has_pending(), block.hold(first, wait(1, 10)), block.hold(second, wait(1, 2))),
            (false, Tally::default(), one(10))
        );
        assert_eq!(block.take_pending().map(|pending| pending.weight), [2, 0]);
        // Those of an earlier profiler are nobody's.
        block.hold(first, wait(1, 10));
        let later = |weight| Pending { generation: 2, ..wait(1, weight) };
        assert_eq!([block.hold(first, later(3)), block.hold(first, later(4))], [Tally::default(); 2]);
        assert_eq!(block.take_pending().map(|pending| (pending.generation, pending.weight)), [(2, 7), (0, 0)]);
    }

    #[test]
    fn time_is_held_until_a_mutex_is_unlocked_one_call_s_at_a_time() {
        let lock = 1_u64;
        let mutex = (&raw const lock).cast::<()>();
        let time = |ns, caller| Held { ns, state: 1, caller, times: 9 };
        let mut block = block();
        assert!([time(5, 7), time(3, 8), time(2, 7)].into_iter().all(|time| block.hold_time(mutex, time)));
        assert!(!block.hold_time(mutex, time(1, 9)) && block.has_pending());
        assert_eq!([block.take_held(), block.take_held()], [[time(7, 7), time(3, 8)], [Held::NONE; 2]]);
    }

    #[test]
    fn who_never_gave_its_processor_away_did_not_wait_unless_nobody_counts() {
        let mut block = block();
        assert_eq!([0, 0, 1, 1, 2].map(|times| block.waited(Some(times), false)), [false, false, true, false, true]);
        assert_eq!([None, None, Some(2), Some(2)].map(|times| block.waited(times, false)), [true, true, true, false]);
        block.forget_debt();
        assert!(block.waited(Some(2), false), "a forked child's are counted anew");
    }

    #[test]
    fn what_short_calls_were_told_to_have_waited_is_taken_back_where_nobody_gave_the_processor_away() {
        let mut block = block();
        assert_eq!(block.tell(700, 50, false), 0);
        assert!(!block.waited(Some(0), false));
        assert_eq!([300, 300, 300].map(|took_ns| block.without_told(took_ns)), [0, 0, 200]);
        assert!(!block.waited(Some(0), false));
        assert_eq!(
            (block.without_told(300), block.without_cpu((1, true), 300, 0, u64::MAX)),
            (300, 300),
            "once, and no expiry is paid"
        );
        block.tell(700, 50, false);
        assert!(block.waited(Some(1), true), "the call that asked, and no other");
        assert_eq!((block.without_told(900), block.without_cpu((1, true), 300, 0, u64::MAX)), (200, 300));
        block.tell(700, 0, false);
        assert!(block.waited(Some(3), true));
        assert_eq!(block.without_told(900), 900, "it may have been the others");
        block.tell(LONG_NS - 5, 0, false);
        assert!(!block.tells_much(4) && block.tells_much(5));
    }

    #[test]
    fn likely_waits_are_asked_about_after_one_of_them_was_none() {
        let mut block = block();
        assert!(block.waited(Some(5), true) && !block.is_careful(), "not known yet");
        (0..3).for_each(|_| block.skip());
        assert!(block.waited(Some(9), true) && !block.is_careful(), "all gave their processor away");
        block.skip();
        block.tell(700, 50, false);
        assert!(block.waited(Some(10), true), "one of two did");
        assert_eq!(block.without_told(900), 900, "and it is not known which");
        assert_eq!((0..).take_while(|_| block.is_careful()).count(), 64);
        assert!(!block.waited(Some(10), true) && block.is_careful(), "this one did not");
        block.forget_debt();
        assert!(!block.is_careful());
    }

    #[test]
    fn expiries_of_short_calls_are_paid_once_it_is_known_that_the_thread_waited() {
        let mut block = block();
        assert_eq!(
            (block.tell(700, 500, true), block.tell(700, 500, false)),
            (500, 0),
            "one that is known pays its own"
        );
        assert_eq!(block.without_cpu((1, true), 100, 0, u64::MAX), 100);
        assert!(block.waited(Some(1), false));
        assert_eq!([block.without_told(300), block.without_cpu((1, true), 300, 0, u64::MAX)], [300, 0]);
        assert_eq!(block.without_cpu((1, true), 300, 0, u64::MAX), 100);
        (0..9).for_each(|_| assert_eq!(block.tell(700, MOST_OWED_NS / 2, false), 0));
        assert!(block.waited(Some(2), false));
        assert_eq!(block.without_cpu((1, true), 300, 0, u64::MAX), 0);
    }

    #[test]
    fn cpu_time_within_calls_is_taken_off_in_all() {
        let mut block = block();
        let mut left = |function, took_ns, cpu_ns| block.without_cpu((function, false), took_ns, cpu_ns, LONG_NS);
        assert_eq!(left(1, 100, 0), 100);
        assert_eq!(left(1, 100, 250), 0);
        assert_eq!(left(1, LONG_NS, 0), LONG_NS);
        assert_eq!(left(1, LONG_NS, 10), LONG_NS - 10);
        assert_eq!(left(1, 100, 0), 0);
        assert_eq!(left(1, 100, 0), 50);
        // A long call pays for its own function alone, and nobody pays more than a period.
        assert_eq!(left(1, LONG_NS, LONG_NS + 300), 0);
        assert_eq!([left(2, LONG_NS, 0), left(1, 100, 0), left(1, LONG_NS, 0)], [LONG_NS, 100, LONG_NS - 300]);
        assert_eq!([left(1, 100, 9 * LONG_NS), left(1, LONG_NS - 1, 0), left(1, 100, 0)], [0, 0, 99]);
        // Nor does one for a file pay what a sleep burnt.
        assert_eq!(left(1, 100, 300), 0);
        assert_eq!([(1, true), (1, false)].map(|call| block.without_cpu(call, 150, 0, LONG_NS)), [150, 0]);
    }
}
