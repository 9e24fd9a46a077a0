//! When to try again.

use std::time::{Duration, SystemTime};

use super::random::random;

/// The wait before try `failures` + 1: a random part of 1 s, 2 s, 4 s … `max`, so that clients do not return together.
pub(super) fn backoff(failures: u32, first: Duration, max: Duration) -> Duration {
    let ceiling = first.saturating_mul(1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX)).min(max);
    let part = u32::try_from(random() >> 32).unwrap_or(u32::MAX);
    ceiling.mul_f64(f64::from(part) / f64::from(u32::MAX))
}

/// Reads `Retry-After`: seconds, or a date as HTTP writes it.
pub(super) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(http_date(value)?))?;
    Some(at.duration_since(now).unwrap_or(Duration::ZERO))
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` in seconds since the epoch. The two older forms of RFC 9110 are no longer sent.
fn http_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = text.split_once(", ")?.1.split(' ');
    let day: u64 = words.next()?.parse().ok()?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|known| *known == month)? as u64;
    let year: u64 = words.next()?.parse().ok().filter(|year| (1970..=9999).contains(year))?;
    let mut time = words.next()?.split(':').map(str::parse);
    let (hour, minute, second): (u64, u64, u64) = (time.next()?.ok()?, time.next()?.ok()?, time.next()?.ok()?);
    if words.next() != Some("GMT") || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Years that start in March have their leap day at the end, so that a month's start is a linear function.
    let (year, month) = if month < 2 { (year - 1, month + 10) } else { (year, month - 2) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 306 + 5) / 10 + day - 1;
    Some((days - 719_468) * 86_400 + hour * 3_600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_limit_and_are_spread() {
        let (first, max) = (Duration::from_secs(1), Duration::from_secs(30));
        for (failures, ceiling) in [(1, 1), (2, 2), (3, 4), (6, 30), (40, 30), (u32::MAX, 30)] {
            let waits: Vec<_> = (0..200).map(|_| backoff(failures, first, max)).collect();
            let ceiling = Duration::from_secs(ceiling);
            assert!(waits.iter().all(|wait| *wait <= ceiling));
            assert!(waits.iter().any(|wait| *wait > ceiling / 2), "{failures}");
            assert!(waits.iter().any(|wait| *wait < ceiling / 2), "{failures}");
        }
        assert_eq!(backoff(9, Duration::ZERO, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let read = |text| retry_after(text, now);
        assert_eq!(read("120"), Some(Duration::from_secs(120)));
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert_eq!(read("Sun, 06 Nov 1994 08:50:07 GMT"), Some(Duration::from_secs(30)));
        assert_eq!(read("Sat, 05 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert_eq!(read("Thu, 29 Feb 2024 00:00:00 GMT"), Some(Duration::from_secs(1_709_164_800 - 784_111_777)));
        assert_eq!(read("Fri, 01 Mar 2024 00:00:00 GMT"), Some(Duration::from_secs(1_709_251_200 - 784_111_777)));
        for bad in
            ["", "-1", "soon", "Sun, 06 Foo 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 CET", "x, 1 Jan 0 0:0:0 GMT"]
        {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
