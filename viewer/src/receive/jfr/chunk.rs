//! A chunk of a recording: its header, and where in it types, constants and events are.

use super::cursor::{Bad, Cursor};
use crate::clock::SECOND;
use crate::http::refusal::invalid;

/// Bytes of a chunk's header.
const HEADER: usize = 68;
const MAGIC: &[u8] = b"FLR\0";
/// A flag of the header: numbers are written with seven bits a byte.
const COMPRESSED: u32 = 1;

/// A chunk, which may be read without the others.
#[derive(Debug)]
pub(super) struct Chunk<'a> {
    pub(super) bytes: &'a [u8],
    /// Where its last pools of constants are.
    pub(super) constants: usize,
    /// Where its types are.
    types: usize,
    /// When it began, Unix nanoseconds.
    pub(super) start: i64,
    ticks_a_second: i64,
}

impl<'a> Chunk<'a> {
    /// Takes the first chunk off a recording; nothing is left behind the last one.
    pub(super) fn take(recording: &mut &'a [u8]) -> Result<Option<Self>, Bad> {
        if recording.is_empty() {
            return Ok(None);
        }
        let header = recording.get(..HEADER).filter(|header| header.starts_with(MAGIC)).ok_or(Bad::Broken)?;
        let word = |at: usize| header[at..].first_chunk().map_or(0, |bytes| i64::from_be_bytes(*bytes));
        let half = |at: usize| header[at..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        let version = half(4) >> 16;
        if version != 1 && version != 2 {
            return Err(invalid(format!("the recording has version {version}; 1 and 2 are read")).into());
        }
        if half(64) & COMPRESSED == 0 {
            return Err(invalid("the recording has numbers that are not compressed, which are not read").into());
        }
        let place = |at: usize| usize::try_from(word(at)).unwrap_or(usize::MAX);
        let (size, constants, types) = (place(8), place(16), place(24));
        // While it is written its size is not known, nor where these are.
        let (bytes, rest) = recording.split_at_checked(size).filter(|_| size > HEADER).ok_or(Bad::Broken)?;
        if constants < HEADER || types < HEADER {
            return Err(invalid("the recording has a chunk that was not finished").into());
        }
        *recording = rest;
        Ok(Some(Self { bytes, constants, types, start: word(32), ticks_a_second: word(56) }))
    }

    /// Reads on at the types.
    pub(super) fn types(&self) -> Result<Cursor<'a>, Bad> {
        Cursor::at(self.bytes, self.types)
    }

    /// Takes the next event off; its type, and its fields.
    pub(super) fn event(events: &mut Cursor<'a>) -> Result<Option<(i64, Cursor<'a>)>, Bad> {
        if events.is_at_end() {
            return Ok(None);
        }
        let mut whole = events.clone();
        let size = usize::try_from(events.number()?).map_err(|_| Bad::Broken)?;
        let head = whole.left() - events.left();
        let mut fields = Cursor::at(whole.take(size)?, head)?;
        *events = whole;
        Ok(Some((fields.number()?, fields)))
    }

    /// Its events.
    pub(super) fn events(&self) -> Result<Cursor<'a>, Bad> {
        Cursor::at(self.bytes, HEADER)
    }

    /// Nanoseconds of so many ticks.
    pub(super) fn nanoseconds(&self, ticks: i64) -> i64 {
        let (ticks, a_second) = (i128::from(ticks), i128::from(self.ticks_a_second.max(1)));
        i64::try_from(ticks * i128::from(SECOND) / a_second).unwrap_or(i64::MAX)
    }
}
