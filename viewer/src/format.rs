//! Numbers as people read them: three digits and a unit.

use crate::clock::{self, SECOND};

/// A length of time: `1.23 s`, `42.0 ms`, `310 µs`, `12 min`.
pub(crate) fn time(ns: i64) -> String {
    match ns {
        0 => "0".into(),
        ns if ns < 1_000 => format!("{ns} ns"),
        ns if ns < 999_500 => three(ns as f64 / 1e3, "µs"),
        ns if ns < 999_500_000 => three(ns as f64 / 1e6, "ms"),
        ns if ns < 600 * SECOND => three(ns as f64 / 1e9, "s"),
        ns if ns < 36_000 * SECOND => format!("{} min", number(ns / (60 * SECOND))),
        ns => format!("{} h", number(ns / (3_600 * SECOND))),
    }
}

/// A value in the unit of its profile type.
pub(crate) fn value(value: i64, unit: &str) -> String {
    match unit {
        "nanoseconds" => time(value),
        "bytes" if value < 1_024 => format!("{value} B"),
        "bytes" if value < 1 << 20 => three(value as f64 / 1024.0, "KiB"),
        "bytes" if value < 1 << 30 => three(value as f64 / f64::from(1 << 20), "MiB"),
        "bytes" => three(value as f64 / f64::from(1 << 30), "GiB"),
        "count" => number(value),
        other => format!("{} {other}", number(value)),
    }
}

/// A whole number: `5,210`.
pub(crate) fn number(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if value < 0 {
        out.push('−');
    }
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A whole number and what it counts, which takes an s unless it is 1.
pub(crate) fn counted(value: i64, what: &str) -> String {
    if value == 1 { format!("1 {what}") } else { format!("{} {what}s", number(value)) }
}

/// Characters of a name that is asked for, where a sentence says it again.
pub(crate) const MOST_OF_A_NAME: usize = 100;

/// As many characters of a text as have room in a sentence.
pub(crate) fn short(text: &str, most: usize) -> String {
    let mut left = text.chars();
    let start: String = left.by_ref().take(most).collect();
    if left.next().is_some() { start + "…" } else { start }
}

/// A share: `38 %`, `3.8 %`, `0.4 %`.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent == 0.0 || percent >= 9.95 { fixed(percent, 0) + " %" } else { fixed(percent, 1) + " %" }
}

/// The error of a share, beside it: `± 1.3`.
pub(crate) fn error(error: f64) -> String {
    let percent = error * 100.0;
    if percent >= 9.95 { format!("± {}", fixed(percent, 0)) } else { format!("± {}", fixed(percent, 1)) }
}

/// How long ago a time was: `3 s ago`.
pub(crate) fn ago(unix_ms: i64) -> String {
    let seconds = ((clock::now() / clock::MILLISECOND - unix_ms) / 1_000).max(0);
    match seconds {
        s if s < 120 => format!("{s} s ago"),
        s if s < 7_200 => format!("{} min ago", s / 60),
        s => format!("{} h ago", s / 3_600),
    }
}

/// A time of day in UTC: `14:03:59.120`.
pub(crate) fn clock_time(unix_ns: i64) -> String {
    let ms = unix_ns.rem_euclid(86_400 * SECOND) / clock::MILLISECOND;
    format!("{:02}:{:02}:{:02}.{:03}", ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60, ms % 1_000)
}

/// A rate or a ratio: three digits, and no more than two behind the point.
pub(crate) fn rate(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        v if v < 0.005 => "< 0.01".into(),
        v => digits(v),
    }
}

/// A difference of shares in points: `+37`, `−4.2`, `0`.
pub(crate) fn points(change: f64) -> String {
    let points = change * 100.0;
    let sign = if points < 0.0 { "−" } else { "+" };
    match points.abs() {
        p if p < 0.05 => "0".into(),
        p if p < 9.95 => format!("{sign}{}", fixed(p, 1)),
        p => format!("{sign}{}", fixed(p, 0)),
    }
}

fn three(value: f64, unit: &str) -> String {
    format!("{} {unit}", digits(value))
}

/// Three digits, and no more than two behind the point.
fn digits(value: f64) -> String {
    fixed(
        value,
        match value {
            v if v < 9.995 => 2,
            v if v < 99.95 => 1,
            _ => 0,
        },
    )
}

/// A number of no sign with so many digits behind the point, at most two. A tie goes up, as in `toFixed` of the page's
/// script, whose number may stand beside this one; by itself Rust takes the even digit. The only ties that a float can be
/// are eighths, which are rounded as whole numbers.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, of no sign and below 2^70")]
fn fixed(value: f64, places: usize) -> String {
    let eighths = value * 8.0;
    if !(0.0..1e21).contains(&eighths) || eighths.fract() != 0.0 {
        return format!("{value:.places$}");
    }
    let parts = 10_u128.pow(u32::try_from(places).unwrap_or(0));
    let rounded = (eighths as u128 * parts + 4) / 8;
    match places {
        0 => rounded.to_string(),
        _ => format!("{}.{:0places$}", rounded / parts, rounded % parts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let shown: Vec<_> =
            [0, 7, 1_500, 42_000_000, 999_400_000, 999_600_000, 118_000_000_000, 700 * SECOND].map(time).into();
        assert_eq!(shown, ["0", "7 ns", "1.50 µs", "42.0 ms", "999 ms", "1.00 s", "118 s", "11 min"]);
        assert_eq!([0, 999, 5_210, 1_234_567, -1_000].map(number), ["0", "999", "5,210", "1,234,567", "−1,000"]);
        assert_eq!([0.0, 0.004, 0.0995, 0.38, 1.0].map(percent), ["0 %", "0.4 %", "10 %", "38 %", "100 %"]);
        assert_eq!([0.0625, 0.125].map(percent), ["6.3 %", "13 %"], "as toFixed");
        assert_eq!([0.0125, -0.0125, 0.125].map(points), ["+1.3", "−1.3", "+13"], "as toFixed");
        assert_eq!(
            ([0.0125, 0.125].map(error), [1.125, 10.25, 100.5].map(rate)),
            (["± 1.3", "± 13"].map(Into::into), ["1.13", "10.3", "101"].map(Into::into)),
            "as toFixed"
        );
        assert_eq!((value(1_536, "bytes"), value(3, "count")), ("1.50 KiB".into(), "3".into()));
        assert_eq!(clock_time(1_700_000_000_123_000_000), "22:13:20.123");
        assert_eq!([0.0, 0.001, 0.824, 41.04, 1600.0].map(rate), ["0", "< 0.01", "0.82", "41.0", "1600"]);
        assert_eq!([0.0004, 0.372, -0.042, -0.4].map(points), ["0", "+37", "−4.2", "−40"]);
        assert_eq!((counted(1, "sample"), counted(2, "sample")), ("1 sample".into(), "2 samples".into()));
    }
    #[test]
    fn ties_go_up_however_large_the_number() {
        // What node's toFixed says.
        let pairs: [(f64, usize, &str); 16] = [
            (0.0, 2, "0.00"),
            (0.125, 2, "0.13"),
            (1.005, 2, "1.00"),
            (0.045, 2, "0.04"),
            (8.345, 2, "8.35"),
            (2.5, 0, "3"),
            (10.25, 1, "10.3"),
            (99.949_999_999_999_99, 1, "99.9"),
            (16_777_216.5, 0, "16777217"),
            (17_000_000.25, 1, "17000000.3"),
            (33_554_432.125, 2, "33554432.13"),
            (1_717_986_918.5, 0, "1717986919"),
            (137_438_953_472.5, 0, "137438953473"),
            (369_709_670_543_670.6, 2, "369709670543670.63"),
            (2_251_799_813_685_248.5, 0, "2251799813685249"),
            (9_223_372_036_854_775_807.0, 0, "9223372036854775808"),
        ];
        for (value, places, text) in pairs {
            assert_eq!(fixed(value, places), text, "{value} to {places}");
        }
    }
}
