//! Reading the interpreter's memory: in a handler plainly where the layout promises that it is mapped, guarded where
//! it does not (3.11 and 3.12, see [`cframe`](crate::stack::cframe)); in the self-test, and where one frame may be gone
//! ([`chunk`](crate::stack::chunk)), by asking the kernel first.

use std::io;
use std::ptr;

/// Any object of the interpreter, as an address.
pub(crate) type Object = *const u8;

/// The smallest page there is: in one all bytes are mapped or none.
pub(crate) const PAGE: usize = 4_096;

/// How a walk reads memory. [`Plain`] costs nothing, [`Guarded`] a call, [`Probed`] a system call.
pub(crate) trait Memory {
    /// The word at `object + offset`, `None` where nothing is mapped.
    ///
    /// # Safety
    /// For [`Plain`] the word must be mapped and aligned. For [`Guarded`] the core's handlers must be installed. For
    /// [`Probed`] no other thread may unmap it meanwhile.
    unsafe fn word(object: Object, offset: usize) -> Option<u64>;

    /// The word at `object`, in a page of which a word was just read: at the price of a load.
    ///
    /// # Safety
    /// As for [`word`](Self::word), which must have found a word in this page; nobody unmaps it meanwhile.
    #[inline]
    unsafe fn near(object: Object) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { ptr::read(object.cast()) }
    }

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
    #[inline]
    unsafe fn words<const N: usize>(object: Object, offsets: [usize; N]) -> Option<[u64; N]> {
        let mut words = [0; N];
        for (word, offset) in words.iter_mut().zip(offsets) {
            // SAFETY: the caller's promise.
            *word = unsafe { Self::word(object, offset) }?;
        }
        Some(words)
    }

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

/// Reads of addresses of which nothing is known. Without the handlers of [`Guarded`], which most versions do not need.
#[derive(Debug)]
pub(crate) enum Probed {}

impl Memory for Probed {
    unsafe fn word(object: Object, offset: usize) -> Option<u64> {
        let at = object.wrapping_add(offset);
        // SAFETY: both ends are mapped, and it is shorter than a page.
        (is_mapped(at) && is_mapped(at.wrapping_add(7))).then(|| unsafe { ptr::read_unaligned(at.cast()) })
    }

    unsafe fn half(object: Object, offset: usize) -> Option<u32> {
        let at = object.wrapping_add(offset);
        // SAFETY: as above.
        (is_mapped(at) && is_mapped(at.wrapping_add(3))).then(|| unsafe { ptr::read_unaligned(at.cast()) })
    }

    unsafe fn copy(object: Object, offset: usize, to: *mut u8, length: usize) -> bool {
        let from = object.wrapping_add(offset);
        for done in 0..length {
            let at = from.wrapping_add(done);
            if (done == 0 || at.addr() % PAGE == 0) && !is_mapped(at) {
                return false;
            }
            // SAFETY: its page is mapped, and there is room for `length` bytes.
            unsafe { ptr::copy_nonoverlapping(at, to.wrapping_add(done), 1) };
        }
        true
    }
}

/// Whether the byte at `address` can be read. The system call reads a signal mask there before it finds that it does
/// not know what to do with it, so it fails in any case and only its error differs.
fn is_mapped(address: Object) -> bool {
    const NO_SUCH_OPERATION: libc::c_int = -1;
    let mask = address.map_addr(|address| address & !7);
    if mask.is_null() {
        return false; // to the system call that is "no mask"
    }
    // SAFETY: the kernel checks the address; without a valid operation nothing is changed.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, NO_SUCH_OPERATION, mask, ptr::null_mut::<u8>(), 8_usize) };
    io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_mapped_is_not_read() {
        let words = [0x1122_3344_5566_7788_u64, 0x99];
        let object: Object = words.as_ptr().cast();
        // SAFETY: nobody unmaps the stack, or maps what is not mapped.
        let word = |object, offset| unsafe { Probed::word(object, offset) };
        // SAFETY: as above.
        let half = |object, offset| unsafe { Probed::half(object, offset) };
        assert_eq!(word(object, 8), Some(words[1]));
        assert_eq!(half(object, 2), Some(0x3344_5566));
        for bad in [0_usize, 8, 4_091, 0x7fff_ffff_f000, 0xdead_0000_0000_0000, usize::MAX - 3] {
            let bad: Object = ptr::without_provenance(bad);
            assert_eq!(word(bad, 0), None, "{bad:?}");
            assert_eq!(half(bad, 0), None, "{bad:?}");
            // SAFETY: as above.
            assert!(!unsafe { Probed::copy(bad, 0, ptr::null_mut(), 1) }, "{bad:?}");
        }
    }
}
