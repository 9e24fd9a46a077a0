//! What claim a sample has on its thread's time in the run queue.
//!
//! The kernel counts how long a thread stood in the queue, and not in which of its spans (`sample/threads/run_queue.rs`). So each CPU
//! sample says how long its thread neither ran nor waited, by the clock, since its sample before. A span may be shorter than that, and the
//! one before it starved while it is not: where the host says that the thread goes from one to another
//! ([`span_switched`](crate::sample::due::span_switched)), what the first was kept from running for is its claim, and what comes later
//! claims no more of it. Of those some become entries of the ring, as of waits, each for itself and those that do not; the thread's record
//! has the sum of all claims, to be held against the kernel's number.
//!
//! What a thread ran only the kernel knows, which takes a system call of up to a microsecond. Who loses his processor mostly loses it for a
//! millisecond or more. So a span that ends does not ask while its thread was awake for less than half of one since the mark before,
//! and what it was kept from running for, if anything, is in the next claim.
//!
//! The CPU time of calls that wait is in their waits too, until the thread's expiries have [paid](Block::without_cpu) for it.

use std::sync::atomic::{Ordering, compiler_fence};

use super::block::{Block, Mark, OWNER};
use super::wrappers::own_block;
use crate::context::current::Context;
use crate::os::{clock, switches};
use crate::sample::record::ThreadRecord;

/// What a claim counts in: 33 microseconds, and from 134 milliseconds on a two-thousandth of itself. The most is an hour.
const CLAIM_NS: u64 = 1 << 15;
const MANTISSA_BITS: u32 = 12;
/// Less is none: a sample like the one before it is then written as that.
const LEAST_NS: u64 = 100_000;
/// More than so much less than nothing a rest is not for long.
const MOST_MISSING_NS: u64 = 20_000_000;
/// A thread that ran, or was kept from it, for less since its mark is not asked about at the end of a span.
const AWAKE_NS: u64 = 500_000;

/// A claim as the ring has it: a number of twelve bits, and how often it is to be doubled.
fn encoded(ns: u64) -> u16 {
    let units = (ns + CLAIM_NS / 2) / CLAIM_NS;
    let doubled = (u64::BITS - units.leading_zeros()).saturating_sub(MANTISSA_BITS);
    let claim = u64::from(doubled) << MANTISSA_BITS | units >> doubled;
    if doubled >= 1 << (u16::BITS - MANTISSA_BITS) { u16::MAX } else { u16::try_from(claim).unwrap_or(u16::MAX) }
}

/// The nanoseconds that a claim stands for.
pub(crate) fn decoded(claim: u16) -> u64 {
    let mantissa = u64::from(claim) & ((1 << MANTISSA_BITS) - 1);
    (mantissa << (claim >> MANTISSA_BITS)) * CLAIM_NS
}

impl Mark {
    /// Of the calling thread. For handlers.
    fn now(block: &Block, now_ns: u64, owner: u64) -> Self {
        let cpu_ns = clock::read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0);
        let waited_ns = block.waited_whole_ns(now_ns, cpu_ns);
        Self { rest_ns: now_ns.wrapping_sub(waited_ns).wrapping_sub(cpu_ns), cpu_ns, owner }
    }

    /// What the thread neither ran nor waited since `before`, and the mark from which on the next one counts; 0 where `before` is of another
    /// profiler, or of this process's parent. `is_in_call`: all of a call under way counts as a wait, also what it burns.
    fn since(self, before: Self, is_in_call: bool) -> (u64, Self) {
        if before.owner != self.owner || self.cpu_ns < before.cpu_ns {
            return (0, self);
        }
        let rest_ns = self.rest_ns.wrapping_sub(before.rest_ns).cast_signed();
        // Calls that wait and burn CPU time make it less than nothing, until an expiry has been paid for: then it is again what it was. So is it
        // after a call that turns out to have been no wait.
        let most_ns = if is_in_call { u64::MAX } else { MOST_MISSING_NS };
        let missing_ns = if rest_ns < 0 { rest_ns.unsigned_abs().min(most_ns) } else { 0 };
        (rest_ns.max(0).unsigned_abs(), Self { rest_ns: self.rest_ns.wrapping_add(missing_ns), ..self })
    }
}

/// Whether the calling thread's span may claim as it ends: while wall time is measured, and not in a thread in which coroutines or contexts
/// take turns, or once did: what one is kept from running for the next one would claim. See
/// [`span_switched`](crate::sample::due::span_switched).
#[inline]
pub(in crate::sample) fn ends_with_span(is_ours: bool) -> bool {
    // SAFETY: the calling thread's own block.
    OWNER.load(Ordering::Relaxed) != 0 && own_block().is_some_and(|block| unsafe { may_claim(&mut *block, is_ours) })
}

fn may_claim(block: &mut Block, is_ours: bool) -> bool {
    if !is_ours || block.flow != 0 {
        block.mixed = 1;
    }
    block.mixed == 0
}

/// The claim of a CPU sample of the calling thread, which is noted in its record; what comes from here on is the next one's. 0 outside of
/// spans, and while no wall time is measured. For handlers, and who keeps them out; 0.3 µs, a system call, and another one where the thread
/// was kept from running.
#[inline]
pub(in crate::sample) fn take(record: &ThreadRecord, inside: Context, now_ns: u64) -> u16 {
    let owner = OWNER.load(Ordering::Relaxed);
    // SAFETY: the calling thread's own block.
    let Some(block) = own_block().filter(|_| owner != 0).map(|block| unsafe { &mut *block }) else { return 0 };
    let rest_ns = take_rest(block, now_ns, owner);
    let claim = if inside.span.is_null() { 0 } else { encoded(rest_ns) };
    // What the thread was kept from running for within the call that is under way is claimed when it is over.
    let until_ns = if block.since_ns == 0 { now_ns } else { block.since_ns };
    // As much as the sample says, so that nothing is missing from the sum of all.
    record.note_claimed(until_ns, decoded(claim));
    claim
}

/// What a span that ends claims, in nanoseconds, and when that was; `None`: its thread was awake for so short a time that it is not worth a
/// system call, and then the next one claims it. 30 ns so. Not for handlers.
pub(in crate::sample) fn take_rest_of_span() -> Option<(u64, u64)> {
    let owner = OWNER.load(Ordering::Relaxed);
    // SAFETY: the calling thread's own block.
    let block = own_block().filter(|_| owner != 0).map(|block| unsafe { &mut *block })?;
    let before = block.mark;
    // A handler that comes from here on sets a mark of its own.
    compiler_fence(Ordering::SeqCst);
    let now_ns = clock::monotonic_ns();
    if was_awake_for_a_moment(block, now_ns, owner) {
        return None;
    }
    let now = Mark::now(block, now_ns, owner);
    compiler_fence(Ordering::SeqCst);
    if block.mark != before {
        return None;
    }
    let rest_ns;
    (rest_ns, block.mark) = now.since(before, block.since_ns != 0);
    Some((now_ns, claimed(block, rest_ns)))
}

fn take_rest(block: &mut Block, now_ns: u64, owner: u64) -> u64 {
    let rest_ns;
    (rest_ns, block.mark) = Mark::now(block, now_ns, owner).since(block.mark, block.since_ns != 0);
    claimed(block, rest_ns)
}

/// In a wait that no wrapper saw a thread gives its processor away; who stands in the queue lost it.
fn claimed(block: &mut Block, rest_ns: u64) -> u64 {
    if rest_ns < LEAST_NS || !was_preempted(block) { 0 } else { rest_ns }
}

/// Whether a thread neither ran nor was kept from it for long since its mark, which this profiler made.
fn was_awake_for_a_moment(block: &Block, now_ns: u64, owner: u64) -> bool {
    let awake_ns = now_ns.wrapping_sub(block.waited_whole_ns(now_ns, 0));
    let since_ns = awake_ns.wrapping_sub(block.mark.rest_ns).wrapping_sub(block.mark.cpu_ns);
    block.mark.owner == owner && since_ns.cast_signed() < AWAKE_NS.cast_signed()
}

/// Whether the calling thread has lost its processor since this was last asked, or the kernel does not say.
fn was_preempted(block: &mut Block) -> bool {
    switches::own()
        .is_none_or(|switches| std::mem::replace(&mut block.preempted, switches.involuntary) != switches.involuntary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_kept_as_they_are_or_to_a_two_thousandth() {
        let kept = |ns| decoded(encoded(ns));
        assert_eq!([0, 16_000, 33_000, 4_095 << 15].map(kept), [0, 0, 1 << 15, 4_095 << 15]);
        for ns in [200_000_000, 3_000_000_000, 45_000_000_000, 1_200_000_000_000] {
            assert!(kept(ns).abs_diff(ns) < ns / 2_000, "{ns}: {}", kept(ns));
        }
        assert!(kept(u64::MAX / 2) > 4_000_000_000_000);
    }

    #[test]
    fn what_a_thread_neither_ran_nor_waited_is_the_rest() {
        let before = Mark { rest_ns: 0_u64.wrapping_sub(70), cpu_ns: 1_000_000, owner: 1 };
        let rest = |rest_ns: i64| {
            let rest_ns = before.rest_ns.wrapping_add_signed(rest_ns);
            Mark { rest_ns, cpu_ns: 5_000_000, owner: 1 }.since(before, false).0
        };
        assert_eq!([rest(0), rest(99_999), rest(-5_000_000)], [0, 99_999, 0]);
    }

    #[test]
    fn what_was_less_than_nothing_is_made_up_for_before_there_is_a_rest_again() {
        let (ms, mark) = (1_000_000, |rest_ns: u64| Mark { rest_ns, cpu_ns: 1, owner: 1 });
        let (mut last, mut found) = (mark(100 * ms), [0; 4]);
        for (found, now_ms) in found.iter_mut().zip([88, 105, 40, 70]) {
            (*found, last) = mark(now_ms * ms).since(last, false);
        }
        assert_eq!(found, [0, 5 * ms, 0, 10 * ms], "20 ms of what was missing are remembered");
        let (found, last) = mark(0).since(mark(100 * ms), true);
        assert_eq!((found, last, mark(101 * ms).since(last, false).0), (0, mark(100 * ms), ms), "and all of a call's");
    }

    #[test]
    fn there_is_none_where_it_is_not_known_since_when() {
        let now = Mark { rest_ns: 9_000_000, cpu_ns: 3_000_000, owner: 2 };
        assert_eq!(now.since(Mark::default(), false), (0, now));
        assert_eq!(
            now.since(Mark { rest_ns: 0, cpu_ns: 1_000_000, owner: 1 }, false),
            (0, now),
            "of a profiler before"
        );
        assert_eq!(
            now.since(Mark { rest_ns: 0, cpu_ns: 4_000_000, owner: 2 }, false),
            (0, now),
            "a child's thread begins anew"
        );
    }

    #[test]
    fn spans_claim_as_they_end_until_others_were_current_in_between() {
        // SAFETY: as in a new thread: numbers and null.
        let new = || unsafe { std::mem::zeroed::<Block>() };
        for (is_ours, flow) in [(false, 0), (true, 7)] {
            let mut block = new();
            assert!(may_claim(&mut block, true));
            block.flow = flow;
            assert!(!may_claim(&mut block, is_ours));
            block.flow = 0;
            assert!(!may_claim(&mut block, true), "those of before may come again, and change no span");
        }
    }

    #[test]
    fn a_span_that_ends_at_once_does_not_ask_the_kernel() {
        // SAFETY: as in a new thread: numbers and null.
        let mut block: Block = unsafe { std::mem::zeroed() };
        let is_short = |block: &Block, now_ns: u64| was_awake_for_a_moment(block, now_ns, 7);
        assert!(!is_short(&block, 1_000), "it has no mark yet");
        // At 50 ms of the clock it had waited 10 and run 30.
        let (ms, waited) = (1_000_000, 10_000_000);
        block.mark = Mark { rest_ns: 10 * ms, cpu_ns: 30 * ms, owner: 7 };
        block.whole_ns = waited;
        assert!(is_short(&block, 50 * ms) && is_short(&block, 50 * ms + AWAKE_NS - 1));
        assert!(!is_short(&block, 50 * ms + AWAKE_NS));
        block.whole_ns = waited + 200 * ms;
        assert!(is_short(&block, 250 * ms), "what it waited does not count");
        assert!(!is_short(&block, 251 * ms));
        assert!(!was_awake_for_a_moment(&block, 250 * ms, 8), "the mark is of a profiler before");
    }

    #[test]
    fn cpu_time_of_a_call_that_copies_much_is_no_rest() {
        // SAFETY: as in a new thread: numbers and null.
        let mut block: Block = unsafe { std::mem::zeroed() };
        block.whole_ns = 5;
        assert_eq!(block.waited_whole_ns(1_000, 700), 5);
        block.since_ns = 400;
        assert_eq!(block.waited_whole_ns(1_000, 700), 605);
        block.since_cpu_ns = 200;
        assert_eq!(block.waited_whole_ns(1_000, 700), 105);
    }
}
