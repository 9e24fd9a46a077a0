//! Reading the interpreter's memory in a handler: plainly where the layout promises that it is mapped, guarded where
//! it does not (3.11 and 3.12, see [`unwind`](crate::unwind)).

use std::ptr;

use crate::hamt::Object;

/// The smallest page there is: what shares one with a word that could be loaded can be loaded too.
const PAGE: usize = 4_096;

/// How a walk reads memory. [`Plain`] costs nothing, [`Guarded`] a call.
pub(crate) trait Memory {
    /// The word at `object + offset`, `None` where nothing is mapped.
    ///
    /// # Safety
    /// For [`Plain`] the word must be mapped. For [`Guarded`] the core's handlers must be installed.
    unsafe fn word(object: Object, offset: usize) -> Option<u64>;

    /// The half word there.
    ///
    /// # Safety
    /// As for [`word`](Self::word).
    unsafe fn half(object: Object, offset: usize) -> Option<u32>;

    /// Copies `length` bytes from `object + offset`. False: not all of them are mapped.
    ///
    /// # Safety
    /// As for [`word`](Self::word), for each byte; `to` must have room.
    unsafe fn copy(object: Object, offset: usize, to: *mut u8, length: usize) -> bool;

    /// Words of one object.
    ///
    /// # Safety
    /// As for [`word`](Self::word), for each.
    unsafe fn words<const N: usize>(object: Object, offsets: [usize; N]) -> Option<[u64; N]>;

    /// The pointer there.
    ///
    /// # Safety
    /// As for [`word`](Self::word).
    #[inline]
    unsafe fn pointer(object: Object, offset: usize) -> Option<Object> {
        // SAFETY: the caller's promise.
        unsafe { Self::word(object, offset) }.map(|word| word as Object)
    }
}

/// Reads that cannot fault.
#[derive(Debug)]
pub(crate) enum Plain {}

impl Memory for Plain {
    #[inline]
    unsafe fn word(object: Object, offset: usize) -> Option<u64> {
        // SAFETY: the caller says that it is mapped; fields are aligned.
        Some(unsafe { ptr::read(object.wrapping_add(offset).cast()) })
    }

    #[inline]
    unsafe fn half(object: Object, offset: usize) -> Option<u32> {
        // SAFETY: as above.
        Some(unsafe { ptr::read(object.wrapping_add(offset).cast()) })
    }

    #[inline]
    unsafe fn words<const N: usize>(object: Object, offsets: [usize; N]) -> Option<[u64; N]> {
        // SAFETY: as above.
        Some(offsets.map(|offset| unsafe { ptr::read(object.wrapping_add(offset).cast()) }))
    }

    #[inline]
    unsafe fn copy(object: Object, offset: usize, to: *mut u8, length: usize) -> bool {
        // SAFETY: the caller says that all of it is mapped and that `to` has room.
        unsafe { ptr::copy_nonoverlapping(object.wrapping_add(offset), to, length) };
        true
    }
}

/// Reads that find out whether there is memory.
#[derive(Debug)]
pub(crate) enum Guarded {}

impl Memory for Guarded {
    #[inline]
    unsafe fn word(object: Object, offset: usize) -> Option<u64> {
        spanprof_core::safe_load(object.wrapping_add(offset).cast())
    }

    #[inline]
    unsafe fn half(object: Object, offset: usize) -> Option<u32> {
        spanprof_core::safe_load_u32(object.wrapping_add(offset).cast())
    }

    #[inline]
    unsafe fn words<const N: usize>(object: Object, offsets: [usize; N]) -> Option<[u64; N]> {
        let mut words = [0; N];
        let mut known = usize::MAX;
        for (word, offset) in words.iter_mut().zip(offsets) {
            let at = object.wrapping_add(offset);
            *word = if at.addr() / PAGE == known {
                // SAFETY: the word before could be loaded, and lies in the same page.
                unsafe { ptr::read(at.cast()) }
            } else {
                spanprof_core::safe_load(at.cast())?
            };
            known = at.addr() / PAGE;
        }
        Some(words)
    }

    unsafe fn copy(object: Object, offset: usize, to: *mut u8, length: usize) -> bool {
        let from = object.wrapping_add(offset);
        // Whole aligned words: one of them never reaches into the next page, so none is refused for its neighbours.
        let mut done = 0_usize;
        while done < length {
            let at = from.wrapping_add(done);
            let skip = at.addr() & 7;
            let Some(word) = spanprof_core::safe_load(at.wrapping_sub(skip).cast()) else {
                return false;
            };
            let bytes = (word >> (8 * skip)).to_le_bytes();
            let count = (8 - skip).min(length - done);
            // SAFETY: `count` is at most 8, and `done + count` at most `length`, for which there is room.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.wrapping_add(done), count) };
            done += count;
        }
        true
    }
}
