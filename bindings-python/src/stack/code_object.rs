//! What the handler reads of a code object: what tells it from others, and once what people want to know of it.

use crate::stack::definition_ring::Record;
use crate::stack::layout::{BYTES_DATA, CodeLayout, Layout, OB_SIZE, OB_TYPE, STR_HASH, STR_LENGTH, STR_STATE};
use crate::stack::memory::{Memory, Object, PAGE};

/// Bits of `PyASCIIObject.state`.
const KIND_SHIFT: u32 = 2;
const COMPACT: u32 = 1 << 5;
const ASCII: u32 = 1 << 6;

/// Words of a location table that are looked at to tell code objects apart: all that a function of some 60 lines has, and
/// of a longer one each nth.
const TABLE_WORDS: usize = 64;

/// One walk's reader of code objects.
#[derive(Debug)]
pub(crate) struct CodeReader<'a> {
    layout: &'a Layout,
    code_type: Object,
    /// Whether `co_version` tells code objects apart. Interpreters count each for itself, and what one of them leaves
    /// behind another may use, so in a subinterpreter it does not.
    versions_differ: bool,
    /// The file name that was hashed last, as callers and callees are often in one file.
    last_file: (Object, u64),
}

impl<'a> CodeReader<'a> {
    #[inline]
    pub(crate) fn new(layout: &'a Layout, code_type: Object, versions_differ: bool) -> Self {
        Self { layout, code_type, versions_differ, last_file: (std::ptr::null(), 0) }
    }

    /// Whether what a frame runs is a function of the program: a code object that is not the interpreter's own. `None`:
    /// nothing is mapped there.
    ///
    /// # Safety
    /// `code` must be null, an object, or something that M can read.
    #[inline]
    pub(crate) unsafe fn is_function<M: Memory>(&self, code: Object) -> Option<bool> {
        if code.is_null() {
            return Some(false);
        }
        // SAFETY: the caller's promise.
        if unsafe { M::pointer(code, OB_TYPE) }? != self.code_type {
            return Some(false);
        }
        let CodeLayout { internal, flags, .. } = self.layout.code;
        if internal == 0 {
            return Some(true);
        }
        // SAFETY: it is a code object.
        unsafe { M::half(code, flags) }.map(|flags| flags & internal == 0)
    }

    /// What tells this code object from every other, and from one that had its address before, as two words: its version,
    /// or where it has none its names, instructions and lines, as far as these are looked at.
    ///
    /// # Safety
    /// `code` must be a code object: [`is_function`](Self::is_function) said so.
    #[inline]
    pub(crate) unsafe fn key<M: Memory>(&mut self, code: Object) -> (u64, u64) {
        let layout = &self.layout.code;
        // SAFETY: it is a code object; the field is of 32 bits.
        let line = unsafe { M::half(code, layout.firstlineno) }.unwrap_or(0);
        let version = match layout.version {
            // SAFETY: as above.
            Some(offset) if self.versions_differ => unsafe { M::half(code, offset) }.unwrap_or(0),
            _ => 0,
        };
        let about = (u64::from(version) << 32) | u64::from(line);
        if version != 0 {
            return (code as u64, about);
        }
        // SAFETY: as above.
        let names = unsafe { self.hash_of_names::<M>(code) };
        // SAFETY: as above.
        let lines = unsafe { self.hash_of_lines::<M>(code) };
        (code as u64, about ^ names ^ lines)
    }

    /// What differs where a file was changed and loaded again, though names and first line are the same: how many
    /// instructions there are, and where they stand.
    ///
    /// # Safety
    /// As for [`key`](Self::key).
    unsafe fn hash_of_lines<M: Memory>(&self, code: Object) -> u64 {
        let layout = &self.layout.code;
        let instructions = match layout.bytecode {
            // SAFETY: a field of the code object.
            Some(offset) => unsafe { M::pointer(code, offset) },
            None => Some(code),
        };
        // SAFETY: that one, or the object itself: both have their length there.
        let count = instructions.and_then(|object| unsafe { M::word(object, OB_SIZE) }).unwrap_or(0);
        // SAFETY: a field of the code object.
        let Some(table) = (unsafe { M::pointer(code, layout.linetable) }) else {
            return count;
        };
        // SAFETY: a bytes object has its length there.
        let length = unsafe { M::word(table, OB_SIZE) }.unwrap_or(0);
        let mut hash = count.rotate_left(32) ^ length;
        let length = usize::try_from(length).unwrap_or(0);
        let mut page = usize::MAX;
        let mut turn = 0;
        for at in (0..length).step_by(8 * (length / (8 * TABLE_WORDS) + 1)) {
            let object = table.wrapping_add(BYTES_DATA + at);
            let word = if object.addr() / PAGE == page {
                // SAFETY: an aligned word of the page that was read last.
                unsafe { M::near(object) }
            } else {
                page = object.addr() / PAGE;
                // SAFETY: a bytes object's content follows its header, and an aligned word reaches into no other page.
                match unsafe { M::word(object, 0) } {
                    Some(word) => word,
                    None => return hash,
                }
            };
            // What follows the content is nobody's.
            let kept = if length - at < 8 { word & ((1 << (8 * (length - at))) - 1) } else { word };
            hash ^= kept.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(turn);
            turn = (turn + 7) % 64;
        }
        hash
    }

    /// The hashes of name and file name, which the interpreter keeps in the strings.
    ///
    /// # Safety
    /// As for [`key`](Self::key).
    unsafe fn hash_of_names<M: Memory>(&mut self, code: Object) -> u64 {
        let layout = &self.layout.code;
        // SAFETY: strings of a live code object are alive; on 3.11 and 3.12 the load is guarded.
        let hash_at = |string| unsafe { M::word(string, STR_HASH) }.unwrap_or(0);
        // SAFETY: fields of the code object.
        let Some([name, file]) = (unsafe { M::words(code, [layout.name, layout.filename]) }) else {
            return 0;
        };
        let file = file as Object;
        if file != self.last_file.0 {
            self.last_file = (file, hash_at(file));
        }
        hash_at(name as Object).wrapping_mul(0xA076_1D64_78BD_642F) ^ self.last_file.1.rotate_left(31)
    }

    /// Copies what people want to know of a code object. False: some of it is not there.
    #[cold]
    pub(crate) fn describe<M: Memory>(&self, code: Object, record: &mut Record<'_>) -> bool {
        let layout = &self.layout.code;
        // SAFETY: called with what key() was called with.
        let field = |offset| unsafe { M::pointer(code, offset) };
        // SAFETY: as above.
        let first_line = unsafe { M::half(code, layout.firstlineno) };
        let (Some(first_line), Some(name), Some(file), Some(table)) =
            (first_line, field(layout.qualname), field(layout.filename), field(layout.linetable))
        else {
            return false;
        };
        record.set_first_line(first_line);
        // SAFETY: the strings of a live code object are alive and never change.
        let (Some(name), Some(file)) = (unsafe { self.text::<M>(name) }, unsafe { self.text::<M>(file) }) else {
            return false;
        };
        // SAFETY: a bytes object has its length there.
        let Some(length) = (unsafe { M::word(table, OB_SIZE) }) else {
            return false;
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        // SAFETY: text() found these characters; the ring gives room for what it asks.
        record.set_name(name.length, name.kind, |to, bytes| unsafe { M::copy(name.data, 0, to, bytes) })
            // SAFETY: as above.
            && record.set_file(file.length, file.kind, |to, bytes| unsafe { M::copy(file.data, 0, to, bytes) })
            // SAFETY: a bytes object's content follows its header.
            && record.set_table(length, |to, bytes| unsafe { M::copy(table, BYTES_DATA, to, bytes) })
    }

    /// Where the characters of a string are.
    ///
    /// # Safety
    /// `string` must be a live str, or something that M can read.
    unsafe fn text<M: Memory>(&self, string: Object) -> Option<Characters> {
        // SAFETY: every str has its length there.
        let length = unsafe { M::word(string, STR_LENGTH) }?;
        // SAFETY: and its state there.
        let state = unsafe { M::half(string, STR_STATE) }?;
        let kind = (state >> KIND_SHIFT) & 7;
        if state & COMPACT == 0 || !matches!(kind, 1 | 2 | 4) {
            return None;
        }
        let data = if state & ASCII != 0 { self.layout.ascii_data } else { self.layout.compact_data };
        let kind = kind as u8;
        Some(Characters { data: string.wrapping_add(data), length: usize::try_from(length).ok()?, kind })
    }
}

#[derive(Clone, Copy, Debug)]
struct Characters {
    data: Object,
    length: usize,
    /// Bytes a character.
    kind: u8,
}
