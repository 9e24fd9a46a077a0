//! Weighs what a message takes in memory before it is decoded: two bytes on the wire can be hundreds there.

use crate::http::refusal::{Reason, Refusal};

/// Messages within messages, as deep as they are decoded.
const DEEPEST: usize = 100;
/// What a string or bytes take beside their length.
const TEXT: usize = 40;

/// A message: what it takes itself, and those of its fields that are more than a number or a text.
#[derive(Debug)]
pub(super) struct Message {
    /// Bytes of its struct.
    pub(super) size: usize,
    /// Number of the field, and what it holds.
    pub(super) fields: &'static [(u64, Inside)],
}

/// What a field holds.
#[derive(Debug)]
pub(super) enum Inside {
    /// A message, or many.
    Message(&'static Message),
    /// One message, which is a part of what it is in.
    One(&'static Message),
    /// Numbers, each of so many bytes.
    Numbers(usize),
    /// A message of numbers alone, or many, each of so many bytes: what is in it weighs nothing beside it.
    Flat(usize),
}

/// A message without fields that hold anything.
pub(super) const fn flat<T>() -> Message {
    Message { size: size_of::<T>(), fields: &[] }
}

/// The bytes that the decoded message takes. Refuses protobuf that does not parse, or would take more than `most`.
pub(super) fn weigh_protobuf(bytes: &[u8], message: &Message, what: &str, most: usize) -> Result<usize, Refusal> {
    let mut left = most;
    match weigh(bytes, message, &mut left, DEEPEST) {
        Ok(()) => Ok(most - left),
        Err(Bad::TooMuch) => Err(too_much(what, most)),
        Err(Bad::Broken) => Err(Refusal::new(Reason::Invalid, format!("{what} is no protobuf, or cut off"))),
    }
}

/// The same of JSON, of whose objects the largest has `size` bytes when it is decoded.
pub(super) fn weigh_json(bytes: &[u8], size: usize, what: &str, most: usize) -> Result<usize, Refusal> {
    // A list has room for four entries from its first on.
    let weight = bytes.iter().fold(bytes.len(), |sum, byte| match byte {
        b'{' => sum.saturating_add(size.saturating_mul(2)),
        b'[' => sum.saturating_add(size.saturating_mul(2)),
        b',' => sum.saturating_add(TEXT),
        _ => sum,
    });
    if weight > most { Err(too_much(what, most)) } else { Ok(weight) }
}

fn too_much(what: &str, most: usize) -> Refusal {
    Refusal::new(Reason::TooLarge, format!("{what} would take more than {most} bytes of memory, decoded"))
}

enum Bad {
    TooMuch,
    Broken,
}

fn weigh(mut bytes: &[u8], message: &Message, left: &mut usize, deepest: usize) -> Result<(), Bad> {
    let deepest = deepest.checked_sub(1).ok_or(Bad::Broken)?;
    let mut seen = 0_u64;
    while !bytes.is_empty() {
        let tag = varint(&mut bytes).ok_or(Bad::Broken)?;
        let number = tag >> 3;
        let inside = message.fields.iter().find(|(known, _)| *known == number).map(|(_, inside)| inside);
        let number_size = match inside {
            Some(Inside::Numbers(size)) => *size,
            _ => 0,
        };
        let mut take = |bytes: usize| {
            *left = left.checked_sub(bytes).ok_or(Bad::TooMuch)?;
            Ok(())
        };
        match tag & 7 {
            0 => {
                varint(&mut bytes).ok_or(Bad::Broken)?;
                take(number_size * 2)?;
            }
            1 => {
                bytes = bytes.get(8..).ok_or(Bad::Broken)?;
                take(number_size * 2)?;
            }
            2 => {
                let length = varint(&mut bytes).and_then(|length| usize::try_from(length).ok()).ok_or(Bad::Broken)?;
                let (field, rest) = bytes.split_at_checked(length).ok_or(Bad::Broken)?;
                bytes = rest;
                match inside {
                    None => take(length.saturating_add(TEXT))?,
                    Some(Inside::Numbers(size)) => {
                        // Of a number's bytes the last has no mark; fixed ones have eight each.
                        let numbers = field.iter().filter(|byte| **byte < 0x80).count();
                        take(numbers.saturating_mul(*size).max(length).saturating_mul(3) / 2 + TEXT)?;
                    }
                    // One that comes again is decoded into the first.
                    Some(Inside::One(inner)) => weigh(field, inner, left, deepest)?,
                    Some(Inside::Flat(size)) => take(in_list(*size, number, &mut seen))?,
                    Some(Inside::Message(inner)) => {
                        take(in_list(inner.size, number, &mut seen))?;
                        weigh(field, inner, left, deepest)?;
                    }
                }
            }
            5 => {
                bytes = bytes.get(4..).ok_or(Bad::Broken)?;
                take(number_size * 2)?;
            }
            _ => return Err(Bad::Broken),
        }
    }
    Ok(())
}

/// What a message of a list takes: it has room for four from its first on, then for twice as many as it had.
fn in_list(size: usize, number: u64, seen: &mut u64) -> usize {
    let first = number < 64 && *seen & (1 << number) == 0;
    *seen |= if number < 64 { 1 << number } else { 0 };
    size * 3 / 2 + if first { size * 5 / 2 } else { 0 }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    if let Some((first @ ..0x80, rest)) = bytes.split_first() {
        *bytes = rest;
        return Some(u64::from(*first));
    }
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    static LEAF: Message = flat::<[u64; 4]>();
    static FIRST: Message = Message { size: 32, fields: &[(1, Inside::Message(&LEAF)), (2, Inside::Message(&LEAF))] };
    static DEEP: Message = Message { size: 32, fields: &[(1, Inside::Message(&DEEP))] };
    static FLAT: Message = Message { size: 32, fields: &[(1, Inside::Flat(32)), (2, Inside::Flat(32))] };
    static NUMBERS: Message = Message { size: 32, fields: &[(1, Inside::Numbers(8))] };

    #[test]
    fn a_million_empty_messages_are_refused() {
        let many = [0x12, 0].repeat(1_000_000);
        let refused = weigh_protobuf(&many, &FIRST, "the profile", 32 << 20).unwrap_err();
        assert_eq!(refused.status(), 413);
        assert_eq!(refused.message(), "the profile would take more than 33554432 bytes of memory, decoded");
        let weight = weigh_protobuf(&many, &FIRST, "it", 1 << 30).unwrap();
        assert!((32_000_000..=64_000_000).contains(&weight), "{weight}");
        assert_eq!(weigh_json(&b"{},".repeat(1_000_000), 100, "it", 1 << 20).unwrap_err().status(), 413);
    }

    #[test]
    fn a_message_of_numbers_weighs_the_same_unopened() {
        let many = [0x0a, 2, 0x08, 1, 0x12, 0, 0x1a, 3, 1, 2, 3].repeat(1_000);
        assert_eq!(
            weigh_protobuf(&many, &FLAT, "it", 1 << 30).unwrap(),
            weigh_protobuf(&many, &FIRST, "it", 1 << 30).unwrap()
        );
        assert_eq!(weigh_protobuf(&many, &FLAT, "it", 32_000).unwrap_err().status(), 413);
    }

    #[test]
    fn packed_numbers_weigh_what_they_take() {
        let packed = [[0x0a, 0x80, 0x80, 0x40].as_slice(), &[0; 1 << 20]].concat();
        let weight = weigh_protobuf(&packed, &NUMBERS, "it", 1 << 30).unwrap();
        assert!((8 << 20..=13 << 20).contains(&weight), "{weight}");
        let single = [0x08, 1].repeat(1 << 20);
        assert!(weigh_protobuf(&single, &NUMBERS, "it", 8 << 20).is_err());
    }

    #[test]
    fn messages_without_end_in_each_other_are_refused() {
        let mut nested = Vec::new();
        for _ in 0..2_000 {
            let mut level = vec![0x0a];
            prost::encoding::encode_varint(nested.len().try_into().unwrap(), &mut level);
            level.append(&mut nested);
            nested = level;
        }
        assert_eq!(weigh_protobuf(&nested, &DEEP, "it", 1 << 30).unwrap_err().status(), 400);
    }

    #[test]
    fn cut_off_protobuf_is_refused() {
        for bytes in [&[0x12, 5, 1][..], &[0x80], &[0x13], &[0x09, 1, 2]] {
            assert_eq!(weigh_protobuf(bytes, &LEAF, "it", 100).unwrap_err().status(), 400, "{bytes:?}");
        }
        assert_eq!(weigh_protobuf(&[], &LEAF, "it", 100).unwrap(), 0);
    }
}
