//! The clock of steps: the processor's counter where the kernel itself goes by it, else CLOCK_MONOTONIC.
//!
//! A read of the counter takes 11 ns where one of CLOCK_MONOTONIC takes 28, and a step needs two. How long a tick is follows from both
//! clocks, looked at together each 100 ms in which there are samples.

use std::sync::atomic::{AtomicBool, Ordering};

use spanprof_core::monotonic_ns;

/// How often both clocks are compared.
const COMPARED_EACH_NS: u64 = 100_000_000;
/// How long the first comparison takes.
const FIRST_NS: u64 = 1_000_000;
/// By how much a tick may seem to change until the counter is taken for one that was set anew, as by a suspended machine.
const MOST_CHANGE: f64 = 0.01;

/// Whether ticks are the processor's.
static IS_COUNTER: AtomicBool = AtomicBool::new(false);

/// Ticks of no matter what length.
#[inline(always)]
pub(super) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if IS_COUNTER.load(Ordering::Relaxed) {
        // SAFETY: every x86-64 has the instruction, and the kernel uses it as its clock.
        return unsafe { std::arch::x86_64::_rdtsc() };
    }
    monotonic_ns()
}

/// Both clocks at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instant {
    ticks: u64,
    ns: u64,
}

impl Instant {
    fn now() -> Self {
        Self::narrowest((0..5).map(|_| (ticks(), monotonic_ns(), ticks())))
    }

    /// Of several reads of CLOCK_MONOTONIC, with the ticks before and after, the one that took least: who lost the processor between the
    /// two clocks would see a tick that is as much longer.
    fn narrowest(reads: impl Iterator<Item = (u64, u64, u64)>) -> Self {
        let (before, ns, after) =
            reads.min_by_key(|(before, _, after)| after.saturating_sub(*before)).unwrap_or_default();
        Self { ticks: before + after.saturating_sub(before) / 2, ns }
    }
}

/// What a tick is.
#[derive(Debug)]
pub(super) struct Clock {
    ns_per_tick: f64,
    /// When they were compared first and last.
    first: Instant,
    last: Instant,
}

impl Clock {
    pub(super) const fn new() -> Self {
        let never = Instant { ticks: 0, ns: 0 };
        Self { ns_per_tick: 1.0, first: never, last: never }
    }

    /// Chooses the clock, and waits a millisecond to know it.
    pub(super) fn start() -> Self {
        let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        IS_COUNTER.store(source.is_ok_and(|source| source.trim() == "tsc"), Ordering::Relaxed);
        let first = Instant::now();
        while monotonic_ns() - first.ns < FIRST_NS {
            std::hint::spin_loop();
        }
        let mut clock = Self { ns_per_tick: 1.0, first, last: first };
        clock.set(Instant::now());
        clock
    }

    #[expect(clippy::cast_precision_loss, reason = "differences of times")]
    fn ratio(from: Instant, to: Instant) -> f64 {
        to.ns.saturating_sub(from.ns) as f64 / to.ticks.saturating_sub(from.ticks).max(1) as f64
    }

    fn set(&mut self, now: Instant) {
        self.ns_per_tick = Self::ratio(self.first, now);
        self.last = now;
    }

    /// Compares both clocks, if that is due at this tick.
    pub(super) fn compare(&mut self, ticks: u64) {
        if self.ns(ticks.saturating_sub(self.last.ticks)) < COMPARED_EACH_NS && ticks >= self.last.ticks {
            return;
        }
        let now = Instant::now();
        // Who comes with a tick of before the last comparison (what is due is asked more than once for one) would compare them over an
        // instant that says nothing.
        if now.ns.saturating_sub(self.last.ns) < FIRST_NS {
            return;
        }
        let recent = Self::ratio(self.last, now);
        if (recent / self.ns_per_tick - 1.0).abs() > MOST_CHANGE {
            self.first = self.last;
        }
        self.set(now);
    }

    /// The nanoseconds of so many ticks.
    #[inline]
    #[expect(clippy::cast_precision_loss, reason = "104 days lose a nanosecond")]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative; too much becomes the most"
    )]
    pub(super) fn ns(&self, ticks: u64) -> u64 {
        (ticks as f64 * self.ns_per_tick) as u64
    }

    /// When a tick was, by CLOCK_MONOTONIC.
    #[inline]
    pub(super) fn at(&self, ticks: u64) -> u64 {
        match ticks.checked_sub(self.last.ticks) {
            Some(since) => self.last.ns + self.ns(since),
            None => self.last.ns.saturating_sub(self.ns(self.last.ticks - ticks)),
        }
    }

    /// So many nanoseconds in ticks.
    #[inline]
    pub(super) fn in_ticks(&self, ns: f64) -> f64 {
        ns / self.ns_per_tick
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_told_in_nanoseconds() {
        let mut clock = Clock::start();
        for _ in 0..3 {
            // Who loses the processor between two reads of clocks reads one of them late.
            let began = Instant::now();
            while monotonic_ns() - began.ns < COMPARED_EACH_NS {
                std::hint::spin_loop();
            }
            let ended = Instant::now();
            clock.compare(ended.ticks);
            let (found, truth) = (clock.ns(ended.ticks - began.ticks), ended.ns - began.ns);
            assert!(found.abs_diff(truth) < truth / 50, "{found} of {truth} ns");
            assert!(clock.at(ended.ticks).abs_diff(ended.ns) < truth / 50);
        }
    }

    #[test]
    fn clocks_between_which_the_processor_was_lost_are_not_compared() {
        let reads =
            [(100, 1_000, 20_000_100), (20_000_200, 10_001_050, 20_000_240), (20_000_300, 10_001_100, 20_000_400)];
        assert_eq!(Instant::narrowest(reads.into_iter()), Instant { ticks: 20_000_220, ns: 10_001_050 });
    }

    #[test]
    fn clocks_are_not_compared_over_an_instant() {
        let last = Instant::now();
        // However long this thread is not run.
        let later = Instant { ns: last.ns + 3_600_000_000_000, ..last };
        let mut clock = Clock { ns_per_tick: 0.5, first: last, last: later };
        clock.compare(last.ticks - 1);
        assert_eq!(clock.in_ticks(1.0).to_bits(), 2.0_f64.to_bits());
    }

    #[test]
    fn a_counter_that_was_set_anew_is_learnt_anew() {
        let instant = |ticks, ns| Instant { ticks, ns };
        let mut clock = Clock { ns_per_tick: 0.5, first: instant(0, 0), last: instant(2_000_000, 1_000_000) };
        assert_eq!(clock.at(2_000_400), 1_000_200);
        assert_eq!(clock.at(1_999_600), 999_800);
        clock.compare(0);
        assert!(clock.ns_per_tick.is_finite() && clock.ns_per_tick > 0.0);
    }
}
