//! Counts what a message holds before it is decoded: two bytes on the wire can be hundreds in memory.

use super::refusal::{Reason, Refusal};

/// The most entries (messages, strings, byte strings) of a request; decoded, each takes at most a few hundred bytes.
const MOST_ENTRIES: usize = 1_000_000;

/// What a field holds that is not counted as one entry, but looked into.
#[derive(Debug)]
pub(super) enum Inside {
    /// Every field is an entry.
    Flat,
    /// Fields of these numbers are looked into.
    Fields(&'static [(u64, Inside)]),
}

/// Refuses protobuf that does not parse, or holds too many entries.
pub(super) fn check_protobuf(bytes: &[u8], inside: &Inside, what: &str) -> Result<(), Refusal> {
    let mut left = MOST_ENTRIES;
    match count(bytes, inside, &mut left) {
        Some(()) => Ok(()),
        None if left == 0 => Err(too_many(what)),
        None => Err(Refusal::new(Reason::Invalid, format!("{what} is no protobuf, or cut off"))),
    }
}

/// Refuses JSON that holds too many objects or strings.
pub(super) fn check_json(bytes: &[u8], what: &str) -> Result<(), Refusal> {
    let entries = bytes.iter().filter(|byte| matches!(byte, b'{' | b'[' | b',')).count();
    if entries > MOST_ENTRIES { Err(too_many(what)) } else { Ok(()) }
}

fn too_many(what: &str) -> Refusal {
    Refusal::new(Reason::TooLarge, format!("{what} holds more than {MOST_ENTRIES} entries"))
}

/// None if the bytes do not parse or nothing is `left`.
fn count(mut bytes: &[u8], inside: &Inside, left: &mut usize) -> Option<()> {
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        *left = left.checked_sub(1).filter(|left| *left > 0).or_else(|| {
            *left = 0;
            None
        })?;
        match tag & 7 {
            0 => {
                varint(&mut bytes)?;
            }
            1 => bytes = bytes.get(8..)?,
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (field, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                if let Inside::Fields(fields) = inside
                    && let Some((_, inside)) = fields.iter().find(|(number, _)| *number == tag >> 3)
                {
                    count(field, inside, left)?;
                }
            }
            5 => bytes = bytes.get(4..)?,
            _ => return None,
        }
    }
    Some(())
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
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

    #[test]
    fn a_million_empty_messages_are_refused() {
        let many = [0x12, 0].repeat(MOST_ENTRIES + 1);
        assert_eq!(check_protobuf(&many, &Inside::Flat, "the profile").unwrap_err().status(), 413);
        let nested = [[0x0a, 0x80, 0x80, 0x80, 0x01].as_slice(), &[0x12, 0].repeat(1 << 20)].concat();
        assert!(check_protobuf(&nested, &Inside::Flat, "it").is_ok());
        static FIRST: Inside = Inside::Fields(&[(1, Inside::Flat)]);
        assert_eq!(check_protobuf(&nested, &FIRST, "it").unwrap_err().status(), 413);
        assert_eq!(check_json(&b"{},".repeat(MOST_ENTRIES), "it").unwrap_err().status(), 413);
    }

    #[test]
    fn cut_off_protobuf_is_refused() {
        for bytes in [&[0x12, 5, 1][..], &[0x80], &[0x13], &[0x09, 1, 2]] {
            assert_eq!(check_protobuf(bytes, &Inside::Flat, "it").unwrap_err().status(), 400, "{bytes:?}");
        }
        assert!(check_protobuf(&[], &Inside::Flat, "it").is_ok());
    }
}
