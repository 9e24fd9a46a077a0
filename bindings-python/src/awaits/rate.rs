//! Which suspensions become samples: one of `t` does with probability 1 − e^(−t/M) and stands for t / that. So sums are unbiased, and
//! suspensions that are long beside M are all there, exact.
//!
//! M follows from the samples there were: it makes as many a second as are aimed at, and while there are fewer it is short, so each
//! wait of a span is in its profile. It depends on the past alone, so no sum is biased by it. To follow the *sum* of suspended time was
//! worse: a thousand idle tasks made M seconds.

/// Samples a second that are aimed at, of the process. Each takes about a microsecond, and twice 200 bytes of its thread's ring where a
/// part of it was ready.
const SAMPLES_A_SECOND: f64 = 250.0;
const LEAST_MEAN_NS: f64 = 100_000.0;
const FIRST_MEAN_NS: f64 = 1_000_000.0;
/// How often M is steered, and by how much at most.
const STEERED_EACH_NS: f64 = 100_000_000.0;
const LEAST_STEP: f64 = 0.8;
const MOST_STEP: f64 = 1.5;
/// How many may come at once, and by how much M grows with each one beyond: ten thousand tasks may go on at one instant, and what the
/// thread's ring does not hold is lost. With 1.1 M overshot, and sums were three times as uncertain.
const MOST_AT_ONCE: f64 = 200.0;
const BEYOND: f64 = 1.02;

/// M, of the whole process.
#[derive(Debug)]
pub(super) struct Rate {
    pub(super) mean_ns: f64,
    steered_at: u64,
    samples: f64,
    /// Samples that may still be taken before they are too many.
    left: f64,
    left_at: u64,
}

impl Rate {
    pub(super) const fn new(now: u64) -> Self {
        Self { mean_ns: FIRST_MEAN_NS, steered_at: now, samples: 0.0, left: MOST_AT_ONCE, left_at: now }
    }

    /// A sample is taken.
    #[expect(clippy::cast_precision_loss, reason = "differences of times")]
    pub(super) fn count(&mut self, now: u64) {
        self.samples += 1.0;
        let since = now.saturating_sub(self.steered_at) as f64;
        if since > STEERED_EACH_NS {
            let ratio = self.samples / (SAMPLES_A_SECOND * since * 1e-9);
            self.mean_ns *= ratio.clamp(LEAST_STEP, MOST_STEP);
            (self.steered_at, self.samples) = (now, 0.0);
        }
        let gained = now.saturating_sub(self.left_at) as f64 * 1e-9 * SAMPLES_A_SECOND;
        self.left = (self.left + gained).min(MOST_AT_ONCE) - 1.0;
        self.left_at = now;
        if self.left < 0.0 {
            self.mean_ns *= BEYOND;
        }
        self.mean_ns = self.mean_ns.max(LEAST_MEAN_NS);
    }
}

/// How many ticks a thread's flows may still be suspended until its next sample.
#[derive(Debug)]
pub(super) struct Remaining {
    pub(super) ticks: i64,
    random: u64,
}

impl Remaining {
    pub(super) const fn new() -> Self {
        Self { ticks: 0, random: 0 }
    }

    /// The ticks that a suspension stands for, which left nothing remaining. `None`: it is no sample after all, as nothing was drawn yet.
    #[expect(clippy::cast_precision_loss, reason = "a suspension of 104 days loses a nanosecond")]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative; too much becomes the most"
    )]
    pub(super) fn weight_of(&mut self, took: u64, mean: f64, seed: u64) -> Option<u64> {
        if self.random == 0 {
            self.random = (seed ^ std::ptr::from_ref(self).addr() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            self.ticks = self.ticks.saturating_add(self.exponential(mean));
            if self.ticks > 0 {
                return None;
            }
        }
        self.ticks = self.exponential(mean);
        let took = took as f64;
        Some((took / -(-took / mean).exp_m1() + 0.5) as u64)
    }

    /// xorshift64: no more is asked of it.
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    #[expect(clippy::cast_possible_truncation, reason = "too much becomes the most")]
    fn exponential(&mut self, mean: f64) -> i64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (-(((self.random >> 11) + 1) as f64 / 9_007_199_254_740_993.0).ln() * mean) as i64
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
                remaining.ticks -= took;
                if remaining.ticks <= 0 {
                    sum += remaining.weight_of(took.cast_unsigned(), 1e6, 7).unwrap_or(0);
                }
            }
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let ratio = sum as f64 / (took * number) as f64;
            assert!((ratio - 1.0).abs() < tolerance, "{took}: {ratio}");
        }
    }

    #[test]
    fn a_herd_makes_no_more_than_some_hundred_samples() {
        let (mut rate, mut remaining, mut samples) = (Rate::new(0), Remaining::new(), 0);
        for _ in 0..100_000 {
            remaining.ticks -= 1_000_000_000;
            if remaining.ticks <= 0 && remaining.weight_of(1_000_000_000, rate.mean_ns, 7).is_some() {
                rate.count(1);
                samples += 1;
            }
        }
        assert!((150..1_500).contains(&samples), "{samples}");
    }
}
