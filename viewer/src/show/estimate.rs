//! How sure a share is. n samples are n draws, so a share p of them has the standard error √(p(1−p)/n).

/// What part `of` is `part`; 0 of nothing.
pub(crate) fn share(part: i64, of: i64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

/// The standard error of a share that `samples` were drawn for.
pub(crate) fn share_error(share: f64, samples: i64) -> f64 {
    if samples <= 0 { 0.0 } else { (share * (1.0 - share) / samples as f64).max(0.0).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_those_of_a_draw() {
        assert!((share_error(share(380, 1000), 1420) - 0.012_88).abs() < 1e-5);
        assert!(share_error(1.0, 10) == 0.0 && share_error(0.5, 0) == 0.0 && share(1, 0) == 0.0);
    }
}
