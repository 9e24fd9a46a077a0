//! Span and trace ids, as written (16 and 32 hex digits) and as stored, where an id of all zeros is no id; and the ids of profiles,
//! which are the store's own.

use std::fmt;

/// The id of a span: 64 bits, never all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SpanId(u64);

impl SpanId {
    /// Reads exactly 16 hex digits; anything else, and all zeros, is no span.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.len() != 16 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        u64::from_str_radix(text, 16).ok().filter(|id| *id != 0).map(Self)
    }

    /// Reads the 8 bytes of OTLP.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let id = u64::from_be_bytes(bytes.try_into().ok()?);
        (id != 0).then_some(Self(id))
    }

    /// Its 8 bytes.
    pub(crate) fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    /// The number that stands for this id in a column.
    pub(crate) fn to_column(self) -> i64 {
        self.0.cast_signed()
    }

    /// The id that a column holds; 0 stands for none.
    pub(crate) fn from_column(column: i64) -> Option<Self> {
        (column != 0).then_some(Self(column.cast_unsigned()))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl serde::Serialize for SpanId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The id of a trace: 128 bits, never all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TraceId(u128);

impl TraceId {
    /// Reads exactly 32 hex digits; anything else, and all zeros, is no trace.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        u128::from_str_radix(text, 16).ok().filter(|id| *id != 0).map(Self)
    }

    /// Reads the 16 bytes of OTLP and of a column.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let id = u128::from_be_bytes(bytes.try_into().ok()?);
        (id != 0).then_some(Self(id))
    }

    /// The bytes that stand for this id in a column.
    pub(crate) fn to_column(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl serde::Serialize for TraceId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The id of a stored profile, which is written as a UUID: its number in the store, and its time, as a store that has forgotten all
/// begins to count anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProfileId {
    /// Nanoseconds.
    pub(crate) time: i64,
    pub(crate) number: i64,
}

impl ProfileId {
    /// Reads a UUID, with its dashes or without.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_uuid = text.len() == 36 && [8, 13, 18, 23].iter().all(|at| text.as_bytes()[*at] == b'-');
        let digits = if is_uuid { text.replace('-', "") } else { text.to_owned() };
        if digits.len() != 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let half = |digits| u64::from_str_radix(digits, 16).ok().map(u64::cast_signed);
        Some(Self { time: half(&digits[..16])?, number: half(&digits[16..])? })
    }
}

impl fmt::Display for ProfileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (time, number) = (format!("{:016x}", self.time), format!("{:016x}", self.number));
        write!(f, "{}-{}-{}-{}-{}", &time[..8], &time[8..12], &time[12..], &number[..4], &number[4..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_another_length_or_of_zeros_is_no_span() {
        assert!(SpanId::parse("00f067aa0ba902b7").is_some());
        for bad in
            ["", "0000000000000000", "00f067aa0ba902b", "00f067aa0ba902b7f", "+0f067aa0ba902b7", "00f067aa0ba902bg"]
        {
            assert_eq!(SpanId::parse(bad), None, "{bad}");
        }
        assert_eq!(TraceId::parse(&"0".repeat(32)), None);
        assert_eq!(
            TraceId::parse("4bf92f3577b34da6a3ce929d0e0e4736").unwrap().to_string(),
            "4bf92f3577b34da6a3ce929d0e0e4736"
        );
    }

    #[test]
    fn an_id_of_a_profile_is_read_as_it_is_written() {
        let id = ProfileId { time: 1_767_225_600_123_456_789, number: 4_711 };
        assert_eq!(id.to_string(), "18867251-f555-cd15-0000-000000001267");
        for text in [id.to_string(), id.to_string().replace('-', ""), id.to_string().to_uppercase()] {
            assert_eq!(ProfileId::parse(&text), Some(id));
        }
        for bad in
            ["", "7", "18867251-f555-cd15-0000-00000000126", "18867251+f555-cd15-0000-000000001267", &"é".repeat(16)]
        {
            assert_eq!(ProfileId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_highest_bit_survives_a_column() {
        let id = SpanId::parse("F0f067aa0ba902b7").unwrap();
        assert_eq!(SpanId::from_column(id.to_column()), Some(id));
        assert_eq!(id.to_string(), "f0f067aa0ba902b7");
    }
}
