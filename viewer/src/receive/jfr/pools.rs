//! The constants of a chunk: what its events refer to by number. Where each one is, is looked up once; it is read when
//! something refers to it.

use std::borrow::Cow;

use ahash::HashMap;

use super::chunk::Chunk;
use super::cursor::{Bad, Cursor, Text};
use super::types::{Kind, Types, Value, numbers};
use crate::http::allowed::Allowed;
use crate::http::refusal::invalid;

/// The event that has constants.
const CHECKPOINT: i64 = 1;
/// Bytes that an entry of a pool takes, in a map that may be half empty.
const ENTRY: usize = 48;

/// The kinds of constants that are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Constant {
    Text,
    Symbol,
    Class,
    Method,
    StackTrace,
    ThreadState,
    FrameType,
}

const NAMES: [&str; 7] = [
    "java.lang.String",
    "jdk.types.Symbol",
    "java.lang.Class",
    "jdk.types.Method",
    "jdk.types.StackTrace",
    "jdk.types.ThreadState",
    "jdk.types.FrameType",
];

/// Constants of one kind.
#[derive(Debug, Default)]
struct Pool {
    /// The place of their class; none of a kind that the chunk does not have.
    class: Option<(usize, i64)>,
    /// Where each is.
    places: HashMap<i64, usize>,
}

/// A frame of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) method: i64,
    pub(super) line: i64,
    pub(super) kind: i64,
}

/// The constants of a chunk.
#[derive(Debug)]
pub(super) struct Pools<'t, 'a> {
    bytes: &'a [u8],
    types: &'t Types<'a>,
    pools: [Pool; NAMES.len()],
    /// What finding them takes.
    pub(super) weight: usize,
}

impl<'t, 'a> Pools<'t, 'a> {
    /// Finds them.
    pub(super) fn read(chunk: &Chunk<'a>, types: &'t Types<'a>, allowed: &mut Allowed) -> Result<Self, Bad> {
        let pools = NAMES.map(|name| Pool { class: types.by_name(name), places: HashMap::default() });
        let mut read = Self { bytes: chunk.bytes, types, pools, weight: 0 };
        // Each says how far before it the one of before is.
        let (mut place, mut end) = (chunk.constants, chunk.bytes.len());
        loop {
            let (start, before) = (place, end);
            let whole = chunk.bytes.get(place..end).ok_or(Bad::Broken)?;
            let mut size = Cursor::at(whole, 0)?;
            // They do not overlap, or each byte would be read as often as it can be a beginning.
            end = place.saturating_add(usize::try_from(size.number()?).map_err(|_| Bad::Broken)?).min(before);
            let delta = read.checkpoint(start, end, allowed)?;
            if delta == 0 {
                return Ok(read);
            }
            let distance = usize::try_from(delta.checked_neg().ok_or(Bad::Broken)?).map_err(|_| Bad::Broken)?;
            place = start.checked_sub(distance).ok_or(Bad::Broken)?;
            end = start;
        }
    }

    /// Reads the pools at a place; returns where the ones before are.
    fn checkpoint(&mut self, start: usize, end: usize, allowed: &mut Allowed) -> Result<i64, Bad> {
        let bytes = self.bytes.get(..end).ok_or(Bad::Broken)?;
        let mut cursor = Cursor::at(bytes, start)?;
        let [_size, event, _start, _duration, delta] = numbers(&mut cursor)?;
        if event != CHECKPOINT {
            return Err(Bad::Broken);
        }
        cursor.byte()?;
        for _ in 0..cursor.count()? {
            let id = cursor.number()?;
            let Some(class) = self.types.by_id(id) else {
                return Err(
                    invalid(format!("the recording has constants of type {id}, which it does not describe")).into()
                );
            };
            let looked_up = self.pools.iter().position(|pool| pool.class.is_some_and(|(place, _)| place == class));
            for _ in 0..cursor.count()? {
                let number = cursor.number()?;
                if let Some(pool) = looked_up {
                    allowed.take(ENTRY, "the recording")?;
                    self.weight += ENTRY;
                    self.pools[pool].places.insert(number, end - cursor.left());
                }
                self.types.skip(class, &mut cursor, allowed)?;
                allowed.step(1)?;
            }
        }
        Ok(delta)
    }

    /// A constant's class, and where its fields are.
    fn find(&self, kind: Constant, number: i64) -> Result<Option<(usize, Cursor<'a>)>, Bad> {
        let pool = &self.pools[kind as usize];
        let found = pool.class.zip(pool.places.get(&number));
        found.map(|((class, _), place)| Ok((class, Cursor::at(self.bytes, *place)?))).transpose()
    }

    /// The numbers that a constant has in some of its fields, 0 where it has none.
    pub(super) fn numbers<const N: usize>(
        &self,
        kind: Constant,
        number: i64,
        names: [&str; N],
        allowed: &mut Allowed,
    ) -> Result<Option<[i64; N]>, Bad> {
        let Some((class, mut cursor)) = self.find(kind, number)? else { return Ok(None) };
        let places = names.map(|name| self.types.field(class, name).map(|(place, _)| place));
        let mut read = [0; N];
        self.types.fields(class, &mut cursor, allowed, |at, value| {
            if let (Some(wanted), Value::Number(number)) = (places.iter().position(|place| *place == Some(at)), value) {
                read[wanted] = number;
            }
        })?;
        Ok(Some(read))
    }

    /// The text that a constant has in its only string, empty if there is no such constant.
    pub(super) fn text(&self, kind: Constant, number: i64, allowed: &mut Allowed) -> Result<Cow<'a, str>, Bad> {
        let Some((class, mut cursor)) = self.find(kind, number)? else { return Ok("".into()) };
        let mut read = None;
        self.types.fields(class, &mut cursor, allowed, |_, value| {
            if let Value::Text(text) = value {
                read.get_or_insert(text);
            }
        })?;
        read.map_or(Ok("".into()), |text| self.resolved(text))
    }

    /// A string that may be a constant.
    pub(super) fn resolved(&self, text: Text<'a>) -> Result<Cow<'a, str>, Bad> {
        let number = match text {
            Text::Here(text) => return Ok(text),
            Text::Constant(number) => number,
        };
        let place = self.pools[Constant::Text as usize].places.get(&number);
        match place.map(|place| Cursor::at(self.bytes, *place)?.text()).transpose()? {
            Some(Text::Here(text)) => Ok(text),
            _ => Ok("".into()),
        }
    }

    /// The numbers and texts of all constants of a kind of which there are few.
    pub(super) fn all(&self, kind: Constant, allowed: &mut Allowed) -> Result<Vec<(i64, Cow<'a, str>)>, Bad> {
        let mut all = Vec::new();
        for number in self.pools[kind as usize].places.keys() {
            let text = self.text(kind, *number, allowed)?;
            allowed.take(ENTRY + text.len(), "the recording")?;
            all.push((*number, text));
        }
        Ok(all)
    }

    /// Tells the frames of a stack, leaf first, `most` at most.
    pub(super) fn frames(
        &self,
        stack: i64,
        most: usize,
        allowed: &mut Allowed,
        mut tell: impl FnMut(Frame, &mut Allowed) -> Result<(), Bad>,
    ) -> Result<bool, Bad> {
        let Some((class, mut cursor)) = self.find(Constant::StackTrace, stack)? else { return Ok(false) };
        let Some((place, field)) = self.types.field(class, "frames") else { return Err(Bad::Broken) };
        let (Kind::Class(frame), true, false) = (field.kind, field.is_array, field.is_constant) else {
            return Err(Bad::Broken);
        };
        self.types.skip_before(class, place, &mut cursor, allowed)?;
        let places = ["method", "lineNumber", "type"].map(|name| self.types.field(frame, name).map(|(place, _)| place));
        for _ in 0..cursor.count()?.min(most) {
            let mut read = [0; 3];
            self.types.fields(frame, &mut cursor, allowed, |at, value| {
                if let (Some(wanted), Value::Number(number)) =
                    (places.iter().position(|place| *place == Some(at)), value)
                {
                    read[wanted] = number;
                }
            })?;
            let [method, line, kind] = read;
            tell(Frame { method, line, kind }, allowed)?;
        }
        Ok(true)
    }
}
