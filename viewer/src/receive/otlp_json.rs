//! OTLP in JSON, rewritten as the protobuf that it stands for, so that one decoder with its bounds reads both.
//!
//! It is protobuf's JSON mapping as OTLP has it: fields by their lowerCamelCase or own names, left out or null where they have
//! their default; numbers as numbers or texts, enumerations as names or numbers, ids in hexadecimal, other bytes in base64. What is
//! not read here is skipped. `serde_json` knows what JSON is and how deep it may be; nothing of the text is kept but what is written.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::otlp_field::{Field, Fields, Kind};
use super::otlp_written::{FIXED32, FIXED64, NUMBER, Out, VARINT};
use crate::http::allowed::Allowed;
use crate::http::refusal::{Refusal, invalid};

/// Base64 of either alphabet, padded or not, as protobuf's JSON is read.
const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::URL_SAFE, LENIENT);

/// Rewrites a message.
pub(super) fn to_protobuf(
    json: &[u8],
    fields: &'static Fields,
    name: &str,
    allowed: &mut Allowed,
) -> Result<Vec<u8>, Refusal> {
    // A text with escapes is there once more while it is read.
    let unescaped = if json.contains(&b'\\') { json.len() } else { 0 };
    allowed.take(unescaped, "the request")?;
    let mut out = Out::new(allowed);
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let read = Message { fields, out: &mut out }.deserialize(&mut deserializer).and_then(|()| deserializer.end());
    let Out { bytes, refusal, .. } = out;
    match (read, refusal) {
        (_, Some(refusal)) => return Err(refusal),
        (Err(error), None) => return Err(invalid(format!("the request is no {name}: {error}"))),
        (Ok(()), None) => {}
    }
    allowed.give_back(unescaped);
    Ok(bytes)
}

/// The members of an object.
struct Message<'o, 'a> {
    fields: &'static Fields,
    out: &'o mut Out<'a>,
}

impl<'de> DeserializeSeed<'de> for Message<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Message<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(field) = members.next_key_seed(Name(self.fields))? {
            match field {
                Some(field) => members.next_value_seed(Value { field, place: Place::Field, out: &mut *self.out })?,
                None => members.next_value::<IgnoredAny>().map(drop)?,
            }
        }
        Ok(())
    }
}

/// The name of a member.
struct Name(&'static Fields);

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Option<&'static Field>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Name {
    type Value = Option<&'static Field>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.find(name))
    }
}

/// Where a value stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// As a member.
    Field,
    /// In a list, with a tag of its own.
    Item,
    /// In a list of numbers, which have one tag.
    Number,
}

/// A value.
struct Value<'o, 'a> {
    field: &'static Field,
    place: Place,
    out: &'o mut Out<'a>,
}

impl<'de> DeserializeSeed<'de> for Value<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Value<'_, '_> {
    fn wrong<E: serde::de::Error>(&self, what: impl fmt::Display) -> E {
        let kind = match self.field.kind {
            _ if self.field.is_list && self.place == Place::Field => "a list",
            Kind::Int32 => "a 32-bit integer",
            Kind::Int64 => "a 64-bit integer",
            Kind::Uint64 | Kind::Fixed64 => "a 64-bit integer from 0 on",
            Kind::Fixed32 => "a 32-bit integer from 0 on",
            Kind::Double => "a number",
            Kind::Bool => "true or false",
            Kind::Enum(_) => "a name or a number",
            Kind::Text => "a text",
            Kind::Base64 => "bytes in base64",
            Kind::Hex => "bytes in hexadecimal",
            Kind::Message(_) => "an object",
        };
        E::custom(format_args!("{:?} is {what}, and allowed is {kind}", self.field.name))
    }

    /// Writes an integer, if the field may hold it.
    fn integer<E: serde::de::Error>(self, number: i128) -> Result<(), E> {
        let wrong = || self.wrong(number);
        if self.field.is_list && self.place == Place::Field {
            return Err(wrong());
        }
        // Negative numbers of 32 bits are written as those of 64.
        let (wire, value) = match self.field.kind {
            Kind::Int32 | Kind::Enum(_) => {
                (VARINT, i64::from(i32::try_from(number).map_err(|_| wrong())?).cast_unsigned())
            }
            Kind::Int64 => (VARINT, i64::try_from(number).map_err(|_| wrong())?.cast_unsigned()),
            Kind::Uint64 => (VARINT, u64::try_from(number).map_err(|_| wrong())?),
            Kind::Fixed32 => (FIXED32, u64::from(u32::try_from(number).map_err(|_| wrong())?)),
            Kind::Fixed64 => (FIXED64, u64::try_from(number).map_err(|_| wrong())?),
            #[expect(clippy::cast_precision_loss, reason = "a float is the nearest one")]
            Kind::Double => (FIXED64, (number as f64).to_bits()),
            Kind::Bool | Kind::Text | Kind::Base64 | Kind::Hex | Kind::Message(_) => return Err(wrong()),
        };
        self.number(wire, value)
    }

    fn number<E: serde::de::Error>(self, wire: u32, value: u64) -> Result<(), E> {
        self.out.reserve(NUMBER)?;
        if self.place != Place::Number {
            self.out.tag(self.field, wire);
        }
        match wire {
            FIXED32 => self.out.bytes.extend_from_slice(&value.to_le_bytes()[..4]),
            FIXED64 => self.out.bytes.extend_from_slice(&value.to_le_bytes()),
            _ => self.out.varint(value),
        }
        Ok(())
    }

    /// Writes a number with a point or an exponent: an integer may be written so too.
    fn float<E: serde::de::Error>(self, number: f64) -> Result<(), E> {
        #[expect(clippy::cast_possible_truncation, reason = "it is whole, and of less than 65 bits")]
        match self.field.kind {
            Kind::Double if !self.field.is_list => self.number(FIXED64, number.to_bits()),
            _ if number.fract() == 0.0 && number.abs() <= 18_446_744_073_709_551_616.0 => self.integer(number as i128),
            _ => Err(self.wrong(number)),
        }
    }

    /// Writes bytes of at most this length.
    fn bytes<E: serde::de::Error>(self, most: usize, write: impl FnOnce(&mut Vec<u8>) -> Option<()>) -> Result<(), E> {
        let begin = self.out.begin(self.field)?;
        self.out.reserve(most)?;
        if write(&mut self.out.bytes).is_none() {
            return Err(self.wrong("something else"));
        }
        self.out.end(begin);
        Ok(())
    }
}

impl<'de> Visitor<'de> for Value<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    /// Null is the default.
    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        if self.place == Place::Field { Ok(()) } else { Err(self.wrong("null in a list")) }
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        match self.field.kind {
            Kind::Bool => self.number(VARINT, u64::from(value)),
            _ => Err(self.wrong(value)),
        }
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.integer(value.into())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.integer(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        self.float(value)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        if self.field.is_list && self.place == Place::Field {
            return Err(self.wrong("a text"));
        }
        match self.field.kind {
            Kind::Text => self.bytes(text.len(), |out| {
                out.extend_from_slice(text.as_bytes());
                Some(())
            }),
            Kind::Hex => self.bytes(text.len() / 2, |out| hex(text, out)),
            Kind::Base64 => self.bytes(base64::decoded_len_estimate(text.len()), |out| {
                let engine = if text.contains(['-', '_']) { URL_SAFE } else { STANDARD };
                engine.decode_vec(text, out).ok()
            }),
            // A name that is not known here is one that a newer version has.
            Kind::Enum(names) => match names.iter().position(|name| *name == text) {
                Some(number) => self.integer(i128::try_from(number).unwrap_or(0)),
                None => text.parse().map_or(Ok(()), |number| self.integer(number)),
            },
            Kind::Double => match text {
                "NaN" => self.number(FIXED64, f64::NAN.to_bits()),
                "Infinity" => self.number(FIXED64, f64::INFINITY.to_bits()),
                "-Infinity" => self.number(FIXED64, f64::NEG_INFINITY.to_bits()),
                _ => self.of_text(text),
            },
            Kind::Int32 | Kind::Int64 | Kind::Uint64 | Kind::Fixed32 | Kind::Fixed64 => self.of_text(text),
            Kind::Bool | Kind::Message(_) => Err(self.wrong("a text")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        if !self.field.is_list || self.place != Place::Field {
            return Err(self.wrong("a list"));
        }
        let Self { field, out, .. } = self;
        if matches!(field.kind, Kind::Text | Kind::Base64 | Kind::Hex | Kind::Message(_)) {
            while items.next_element_seed(Value { field, place: Place::Item, out: &mut *out })?.is_some() {}
            return Ok(());
        }
        let begin = out.begin(field)?;
        while items.next_element_seed(Value { field, place: Place::Number, out: &mut *out })?.is_some() {}
        out.end(begin);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<(), A::Error> {
        match self.field.kind {
            Kind::Message(fields) if !self.field.is_list || self.place == Place::Item => {
                let begin = self.out.begin(self.field)?;
                Message { fields, out: &mut *self.out }.visit_map(members)?;
                self.out.end(begin);
                Ok(())
            }
            _ => Err(self.wrong("an object")),
        }
    }
}

impl Value<'_, '_> {
    /// A number that is written as a text.
    fn of_text<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        if let Ok(number) = text.parse() {
            return self.integer(number);
        }
        // "inf" and "nan" are no numbers of JSON.
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => self.float(number),
            _ => {
                let start: Cow<'_, str> = text.chars().take(60).collect();
                Err(self.wrong(format_args!("{start:?}")))
            }
        }
    }
}

/// Appends the bytes of a text in hexadecimal.
fn hex(text: &str, out: &mut Vec<u8>) -> Option<()> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    for [high, low] in pairs {
        out.push(digit(*high)? << 4 | digit(*low)?);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::receive::otlp_fields::PROFILES;

    fn read(json: &str, allowed: &mut Allowed) -> Result<usize, Refusal> {
        to_protobuf(json.as_bytes(), &PROFILES, "request", allowed).map(|bytes| bytes.len())
    }

    #[test]
    fn what_is_written_is_taken_from_the_budget() {
        let samples = "{\"stackIndex\":1},".repeat(100_000);
        let json = format!(
            "{{\"resourceProfiles\":[{{\"scopeProfiles\":[{{\"profiles\":[{{\"samples\":[{samples}{{}}]}}]}}]}}]}}"
        );
        let small = || Allowed::new(Budget::new(1 << 20, 512 << 10).hold());
        let refused = read(&json, &mut small()).unwrap_err();
        assert_eq!((refused.status().as_u16(), refused.is_too_large()), (413, true));
        assert!(refused.message().starts_with("the request takes more than the 524288 bytes"), "{}", refused.message());
        assert!(read(&json, &mut Allowed::plenty()).unwrap() < json.len());
        // What is not read is not written.
        let unknown = format!("{{\"unknown\":[{}0]}}", "0,".repeat(1_000_000));
        assert_eq!(read(&unknown, &mut small()).unwrap(), 0);
    }

    #[test]
    fn depth_is_bounded() {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let deep = |times| format!("{{\"unknown\":{}0{}}}", open.repeat(times), close.repeat(times));
            assert!(read(&deep(100), &mut Allowed::plenty()).is_ok());
            // What is skipped needs no stack.
            assert!(read(&deep(100_000), &mut Allowed::plenty()).is_ok());
        }
        let value = "{\"arrayValue\":{\"values\":[".repeat(1_000);
        let json = format!("{{\"resourceProfiles\":[{{\"resource\":{{\"attributes\":[{{\"value\":{value}");
        assert!(read(&json, &mut Allowed::plenty()).unwrap_err().message().contains("recursion limit exceeded"));
    }

    #[test]
    fn bytes_are_of_either_alphabet() {
        let decoded = |text: &str| {
            let json = format!(
                "{{\"resource_profiles\":[{{\"resource\":{{\"attributes\":[{{\"value\":{{\"bytes_value\":{text}}}}}]}}}}]}}"
            );
            to_protobuf(json.as_bytes(), &PROFILES, "request", &mut Allowed::plenty())
                .map(|bytes| bytes[bytes.len() - 3..].to_vec())
        };
        for text in ["\"+/+/\"", "\"-_-_\"", "\"\\u002b/+/\""] {
            assert_eq!(decoded(text).unwrap(), [0xfb, 0xff, 0xbf], "{text}");
        }
        assert!(
            decoded("\"?\"")
                .unwrap_err()
                .message()
                .contains("\"bytesValue\" is something else, and allowed is bytes in base64")
        );
    }
}
