//! How sure a share is. n samples are n draws, so a share p of them has the standard error √(p(1−p)/n).

use serde::Serialize;

/// What part `of` is `part`; 0 of nothing.
pub(crate) fn share(part: i64, of: i64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

/// The standard error of a share that `samples` were drawn for.
pub(crate) fn share_error(share: f64, samples: i64) -> f64 {
    if samples <= 0 { 0.0 } else { (share * (1.0 - share) / samples as f64).max(0.0).sqrt() }
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

/// Compares a part of each of two selections; `all` and `samples` are those of the whole selections.
pub(crate) fn change(part: [i64; 2], all: [i64; 2], samples: [i64; 2]) -> Change {
    let [a, b] = [0, 1].map(|side| share(part[side], all[side]));
    // A share of 0 or 1 is as uncertain as one sample more or less would make it.
    let spread = |p: f64, n: i64| {
        let least = if n > 0 { 1.0 / (n as f64 + 1.0) } else { 1.0 };
        share_error(p.clamp(least.min(0.5), (1.0 - least).max(0.5)), n)
    };
    let error = spread(a, samples[0]).hypot(spread(b, samples[1]));
    let change = b - a;
    Change { a, b, change, error, sure: samples.iter().all(|n| *n > 0) && change.abs() > 2.0 * error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_those_of_a_draw() {
        assert!((share_error(share(380, 1000), 1420) - 0.012_88).abs() < 1e-5);
        assert!(share_error(1.0, 10) == 0.0 && share_error(0.5, 0) == 0.0 && share(1, 0) == 0.0);
    }

    #[test]
    fn a_change_is_sure_beyond_twice_its_error() {
        // 40 % of 400 against 50 % of 100: √(0.24/400 + 0.25/100) = 5.57 %.
        let close = change([160, 50], [400, 100], [400, 100]);
        assert!((close.change - 0.1).abs() < 1e-9 && (close.error - 0.055_68).abs() < 1e-5 && !close.sure);
        assert!(change([160, 60], [400, 100], [400, 100]).sure);
        // Whatever the units of the two sides are, shares are compared.
        assert!(change([1, 1_000], [2, 2_000], [50, 50]).change.abs() < 1e-9);
    }

    #[test]
    fn nothing_is_sure_without_samples_or_with_one() {
        assert!(!change([0, 10], [0, 10], [0, 10]).sure);
        assert!(!change([0, 1], [1, 1], [1, 1]).sure);
        assert!(change([0, 40], [100, 100], [100, 100]).sure);
    }
}
