//! What all of a recording is made of: numbers of seven bits a byte, and strings in one of six ways.

use std::borrow::Cow;

use crate::http::refusal::{Refusal, invalid};
use crate::receive::strings::LONGEST_TEXT;

/// Why a recording is not read.
#[derive(Debug)]
pub(super) enum Bad {
    /// It ends within something, or says what its bytes cannot hold.
    Broken,
    Refused(Box<Refusal>),
}

impl From<Refusal> for Bad {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

impl Bad {
    /// What is said to the sender; `place` is where it happened.
    pub(super) fn refusal(self, place: &str) -> Refusal {
        match self {
            Self::Broken => invalid(format!("{place} is cut off, or no recording of Java Flight Recorder")),
            Self::Refused(refusal) => *refusal,
        }
    }
}

/// A string as it stands there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Text<'a> {
    /// Cut to what is kept of names.
    Here(Cow<'a, str>),
    /// By its number in the pool of strings.
    Constant(i64),
}

/// Bytes that are read one after the other.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// Reads from the place on.
    pub(super) fn at(bytes: &'a [u8], place: usize) -> Result<Self, Bad> {
        bytes.get(place..).map(|bytes| Self { bytes }).ok_or(Bad::Broken)
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What is left.
    pub(super) fn left(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn take(&mut self, number: usize) -> Result<&'a [u8], Bad> {
        let (taken, rest) = self.bytes.split_at_checked(number).ok_or(Bad::Broken)?;
        self.bytes = rest;
        Ok(taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Bad> {
        let (first, rest) = self.bytes.split_first().ok_or(Bad::Broken)?;
        self.bytes = rest;
        Ok(*first)
    }

    /// A number: of nine bytes the last one has eight bits.
    pub(super) fn number(&mut self) -> Result<i64, Bad> {
        let mut value = 0_u64;
        for shift in (0..56).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value.cast_signed());
            }
        }
        Ok((value | u64::from(self.byte()?) << 56).cast_signed())
    }

    /// How many of something follow, which take a byte each at least.
    pub(super) fn count(&mut self) -> Result<usize, Bad> {
        usize::try_from(self.number()?).ok().filter(|count| *count <= self.left()).ok_or(Bad::Broken)
    }

    /// A string.
    pub(super) fn text(&mut self) -> Result<Text<'a>, Bad> {
        let way = self.byte()?;
        let text = match way {
            // None, and an empty one.
            0 | 1 => Cow::Borrowed(""),
            2 => return self.number().map(Text::Constant),
            3 => {
                let length = self.count()?;
                utf8(self.take(length)?)
            }
            4 => {
                let length = self.count()?;
                let mut units = Vec::new();
                for _ in 0..length {
                    let unit = u16::try_from(self.number()?).map_err(|_| Bad::Broken)?;
                    if units.len() < LONGEST_TEXT / 4 {
                        units.push(unit);
                    }
                }
                Cow::Owned(String::from_utf16_lossy(&units))
            }
            5 => {
                let length = self.count()?;
                latin1(self.take(length)?)
            }
            _ => return Err(Bad::Broken),
        };
        Ok(Text::Here(text))
    }

    /// Goes on behind a string.
    pub(super) fn skip_text(&mut self) -> Result<(), Bad> {
        match self.byte()? {
            0 | 1 => {}
            2 => _ = self.number()?,
            3 | 5 => {
                let length = self.count()?;
                self.take(length)?;
            }
            4 => {
                for _ in 0..self.count()? {
                    self.number()?;
                }
            }
            _ => return Err(Bad::Broken),
        }
        Ok(())
    }
}

/// The beginning of a text; what is cut off is not looked at.
fn utf8(bytes: &[u8]) -> Cow<'_, str> {
    let start = &bytes[..bytes.len().min(LONGEST_TEXT)];
    match std::str::from_utf8(start) {
        Err(error) if error.error_len().is_none() => String::from_utf8_lossy(&start[..error.valid_up_to()]),
        _ => String::from_utf8_lossy(start),
    }
}

fn latin1(bytes: &[u8]) -> Cow<'_, str> {
    let start = &bytes[..bytes.len().min(LONGEST_TEXT / 2)];
    match std::str::from_utf8(start) {
        Ok(text) if start.is_ascii() => Cow::Borrowed(text),
        _ => Cow::Owned(start.iter().map(|byte| char::from(*byte)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(bytes: &[u8]) -> Cursor<'_> {
        Cursor::at(bytes, 0).unwrap()
    }

    #[test]
    fn numbers_have_up_to_nine_bytes() {
        let all =
            [&[0x05][..], &[0x85, 0xb0, 0x03], &[0xff; 9], &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80]];
        let read: Vec<_> = all.iter().map(|bytes| cursor(bytes).number().unwrap()).collect();
        assert_eq!(read, [5, 55_301, -1, i64::MIN]);
        assert!(cursor(&[0x80]).number().is_err());
        assert!(cursor(&[3, 0, 0]).count().is_err(), "three of a byte each do not fit into two");
        assert!(cursor(&[0xff; 9]).count().is_err());
    }

    #[test]
    fn strings_are_written_in_six_ways() {
        let here = |text: &'static str| Text::Here(text.into());
        for (bytes, wanted) in [
            (&[0][..], here("")),
            (&[1], here("")),
            (&[2, 7], Text::Constant(7)),
            (&[3, 3, b'a', 0xc3, 0xa9], here("aé")),
            (&[3, 2, b'a', 0xc3], here("a")),
            (&[3, 2, 0xc3, b'a'], here("\u{fffd}a")),
            (&[4, 2, b'a', 0xe9, 0x01], here("aé")),
            (&[5, 2, b'a', 0xe9], here("aé")),
        ] {
            let mut read = cursor(bytes);
            assert_eq!(read.text().unwrap(), wanted, "{bytes:?}");
            let mut skipped = cursor(bytes);
            skipped.skip_text().unwrap();
            assert_eq!((read.left(), skipped.left()), (0, 0), "{bytes:?}");
        }
        for bytes in [&[][..], &[6], &[3, 2, b'a'], &[5, 0xff], &[4, 1, 0x80, 0x80, 0x04]] {
            assert!(cursor(bytes).text().is_err(), "{bytes:?}");
        }
    }
}
