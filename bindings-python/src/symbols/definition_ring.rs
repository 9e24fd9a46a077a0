//! The ring through which handlers tell the profiler's thread what code objects are called.
//!
//! One producer at a time (who holds [`Definitions`](crate::symbols::definitions::Definitions)' flag), one consumer. A record
//! is a header of four words, then name, file and location table as they were in the interpreter's memory, padded to
//! eight bytes. It never wraps: where the rest of the ring is too short, a header without content skips it.
//!
//! ```text
//! | bytes: 32 | slot: 32 | generation: 32 | first line: 32 | name: 32 | file: 32 | table: 32 | kinds: 32 | name … file … table … |
//! ```

use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use spanprof_core::Error;

use crate::symbols::definitions::map_zeroed;

const BYTES: usize = 1024 * 1024;
const HEADER: usize = 32;
/// `slot` of a header that only skips.
const SKIP: u32 = u32::MAX;
/// The most characters kept of a name and of a file name.
const MAX_NAME: usize = 512;
const MAX_FILE: usize = 1_024;
/// The longest location table kept, some 50,000 lines; longer ones leave a function without lines.
const MAX_TABLE: usize = 128 * 1024;
/// The longest record: room for the longest strings of the widest kind.
pub(crate) const MAX_RECORD: usize = HEADER + 4 * MAX_NAME + 4 * MAX_FILE + MAX_TABLE + 8;

/// The ring. Its memory is mapped once and never unmapped.
#[derive(Debug)]
pub(crate) struct DefinitionRing {
    memory: AtomicPtr<u8>,
    /// Bytes ever written and ever read.
    head: AtomicU64,
    tail: AtomicU64,
}

/// A record that is being written, by the one producer.
#[derive(Debug)]
pub(crate) struct Record<'ring> {
    ring: &'ring DefinitionRing,
    start: *mut u8,
    head: u64,
    generation: u32,
    slot: u32,
    first_line: u32,
    name: Text,
    file: Text,
    table: u32,
    filled: usize,
}

/// A string in the ring: bytes, and bytes a character.
#[derive(Clone, Copy, Debug, Default)]
struct Text {
    bytes: u32,
    kind: u8,
}

/// A record as the consumer sees it.
#[derive(Debug)]
pub(crate) struct Told<'ring> {
    pub(crate) generation: u32,
    pub(crate) slot: u32,
    pub(crate) first_line: u32,
    name: (&'ring [u8], u8),
    file: (&'ring [u8], u8),
    pub(crate) table: &'ring [u8],
}

impl DefinitionRing {
    pub(crate) const fn new() -> Self {
        Self { memory: AtomicPtr::new(ptr::null_mut()), head: AtomicU64::new(0), tail: AtomicU64::new(0) }
    }

    /// Maps the ring's memory, once.
    pub(crate) fn map(&self) -> Result<(), Error> {
        if self.memory.load(Ordering::Relaxed).is_null() {
            self.memory.store(map_zeroed(BYTES)?, Ordering::Release);
        }
        Ok(())
    }

    /// Forgets what was not read. Called while there is no producer.
    pub(crate) fn clear(&self) {
        self.tail.store(self.head.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Begins a record if there is room for `most` bytes. The one producer.
    pub(crate) fn begin(&self, most: usize, generation: u32, slot: u32) -> Option<Record<'_>> {
        let memory = self.memory.load(Ordering::Relaxed);
        if memory.is_null() {
            return None;
        }
        let mut head = self.head.load(Ordering::Relaxed);
        // Acquire pairs with drain()'s Release: the consumer is done with what lies before the tail.
        let tail = self.tail.load(Ordering::Acquire);
        let to_end = BYTES - offset(head);
        let skip = if to_end < most { to_end } else { 0 };
        let used = usize::try_from(head.wrapping_sub(tail)).unwrap_or(BYTES);
        if used + skip + most > BYTES {
            return None;
        }
        if skip > 0 {
            // SAFETY: offset() is below BYTES.
            let end = unsafe { memory.add(offset(head)) };
            // SAFETY: `to_end` is a multiple of eight above 0, so there is room for one word.
            unsafe { ptr::write(end.cast(), [narrow(skip), SKIP]) };
            head = head.wrapping_add(skip as u64);
        }
        // SAFETY: offset() is below BYTES.
        let start = unsafe { memory.add(offset(head)) };
        Some(Record {
            ring: self,
            start,
            head,
            generation,
            slot,
            first_line: 0,
            name: Text::default(),
            file: Text::default(),
            table: 0,
            filled: HEADER,
        })
    }

    /// Calls `each` with every record, oldest first. The one consumer.
    pub(crate) fn drain(&self, mut each: impl FnMut(&Told<'_>)) {
        let memory = self.memory.load(Ordering::Acquire);
        if memory.is_null() {
            return;
        }
        let mut tail = self.tail.load(Ordering::Relaxed);
        // Acquire pairs with commit()'s Release: the bytes before the head are written.
        let head = self.head.load(Ordering::Acquire);
        while tail != head {
            // SAFETY: offset() is below BYTES and a multiple of eight.
            let start = unsafe { memory.add(offset(tail)) };
            // SAFETY: every record and every skip begins with these two.
            let [bytes, slot] = unsafe { ptr::read(start.cast::<[u32; 2]>()) };
            if slot != SKIP {
                // SAFETY: between tail and head lies a whole record, and the producer leaves it alone until the tail moves.
                each(&unsafe { Told::read(start) });
            }
            tail = tail.wrapping_add(u64::from(bytes));
            self.tail.store(tail, Ordering::Release);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the remainder is below BYTES")]
fn offset(position: u64) -> usize {
    (position % BYTES as u64) as usize
}

#[expect(clippy::cast_possible_truncation, reason = "lengths in the ring are below BYTES")]
fn narrow(length: usize) -> u32 {
    length as u32
}

impl Record<'_> {
    pub(crate) fn set_first_line(&mut self, line: u32) {
        self.first_line = line;
    }

    /// Adds the function's name: `length` characters of `kind` bytes; `copy` writes the bytes and says whether it could.
    pub(crate) fn set_name(&mut self, length: usize, kind: u8, copy: impl FnOnce(*mut u8, usize) -> bool) -> bool {
        let bytes = length.min(MAX_NAME) * usize::from(kind.min(4));
        self.name = Text { bytes: narrow(bytes), kind };
        self.fill(bytes, copy)
    }

    /// Adds the file's name, after the function's.
    pub(crate) fn set_file(&mut self, length: usize, kind: u8, copy: impl FnOnce(*mut u8, usize) -> bool) -> bool {
        let bytes = length.min(MAX_FILE) * usize::from(kind.min(4));
        self.file = Text { bytes: narrow(bytes), kind };
        self.fill(bytes, copy)
    }

    /// Adds the location table, after the names. One that is too long is left out.
    pub(crate) fn set_table(&mut self, length: usize, copy: impl FnOnce(*mut u8, usize) -> bool) -> bool {
        let bytes = if length > MAX_TABLE { 0 } else { length };
        self.table = narrow(bytes);
        self.fill(bytes, copy)
    }

    fn fill(&mut self, bytes: usize, copy: impl FnOnce(*mut u8, usize) -> bool) -> bool {
        // SAFETY: begin() found MAX_RECORD bytes of room, which is the header and the longest of each part.
        let to = unsafe { self.start.add(self.filled) };
        self.filled += bytes;
        copy(to, bytes)
    }

    /// Publishes the record and says how long it is.
    pub(crate) fn commit(self) -> usize {
        let bytes = self.filled.next_multiple_of(8);
        let kinds = u32::from(self.name.kind) | (u32::from(self.file.kind) << 8);
        let header = [
            narrow(bytes),
            self.slot,
            self.generation,
            self.first_line,
            self.name.bytes,
            self.file.bytes,
            self.table,
            kinds,
        ];
        // SAFETY: the header's room was kept by begin(), which aligns to eight.
        unsafe { ptr::write(self.start.cast(), header) };
        // Release pairs with drain()'s Acquire. A skip before this record becomes visible with it.
        self.ring.head.store(self.head.wrapping_add(bytes as u64), Ordering::Release);
        bytes
    }
}

impl<'ring> Told<'ring> {
    /// # Safety
    /// A whole record must be at `start`, and stay there for `'ring`.
    unsafe fn read(start: *const u8) -> Self {
        // SAFETY: a record begins with its header.
        let [_, slot, generation, first_line, name, file, table, kinds] =
            unsafe { ptr::read(start.cast::<[u32; 8]>()) };
        let part = |skip: u32, bytes: u32| {
            // SAFETY: the header counts the bytes that follow it.
            let from = unsafe { start.add(HEADER + skip as usize) };
            // SAFETY: as above.
            unsafe { slice::from_raw_parts(from, bytes as usize) }
        };
        let [name_kind, file_kind, _, _] = kinds.to_le_bytes();
        Self {
            generation,
            slot,
            first_line,
            name: (part(0, name), name_kind),
            file: (part(name, file), file_kind),
            table: part(name + file, table),
        }
    }

    #[cfg(test)]
    pub(crate) fn of(generation: u32, slot: u32, name: &'ring str) -> Self {
        let name = (name.as_bytes(), 1);
        Self { generation, slot, first_line: 1, name, file: name, table: &[] }
    }

    pub(crate) fn function(&self) -> String {
        text(self.name)
    }

    pub(crate) fn file(&self) -> String {
        text(self.file)
    }
}

/// A string of the interpreter: one, two or four bytes a character.
fn text((bytes, kind): (&[u8], u8)) -> String {
    let character = |code: u32| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    match kind {
        1 => bytes.iter().map(|&byte| char::from(byte)).collect(),
        2 => bytes.as_chunks().0.iter().map(|&two| character(u16::from_le_bytes(two).into())).collect(),
        _ => bytes.as_chunks().0.iter().map(|&four| character(u32::from_le_bytes(four))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tell(ring: &DefinitionRing, slot: u32, name: &[u8], kind: u8, table: &[u8]) -> bool {
        let copy = |from: &[u8]| {
            let from = from.to_vec();
            move |to: *mut u8, bytes: usize| {
                // SAFETY: `to` has room for `bytes`, see `begin`, and the two do not overlap.
                unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, bytes) };
                true
            }
        };
        let Some(mut record) = ring.begin(MAX_RECORD, 1, slot) else {
            return false;
        };
        record.set_first_line(slot);
        let told = record.set_name(name.len() / usize::from(kind), kind, copy(name))
            && record.set_file(4, 1, copy(b"a.py"))
            && record.set_table(table.len(), copy(table));
        told && record.commit() > 0
    }

    #[test]
    fn records_come_out_as_they_went_in_round_and_round() {
        let ring = DefinitionRing::new();
        ring.map().unwrap();
        let table: Vec<u8> = (0..100_000_u32).map(|byte| byte.to_le_bytes()[0]).collect();
        let mut expected = 0;
        for slot in 0..2_000 {
            let part = &table[..slot as usize * 37 % table.len()];
            if !tell(&ring, slot, "é".as_bytes(), 2, part) {
                ring.drain(|told| {
                    assert_eq!(told.slot, expected);
                    assert_eq!((told.file().as_str(), told.first_line), ("a.py", expected));
                    assert_eq!(told.table, &table[..expected as usize * 37 % table.len()]);
                    expected += 1;
                });
                assert_eq!(expected, slot, "a full ring gives back all of it");
                assert!(tell(&ring, slot, "é".as_bytes(), 2, part), "an empty ring has room");
            }
        }
        assert!(expected > 0, "the ring was full at least once");
    }

    #[test]
    fn strings_of_each_width() {
        assert_eq!(text((&[0x67, 0xE9], 1)), "gé");
        assert_eq!(text((&[0x70, 0x30], 2)), "ば");
        assert_eq!(text((&[0x00, 0xF6, 0x01, 0x00], 4)), "😀");
        assert_eq!(text((&[0x00, 0xD8], 2)), "\u{FFFD}", "a lone surrogate");
    }
}
