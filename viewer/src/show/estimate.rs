//! The formulas: shares, percentiles, and how sure a share is. n samples of one value are n draws, so a share p of them has
//! the standard error √(p(1−p)/n). Where values differ, as bytes of allocations do, few samples may hold most of it:
//! [`Sums::equal_samples`] is the n then.

use serde::Serialize;

use crate::states::is_zero;

/// Below this many samples a flame graph says that it shows little.
pub(crate) const FEW_SAMPLES: i64 = 10;

/// What part `of` is `part`; 0 of nothing.
pub(crate) fn share(part: i64, of: i64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

/// What a selection adds up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Sums {
    /// Value of all samples.
    pub(crate) total: i64,
    /// How many samples.
    pub(crate) samples: i64,
    /// How many samples of one value would be as sure: the square of the sum of values over the sum of their squares. The
    /// samples of a stack are taken to be alike. For CPU time it is the number of samples.
    pub(crate) equal_samples: f64,
    /// Of how many profiles all values are the average, where they are of instants; else they are added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) averaged_over: Option<i64>,
    /// What of the total is beside the wall time of its spans: other threads or tasks spent it in them meanwhile.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) concurrent: i64,
}

impl Sums {
    /// Of `(value, number of samples)` for each stack.
    pub(crate) fn of(stacks: impl Iterator<Item = (i64, i64)>) -> Self {
        let (mut total, mut samples, mut squares) = (0_i64, 0_i64, 0.0);
        for (value, count) in stacks {
            total = total.saturating_add(value);
            samples = samples.saturating_add(count);
            squares += (value as f64).powi(2) / count.max(1) as f64;
        }
        let equal_samples = if squares > 0.0 { (total as f64).powi(2) / squares } else { samples as f64 };
        Self { total, samples, equal_samples, averaged_over: None, concurrent: 0 }
    }

    /// The standard error of a share of them.
    pub(crate) fn error(&self, share: f64) -> f64 {
        share_error(share, self.equal_samples)
    }
}

/// The standard error of a value that is the sum of so many equal samples: its √n-th part.
#[expect(clippy::cast_possible_truncation, reason = "three digits are shown")]
pub(crate) fn value_error(value: i64, samples: i64) -> i64 {
    (value as f64 / (samples.max(1) as f64).sqrt()) as i64
}

fn share_error(share: f64, samples: f64) -> f64 {
    if samples <= 0.0 { 0.0 } else { (share * (1.0 - share) / samples).max(0.0).sqrt() }
}

/// How a share differs between two selections.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Change {
    /// Share of a.
    pub(crate) a: f64,
    /// Share of b.
    pub(crate) b: f64,
    /// `b − a`.
    pub(crate) change: f64,
    /// Standard error of the change.
    pub(crate) error: f64,
    /// Whether the change is larger than twice its error, which chance alone exceeds one time in twenty.
    pub(crate) sure: bool,
}

/// Compares a part of each of two selections; `all` are the whole selections.
pub(crate) fn change(part: [i64; 2], all: [Sums; 2]) -> Change {
    let [a, b] = [0, 1].map(|side| share(part[side], all[side].total));
    // A share of 0 or 1 is as uncertain as one sample more or less would make it.
    let spread = |p: f64, n: f64| {
        let least = if n > 0.0 { 1.0 / (n + 1.0) } else { 1.0 };
        share_error(p.clamp(least.min(0.5), (1.0 - least).max(0.5)), n)
    };
    let error = spread(a, all[0].equal_samples).hypot(spread(b, all[1].equal_samples));
    let change = b - a;
    Change { a, b, change, error, sure: all.iter().all(|side| side.samples > 0) && change.abs() > 2.0 * error }
}

/// The smallest value that `percent` of 100 do not exceed.
pub(super) fn percentile(sorted: &[i64], percent: usize) -> Option<i64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_those_of_a_draw() {
        let of = |samples| sums(samples * 7, samples);
        assert!((of(1420).error(share(380, 1000)) - 0.012_88).abs() < 1e-5);
        assert_eq!([value_error(70, 49), value_error(70, 0)], [10, 70]);
        assert!(of(10).error(1.0) == 0.0 && of(0).error(0.5) == 0.0 && share(1, 0) == 0.0);
    }

    #[test]
    fn samples_that_hold_most_of_the_value_count_for_the_few_that_they_are() {
        // A thousand allocations of 100 KB and one of 100 MB: half of the bytes are one draw.
        let sums = Sums::of([(100_000_000, 1_000), (100_000_000, 1)].into_iter());
        assert_eq!((sums.total, sums.samples), (200_000_000, 1_001));
        assert!((sums.equal_samples - 3.996).abs() < 1e-3 && (sums.error(0.5) - 0.250_1).abs() < 1e-4);
        // CPU time: each sample is worth the same, whatever stack it has.
        assert!((Sums::of([(70, 7), (30, 3), (0, 0)].into_iter()).equal_samples - 10.0).abs() < 1e-9);
    }

    fn sums(total: i64, samples: i64) -> Sums {
        Sums::of(std::iter::once((total, samples)))
    }

    #[test]
    fn a_change_is_sure_beyond_twice_its_error() {
        // 40 % of 400 against 50 % of 100: √(0.24/400 + 0.25/100) = 5.57 %.
        let close = change([160, 50], [sums(400, 400), sums(100, 100)]);
        assert!((close.change - 0.1).abs() < 1e-9 && (close.error - 0.055_68).abs() < 1e-5 && !close.sure);
        assert!(change([160, 60], [sums(400, 400), sums(100, 100)]).sure);
        // Whatever the units of the two sides are, shares are compared.
        assert!(change([1, 1_000], [sums(2, 50), sums(2_000, 50)]).change.abs() < 1e-9);
    }

    #[test]
    fn nothing_is_sure_without_samples_or_with_one() {
        assert!(!change([0, 10], [sums(0, 0), sums(10, 10)]).sure);
        assert!(!change([0, 1], [sums(1, 1), sums(1, 1)]).sure);
        assert!(change([0, 40], [sums(100, 100), sums(100, 100)]).sure);
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let walls: Vec<i64> = (1..=20).collect();
        assert_eq!([50, 95, 99].map(|percent| percentile(&walls, percent)), [Some(10), Some(19), Some(20)]);
        assert_eq!((percentile(&[7], 50), percentile(&[7], 95), percentile(&[], 50)), (Some(7), Some(7), None));
    }
}
