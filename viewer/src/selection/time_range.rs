//! The time range of a selection.

use std::sync::OnceLock;
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::{self, MILLISECOND};
use crate::params::{BadParameter, Params};

/// What is asked for where no time range is said, unless the process has another.
pub(crate) const LAST_HOUR: TimeRange = TimeRange::Since(Duration::from_secs(3_600));

/// The one of this process: links are written with it, so whatever reads them must know the same.
static USUAL: OnceLock<TimeRange> = OnceLock::new();

/// A time range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeRange {
    /// Everything that is stored: what a single span or trace is looked up in.
    Stored,
    /// The time up to now.
    Since(Duration),
    /// Unix milliseconds, both included.
    Between(i64, i64),
}

impl TimeRange {
    /// The time range where none is said.
    pub(crate) fn usual() -> Self {
        USUAL.get().copied().unwrap_or(LAST_HOUR)
    }

    /// Makes it the usual one, once, before any is asked for.
    pub(crate) fn make_usual(self) {
        USUAL.get_or_init(|| self);
    }

    /// Takes `since`, or `from` and `to`.
    pub(crate) fn take(params: &mut Params, default: Self) -> Result<Self, BadParameter> {
        let since = params.take("since")?;
        let from = params.take("from")?;
        let to = params.take("to")?;
        match (since, from, to) {
            (None, None, None) => Ok(default),
            (Some(since), None, None) if since == "all" => Ok(Self::Stored),
            (Some(since), None, None) => parse_duration(&since).map(Self::Since).map_err(|_| {
                BadParameter::new("since", &since, "allowed is a time such as 90s, 15m, 1h or 2d, or all")
            }),
            (None, Some(from), Some(to)) => {
                let (from_ms, to_ms) = (milliseconds("from", &from)?, milliseconds("to", &to)?);
                if from_ms > to_ms {
                    return Err(BadParameter::new("from", &from, "is after to"));
                }
                Ok(Self::Between(from_ms, to_ms))
            }
            (Some(since), ..) => {
                Err(BadParameter::new("since", &since, "is given together with from and to; give one or the other"))
            }
            (None, Some(from), None) => Err(BadParameter::new("from", &from, "needs to beside it")),
            (None, None, Some(to)) => Err(BadParameter::new("to", &to, "needs from beside it")),
        }
    }

    /// First and last nanosecond.
    pub(crate) fn bounds(self) -> (i64, i64) {
        match self {
            Self::Stored => (i64::MIN, i64::MAX),
            Self::Since(since) => {
                (clock::now().saturating_sub(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)), i64::MAX)
            }
            Self::Between(from, to) => {
                (from.saturating_mul(MILLISECOND), to.saturating_mul(MILLISECOND).saturating_add(MILLISECOND - 1))
            }
        }
    }

    /// `last hour`, `last 15 min`, `2026-11-21 23:50:00 to 2026-11-21 23:55:00 UTC`.
    pub(crate) fn words(self) -> String {
        match self {
            Self::Stored => "all that is stored".into(),
            Self::Since(since) => format!("last {}", since_words(since)),
            Self::Between(from, to) => format!("{} to {} UTC", utc_words(from), utc_words(to)),
        }
    }

    /// The range of the same length before this one; none for everything that is stored.
    pub(crate) fn before(self) -> Option<Self> {
        let (from, to) = match self {
            Self::Stored => return None,
            Self::Between(from, to) => (from, to),
            Self::Since(_) => (self.bounds().0 / MILLISECOND, clock::now() / MILLISECOND),
        };
        Some(Self::Between(from.saturating_sub(to - from).max(0), from))
    }

    /// The parameters that parse to this range.
    pub(super) fn query(self) -> Vec<(String, String)> {
        let pair = |name: &str, value: String| (name.to_owned(), value);
        match self {
            Self::Stored => vec![pair("since", "all".into())],
            Self::Since(since) => vec![pair("since", since_text(since))],
            Self::Between(from, to) => vec![pair("from", from.to_string()), pair("to", to.to_string())],
        }
    }
}

/// Reads a whole number with a unit: `90s`, `15m`, `1h`, `2d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let allowed = || format!("{text:?} is not a time such as 90s, 15m, 1h or 2d, of at least 1s");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(allowed)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(allowed()),
    };
    // A hundred years; more would overflow nanoseconds.
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(seconds))
        .filter(|seconds| (1..=3_153_600_000).contains(seconds))
        .map(Duration::from_secs)
        .ok_or_else(allowed)
}

/// The shortest text that [`parse_duration`] reads as this time.
pub(crate) fn since_text(since: Duration) -> String {
    let seconds = since.as_secs();
    match seconds {
        s if s % 86_400 == 0 => format!("{}d", s / 86_400),
        s if s % 3_600 == 0 => format!("{}h", s / 3_600),
        s if s % 60 == 0 => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}

fn since_words(since: Duration) -> String {
    match since.as_secs() {
        3_600 => "hour".into(),
        86_400 => "day".into(),
        s if s % 86_400 == 0 => format!("{} days", s / 86_400),
        s if s % 3_600 == 0 => format!("{} hours", s / 3_600),
        s if s % 60 == 0 => format!("{} min", s / 60),
        s => format!("{s} s"),
    }
}

fn milliseconds(name: &'static str, text: &str) -> Result<i64, BadParameter> {
    let number = text.parse().ok();
    let written = || text.parse::<Timestamp>().ok().map(Timestamp::as_millisecond);
    number.or_else(written).filter(|ms| *ms >= 0).ok_or_else(|| {
        BadParameter::new(name, text, "allowed are Unix milliseconds, or a time such as 2026-11-21T23:50:00Z")
    })
}

/// A time as people read it; beyond the years that are written with four digits, its number.
fn utc_words(unix_ms: i64) -> String {
    Timestamp::from_millisecond(unix_ms)
        .map_or_else(|_| unix_ms.to_string(), |time| time.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit_and_a_value() {
        assert_eq!(parse_duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("1h"), Ok(Duration::from_secs(3600)));
        for bad in ["", "h", "0h", "-1h", "1", "1w", "99999999999d", "1é"] {
            assert!(parse_duration(bad).unwrap_err().contains("15m"), "{bad}");
        }
    }
}
