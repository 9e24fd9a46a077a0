//! The ring through which handlers tell the profiler's thread what code objects are called.
//!
//! One producer at a time (who holds [`Definitions`](crate::stack::code_table::Definitions)' flag), one consumer
//! ([`symbols`](crate::symbols::definition_ring)). A record is a header of four words, then name, file and location table
//! as they were in the interpreter's memory, padded to eight bytes. It never wraps: where the rest of the ring is too short,
//! a header without content skips it.
//!
//! ```text
//! | bytes: 32 | slot: 32 | generation: 32 | first line: 32 | name: 32 | file: 32 | table: 32 | kinds: 32 | name … file … table … |
//! ```

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

pub(crate) const BYTES: usize = 1024 * 1024;
pub(crate) const HEADER: usize = 32;
/// `slot` of a header that only skips.
pub(crate) const SKIP: u32 = u32::MAX;
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
    pub(crate) memory: AtomicPtr<u8>,
    /// Bytes ever written and ever read.
    pub(crate) head: AtomicU64,
    pub(crate) tail: AtomicU64,
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

impl DefinitionRing {
    pub(crate) const fn new() -> Self {
        Self { memory: AtomicPtr::new(ptr::null_mut()), head: AtomicU64::new(0), tail: AtomicU64::new(0) }
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
}

#[expect(clippy::cast_possible_truncation, reason = "the remainder is below BYTES")]
pub(crate) fn offset(position: u64) -> usize {
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
