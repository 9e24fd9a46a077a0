//! Which suspensions become samples: one of `t` does with probability 1 − e^(−t/M) and stands for t / that. So sums are unbiased, and
//! suspensions that are long beside M are all there, exact.
//!
//! M follows from the samples there were: it makes as many a second as are aimed at, and while there are fewer it is short, so each
//! wait of a span is in its profile, also when a herd that made it long is over. It depends on the past alone, so no sum is biased by
//! it. To follow the *sum* of suspended time was worse: a thousand idle tasks made M seconds.
//!
//! What a thread may still be suspended until its next sample is kept in means, as M changes meanwhile: a time that was drawn with the M
//! of then and weighed with the one of now made sums of ninefold.

use crate::awaits::clock::Clock;

/// Samples a second that are aimed at, of the process: of flows that spans began in, and of concurrent ones. These come in herds, and
/// must not make the others' sums uncertain. Each sample takes about a microsecond, and twice 200 bytes of its thread's ring where a
/// part of it was ready.
pub(super) const OWN_A_SECOND: f64 = 60.0;
pub(super) const CONCURRENT_A_SECOND: f64 = 40.0;
const LEAST_MEAN_NS: f64 = 100_000.0;
const FIRST_MEAN_NS: f64 = 1_000_000.0;
/// How often M is steered, and by how much at most: upwards at once, downwards for each of these times.
const STEERED_EACH_NS: f64 = 100_000_000.0;
const LEAST_STEP: f64 = 0.8;
const MOST_STEP: f64 = 1.5;
/// The samples of how long may come at once, and by how much M grows with each one beyond: ten thousand tasks may go on at one instant,
/// and what the thread's ring does not hold is lost. With 1.1 M overshot, and sums were three times as uncertain.
const AT_ONCE_SECONDS: f64 = 2.0;
const BEYOND: f64 = 1.02;

/// M, of the whole process.
#[derive(Debug)]
pub(super) struct Rate {
    mean_ns: f64,
    /// 1 / M, in ticks.
    pub(super) per_tick: f64,
    a_second: f64,
    steered_at: u64,
    samples: f64,
    /// Samples that may still be taken before they are too many.
    left: f64,
    left_at: u64,
}

impl Rate {
    pub(super) const fn none() -> Self {
        Self {
            mean_ns: FIRST_MEAN_NS,
            per_tick: 0.0,
            a_second: 0.0,
            steered_at: 0,
            samples: 0.0,
            left: 0.0,
            left_at: 0,
        }
    }

    pub(super) fn new(now: u64, a_second: f64, clock: &Clock) -> Self {
        let per_tick = 1.0 / clock.in_ticks(FIRST_MEAN_NS);
        Self { per_tick, a_second, steered_at: now, left: AT_ONCE_SECONDS * a_second, left_at: now, ..Self::none() }
    }

    /// A sample is taken.
    #[expect(clippy::cast_precision_loss, reason = "differences of times")]
    pub(super) fn count(&mut self, now: u64, clock: &Clock) {
        self.samples += 1.0;
        self.steer(now);
        let gained = now.saturating_sub(self.left_at) as f64 * 1e-9 * self.a_second;
        self.left = (self.left + gained).min(AT_ONCE_SECONDS * self.a_second) - 1.0;
        self.left_at = now;
        if self.left < 0.0 {
            self.mean_ns *= BEYOND;
        }
        self.set(clock);
    }

    /// The loop waited until now: M follows also where no sample comes, and falls then.
    #[inline]
    pub(super) fn pass(&mut self, now: u64, clock: &Clock) {
        if self.steer(now) {
            self.set(clock);
        }
    }

    #[inline]
    #[expect(clippy::cast_precision_loss, reason = "a difference of times")]
    fn steer(&mut self, now: u64) -> bool {
        let since = now.saturating_sub(self.steered_at) as f64;
        let is_due = since > STEERED_EACH_NS;
        if is_due {
            let ratio = self.samples / (self.a_second * since * 1e-9);
            self.mean_ns *= ratio.clamp(LEAST_STEP.powf(since / STEERED_EACH_NS), MOST_STEP);
            (self.steered_at, self.samples) = (now, 0.0);
        }
        is_due
    }

    fn set(&mut self, clock: &Clock) {
        self.mean_ns = self.mean_ns.max(LEAST_MEAN_NS);
        self.per_tick = 1.0 / clock.in_ticks(self.mean_ns);
    }
}

/// How long a thread's flows may still be suspended until its next sample, in means.
#[derive(Debug)]
pub(super) struct Remaining {
    pub(super) means: f64,
    random: u64,
}

impl Remaining {
    pub(super) const fn new() -> Self {
        Self { means: 0.0, random: 0 }
    }

    /// A suspension of so many ticks is over. True: it may be a sample.
    #[inline(always)]
    #[expect(clippy::cast_precision_loss, reason = "a suspension of 104 days loses a nanosecond")]
    pub(super) fn is_used_up(&mut self, took: u64, per_tick: f64) -> bool {
        self.means -= took as f64 * per_tick;
        self.means <= 0.0
    }

    /// The ticks that a suspension stands for, which left nothing remaining. `None`: it is no sample after all, as nothing was drawn yet.
    #[expect(clippy::cast_precision_loss, reason = "a suspension of 104 days loses a nanosecond")]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative; too much becomes the most"
    )]
    pub(super) fn weight_of(&mut self, took: u64, per_tick: f64, seed: u64) -> Option<u64> {
        if self.random == 0 {
            self.random = (seed ^ std::ptr::from_ref(self).addr() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            self.means += self.exponential();
            if self.means > 0.0 {
                return None;
            }
        }
        self.means = self.exponential();
        let took = took as f64;
        Some((took / -(-took * per_tick).exp_m1() + 0.5) as u64)
    }

    /// xorshift64: no more is asked of it.
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    fn exponential(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        -(((self.random >> 11) + 1) as f64 / 9_007_199_254_740_993.0).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_suspensions_stand_for_adds_up_to_what_they_took() {
        for (took, number, tolerance) in [(3_000, 2_000_000, 0.08), (400_000, 200_000, 0.02), (30_000_000, 1_000, 1e-6)]
        {
            let mut remaining = Remaining::new();
            let mut sum = 0;
            for _ in 0..number {
                if remaining.is_used_up(took, 1e-6) {
                    sum += remaining.weight_of(took, 1e-6, 7).unwrap_or(0);
                }
            }
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let ratio = sum as f64 / (took * number) as f64;
            assert!((ratio - 1.0).abs() < tolerance, "{took}: {ratio}");
        }
    }

    /// Many threads begin at once, so M rises. What is drawn with one M must not be weighed with another.
    #[test]
    fn sums_are_right_while_the_mean_rises() {
        const THREADS: u64 = 200;
        const TOOK: u64 = 1_000_000;
        let clock = Clock::new();
        let (mut sum, mut truth) = (0, 0);
        for run in 0..20 {
            let mut rate = Rate::new(0, OWN_A_SECOND, &clock);
            // What is drawn must not depend on where these happen to lie.
            let thread = |thread: u64| {
                let random = (run * THREADS + thread + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let mut remaining = Remaining { means: 0.0, random };
                remaining.means = (0..10).map(|_| remaining.exponential()).last().unwrap_or(0.0);
                remaining
            };
            let mut threads: Vec<Remaining> = (0..THREADS).map(thread).collect();
            for round in 0..500 {
                for (number, remaining) in (0..).zip(&mut threads) {
                    truth += TOOK;
                    if remaining.is_used_up(TOOK, rate.per_tick)
                        && let Some(weight) = remaining.weight_of(TOOK, rate.per_tick, 7)
                    {
                        sum += weight;
                        rate.count(round * TOOK + number * TOOK / THREADS, &clock);
                    }
                }
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let ratio = sum as f64 / truth as f64;
        assert!((ratio - 1.0).abs() < 0.1, "{ratio}");
    }

    #[test]
    fn a_herd_makes_no_more_than_some_hundred_samples() {
        const TOOK: u64 = 1_000_000_000;
        let clock = Clock::new();
        let (mut rate, mut remaining, mut samples) = (Rate::new(0, CONCURRENT_A_SECOND, &clock), Remaining::new(), 0);
        for _ in 0..100_000 {
            if remaining.is_used_up(TOOK, rate.per_tick) && remaining.weight_of(TOOK, rate.per_tick, 7).is_some() {
                rate.count(1, &clock);
                samples += 1;
            }
        }
        assert!((50..1_500).contains(&samples), "{samples}");
        // It is over, and the loop waits 10 ms at a time for 10 s: what is awaited for 10 ms is a sample again, and stands for itself.
        (0..1_000).for_each(|wait| rate.pass(TOOK / 10 + wait * 10_000_000, &clock));
        let weights: Vec<u64> = (0..100)
            .filter_map(|_| {
                let took = 10_000_000;
                remaining.is_used_up(took, rate.per_tick).then(|| remaining.weight_of(took, rate.per_tick, 7)).flatten()
            })
            .collect();
        assert!(weights.len() > 90 && weights.iter().all(|weight| *weight < 10_100_000), "{weights:?}");
    }
}
