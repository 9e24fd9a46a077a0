//! A bound on the wall time of spans: a time, or a percentile of the spans that the rest of the selection chooses.

use crate::clock::{MILLISECOND, SECOND};
use crate::params::BadParameter;

/// The least or the most that a span may take, itself included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// Nanoseconds.
    Time(i64),
    /// That many of a hundred spans take at most as long.
    Percentile(u8),
}

impl Bound {
    /// Reads `200ms`, `1.5s` or `p95`; `name` is the parameter it is the value of.
    pub(super) fn parse(name: &str, text: &str) -> Result<Self, BadParameter> {
        let percentile = |text: &str| text.strip_prefix('p')?.parse().ok().filter(|p| (1..=99).contains(p));
        percentile(text).map(Self::Percentile).or_else(|| nanoseconds(text).map(Self::Time)).ok_or_else(|| {
            BadParameter::new(
                name,
                text,
                "allowed is a time such as 500us, 200ms, 1.5s or 2m, or a percentile p1 to p99",
            )
        })
    }

    /// The shortest text that parses to this bound.
    pub(crate) fn text(self) -> String {
        match self {
            Self::Percentile(percentile) => format!("p{percentile}"),
            Self::Time(ns) if ns % SECOND == 0 => format!("{}s", ns / SECOND),
            Self::Time(ns) if ns % MILLISECOND == 0 => format!("{}ms", ns / MILLISECOND),
            Self::Time(ns) if ns % 1_000 == 0 => format!("{}us", ns / 1_000),
            Self::Time(ns) => format!("{ns}ns"),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "it is within the range that is checked before")]
fn nanoseconds(text: &str) -> Option<i64> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(unit_at);
    let unit = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => 60 * SECOND,
        "h" => 3_600 * SECOND,
        _ => return None,
    };
    // More than a century is no time of a span; below it, the sum fits.
    let ns = number.parse::<f64>().ok()? * unit as f64;
    (0.0..3e18).contains(&ns).then(|| ns.round() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_percentiles_survive() {
        for (text, bound, written) in [
            ("200ms", Bound::Time(200 * MILLISECOND), "200ms"),
            ("1.5s", Bound::Time(1_500 * MILLISECOND), "1500ms"),
            ("50µs", Bound::Time(50_000), "50us"),
            ("2m", Bound::Time(120 * SECOND), "120s"),
            ("7ns", Bound::Time(7), "7ns"),
            ("0s", Bound::Time(0), "0s"),
            ("p95", Bound::Percentile(95), "p95"),
        ] {
            assert_eq!(Bound::parse("dur>", text).unwrap(), bound);
            assert_eq!((bound.text().as_str(), Bound::parse("dur>", written).unwrap()), (written, bound));
        }
        for bad in ["", "5", "p0", "p100", "p9x", "-1s", "s", "1.2.3s", "1e9s", "9999999999h", "1 s", "1é"] {
            let refused = Bound::parse("dur<", bad).unwrap_err().to_string();
            assert!(refused.contains("\"dur<\"") && refused.contains("p1 to p99"), "{bad}: {refused}");
        }
    }
}
