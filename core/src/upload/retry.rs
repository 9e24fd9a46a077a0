//! What an answer of the server means for a profile, and when to try again.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime};

/// What becomes of a profile after a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Accepted,
    /// Try again, not before the server said.
    Retry {
        after: Option<Duration>,
    },
    /// Try again twice: the server could not read the profile, or a proxy mangled it.
    RetryTwice,
    /// Send it in two halves.
    Halve,
    Refused,
}

/// What may have to be changed before a request succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// No setting: the server has its moment, or the profile is at fault.
    Nothing,
    Address,
    Credentials,
    Proxy,
    Certificates,
}

impl Blame {
    /// The settings and variables to look at, "" if none.
    pub(super) fn settings(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Address => "server_address",
            Self::Credentials => "basic_auth_user, basic_auth_password, tenant_id and http_headers",
            Self::Proxy => "HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY",
            Self::Certificates => "server_address and SSL_CERT_FILE",
        }
    }
}

/// A verdict with its reason, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    /// Such as "HTTP 401: no org id"; "" when accepted.
    pub(super) reason: String,
    pub(super) blame: Blame,
    /// Of the answer, if one came.
    pub(super) status: Option<u16>,
    /// The request may have arrived, but no answer to it did.
    pub(super) unanswered: bool,
}

impl Outcome {
    pub(super) fn accepted() -> Self {
        Self {
            verdict: Verdict::Accepted,
            reason: String::new(),
            blame: Blame::Nothing,
            status: None,
            unanswered: false,
        }
    }
}

/// Judges an answer: its status, the Connect code in its body ("" if there is none) and its `Retry-After`.
pub(super) fn judge(status: u16, code: &str, retry_after: Option<Duration>) -> (Verdict, Blame) {
    let retry = Verdict::Retry { after: retry_after };
    match status {
        200..=299 => (Verdict::Accepted, Blame::Nothing),
        300..=399 | 404 | 405 | 415 | 501 => (Verdict::Refused, Blame::Address),
        401 | 403 => (Verdict::Refused, Blame::Credentials),
        413 => (Verdict::Halve, Blame::Nothing),
        500 if code == "unknown" => (Verdict::RetryTwice, Blame::Nothing),
        408 | 429 | 500..=599 => (retry, Blame::Nothing),
        _ => (Verdict::Refused, Blame::Nothing),
    }
}

/// The wait before try `failures` + 1: a random part of 1 s, 2 s, 4 s … `max`, so that clients do not return together.
pub(super) fn backoff(failures: u32, first: Duration, max: Duration) -> Duration {
    let ceiling = first.saturating_mul(1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX)).min(max);
    let part = u32::try_from(random() >> 32).unwrap_or(u32::MAX);
    ceiling.mul_f64(f64::from(part) / f64::from(u32::MAX))
}

/// A UUID of version 4.
pub(super) fn uuid() -> String {
    let (high, low) = (random(), random());
    let version = (high & !0xf000) | 0x4000;
    let variant = (low & !(0b11 << 62)) | (0b10 << 62);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        version >> 32,
        (version >> 16) & 0xffff,
        version & 0xffff,
        variant >> 48,
        variant & 0xffff_ffff_ffff
    )
}

/// Random enough to spread requests: the hash map's keys, which the kernel seeds.
fn random() -> u64 {
    RandomState::new().hash_one(())
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
    fn answers_mean_what_the_protocol_says() {
        let after = Some(Duration::from_secs(7));
        let retry = Verdict::Retry { after };
        for (status, code, verdict) in [
            (200, "", Verdict::Accepted),
            (302, "", Verdict::Refused),
            (400, "invalid_argument", Verdict::Refused),
            (401, "unauthenticated", Verdict::Refused),
            (403, "", Verdict::Refused),
            (404, "", Verdict::Refused),
            (405, "", Verdict::Refused),
            (408, "", retry),
            (410, "", Verdict::Refused),
            (413, "", Verdict::Halve),
            (415, "", Verdict::Refused),
            (429, "resource_exhausted", retry),
            (500, "unknown", Verdict::RetryTwice),
            (500, "internal", retry),
            (500, "", retry),
            (501, "unimplemented", Verdict::Refused),
            (502, "", retry),
            (503, "unavailable", retry),
        ] {
            assert_eq!(judge(status, code, after).0, verdict, "{status} {code}");
        }
        assert!(judge(401, "", None).1.settings().contains("basic_auth_password"));
        assert!(judge(403, "", None).1.settings().contains("tenant_id"));
        assert_eq!(judge(404, "", None).1.settings(), "server_address");
        assert_eq!(judge(307, "", None).1.settings(), "server_address");
    }

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

    #[test]
    fn identifiers_differ_and_look_like_uuids() {
        let (one, other) = (uuid(), uuid());
        assert_ne!(one, other);
        assert_eq!(one.len(), 36);
        assert!(one.as_bytes()[14] == b'4' && b"89ab".contains(&one.as_bytes()[19]), "{one}");
    }
}
