//! The consumer's half of the ring through which handlers tell what code objects are called: its memory, and its records as they
//! are read. The producer's half and the form of a record: [`stack`](crate::stack::definition_ring).

use std::ptr;
use std::slice;
use std::sync::atomic::Ordering;

use spanprof_core::Error;

use crate::stack::definition_ring::{BYTES, DefinitionRing, HEADER, SKIP, offset};
use crate::symbols::memory_map::map_zeroed;

/// A record as the consumer sees it.
#[derive(Debug)]
pub(crate) struct DefinitionRecord<'ring> {
    pub(crate) generation: u32,
    pub(crate) slot: u32,
    pub(crate) first_line: u32,
    name: (&'ring [u8], u8),
    file: (&'ring [u8], u8),
    pub(crate) table: &'ring [u8],
}

impl DefinitionRing {
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

    /// Calls `each` with every record, oldest first. The one consumer.
    pub(crate) fn drain(&self, mut each: impl FnMut(&DefinitionRecord<'_>)) {
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
                each(&unsafe { DefinitionRecord::read(start) });
            }
            tail = tail.wrapping_add(u64::from(bytes));
            self.tail.store(tail, Ordering::Release);
        }
    }
}

impl<'ring> DefinitionRecord<'ring> {
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
    use crate::stack::definition_ring::MAX_RECORD;

    fn define(ring: &DefinitionRing, slot: u32, name: &[u8], kind: u8, table: &[u8]) -> bool {
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
        let written = record.set_name(name.len() / usize::from(kind), kind, copy(name))
            && record.set_file(4, 1, copy(b"a.py"))
            && record.set_table(table.len(), copy(table));
        written && record.commit() > 0
    }

    #[test]
    fn records_come_out_as_they_went_in_round_and_round() {
        let ring = DefinitionRing::new();
        ring.map().unwrap();
        let table: Vec<u8> = (0..100_000_u32).map(|byte| byte.to_le_bytes()[0]).collect();
        let mut expected = 0;
        for slot in 0..2_000 {
            let part = &table[..slot as usize * 37 % table.len()];
            if !define(&ring, slot, "é".as_bytes(), 2, part) {
                ring.drain(|record| {
                    assert_eq!(record.slot, expected);
                    assert_eq!((record.file().as_str(), record.first_line), ("a.py", expected));
                    assert_eq!(record.table, &table[..expected as usize * 37 % table.len()]);
                    expected += 1;
                });
                assert_eq!(expected, slot, "a full ring gives back all of it");
                assert!(define(&ring, slot, "é".as_bytes(), 2, part), "an empty ring has room");
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
