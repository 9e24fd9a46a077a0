//! Protobuf that is written while something else is read, within what the request may take.

use super::otlp_field::Field;
use crate::http::allowed::Allowed;
use crate::http::refusal::Refusal;

/// Values between two looks at what the request may still take of time.
const AT_ONCE: usize = 16;
/// What is written at first.
const FIRST: usize = 4 << 10;
/// The bytes of a length, so that it has room before it is known.
const LENGTH: usize = 5;
/// The most bytes of a tag and a number.
pub(super) const NUMBER: usize = 15;
/// Kinds of fields on the wire.
pub(super) const VARINT: u32 = 0;
pub(super) const FIXED64: u32 = 1;
const DELIMITED: u32 = 2;
pub(super) const FIXED32: u32 = 5;

/// The protobuf that is written.
pub(super) struct Out<'a> {
    pub(super) bytes: Vec<u8>,
    allowed: &'a mut Allowed,
    values: usize,
    /// Why nothing more is read, as `serde` has no place for it.
    pub(super) refusal: Option<Refusal>,
}

impl<'a> Out<'a> {
    /// Nothing yet.
    pub(super) fn new(allowed: &'a mut Allowed) -> Self {
        Self { bytes: Vec::new(), allowed, values: 0, refusal: None }
    }

    /// Makes room for bytes, which are taken from the budget before they are there.
    pub(super) fn reserve<E: serde::de::Error>(&mut self, bytes: usize) -> Result<(), E> {
        self.values += 1;
        let mut taken = Ok(());
        if self.values.is_multiple_of(AT_ONCE) {
            taken = self.allowed.step(1);
        }
        let (length, capacity) = (self.bytes.len().saturating_add(bytes), self.bytes.capacity());
        if taken.is_ok() && length > capacity {
            let grown = length.max(capacity.saturating_mul(2)).max(FIRST);
            taken = self.allowed.take(grown, "the request");
            if taken.is_ok() {
                self.bytes.reserve_exact(grown - self.bytes.len());
                self.allowed.give_back(capacity);
            }
        }
        taken.map_err(|refusal| {
            self.refusal = Some(refusal);
            E::custom("it was given up")
        })
    }

    /// Writes a number, of which there is room for the longest.
    pub(super) fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
            value >>= 7;
        }
        self.bytes.push(u8::try_from(value).unwrap_or(0));
    }

    /// Writes what begins a field.
    pub(super) fn tag(&mut self, field: &Field, wire: u32) {
        self.varint(u64::from(field.number << 3 | wire));
    }

    /// Begins what has a length; the place of it.
    pub(super) fn begin<E: serde::de::Error>(&mut self, field: &Field) -> Result<usize, E> {
        self.reserve(LENGTH * 2)?;
        self.tag(field, DELIMITED);
        self.bytes.extend_from_slice(&[0; LENGTH]);
        Ok(self.bytes.len())
    }

    /// Ends it: of its length each byte but the last says that there are more.
    pub(super) fn end(&mut self, begin: usize) {
        let mut length = self.bytes.len() - begin;
        for (at, byte) in self.bytes[begin - LENGTH..begin].iter_mut().enumerate() {
            *byte = u8::try_from(length & 0x7f).unwrap_or(0) | if at + 1 < LENGTH { 0x80 } else { 0 };
            length >>= 7;
        }
    }
}
