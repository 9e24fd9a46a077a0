//! Whether the newest frame is still there, on CPython 3.13 and later.
//!
//! Frames lie one behind the other in *chunks*, which are mapped and unmapped as the stack grows and shrinks. A function that makes a
//! generator is taken off its chunk *before* its caller becomes the current frame (`RETURN_GENERATOR`). If it was the only one there,
//! 3.13 and 3.14 up to some minor version unmap the chunk: until the caller is current, the current frame lies where no memory is, or
//! somebody else's. The signal of a timer that expires meanwhile comes as that system call returns, in just this instant.
//!
//! Such a frame is the first of its chunk, and its chunk is no longer the thread's newest one. Others lie like it by chance, one place in
//! 512 of each page: those of the newest chunk or the one before are there. What the rest are is asked of the kernel first, and believed
//! only where it is what frames of a generator or of the C stack are.

use libc::ucontext_t;

use crate::stack::cframe::MAX_STACK;
use crate::stack::interpreter::CPython;
use crate::stack::layout::{Entry, OB_TYPE};
use crate::stack::memory::{Memory, Object, PAGE, Probed};
use crate::stack::registers;
use crate::stack::unwind::TAG;

/// `_PyStackChunk`: the chunk before, its bytes, words in use; then come frames.
const BEFORE: usize = 0;
const SIZE: usize = 8;
const FIRST_FRAME: usize = 24;
/// Whose a frame is: `FRAME_OWNED_BY_GENERATOR`.
const OF_GENERATOR: u64 = 1;
/// The last one of them: `FRAME_OWNED_BY_CSTACK`, in 3.14.
const LAST_OWNER: u64 = 4;
/// The size of 3.15's thread state, which has the frame below all others in it.
const THREAD_STATE: usize = 1096;

impl CPython {
    /// Whether a thread's current frame is there: a compare, but for one frame in some hundred.
    ///
    /// # Safety
    /// `tstate` must be the calling thread's own thread state, and its current frame `frame`; `ucontext` null or what the running
    /// handler got.
    #[inline]
    pub(crate) unsafe fn is_there<M: Memory>(
        &self,
        tstate: Object,
        frame: Object,
        ucontext: *const ucontext_t,
    ) -> bool {
        // SAFETY: the caller's promise.
        frame.addr() % PAGE != FIRST_FRAME || unsafe { self.is_first_and_there::<M>(tstate, frame, ucontext) }
    }

    /// # Safety
    /// As for [`is_there`](Self::is_there).
    #[cold]
    unsafe fn is_first_and_there<M: Memory>(&self, tstate: Object, frame: Object, ucontext: *const ucontext_t) -> bool {
        let Entry::Frame { tstate_chunk: Some(offset), .. } = self.layout.entry else { return true };
        // SAFETY: a field of the thread state.
        let Some(newest) = (unsafe { M::pointer(tstate, offset) }) else { return false };
        if !newest.is_null() {
            // SAFETY: the thread's newest chunk is mapped.
            let Some([before, size]) = (unsafe { M::words(newest, [BEFORE, SIZE]) }) else { return false };
            // The next frame may be under way already, in a chunk of its own.
            // SAFETY: a chunk is mapped until the thread has left it.
            let is_before = || before != 0 && unsafe { is_in::<M>(frame, before as Object) };
            if lies_in(frame, newest, size) || is_before() {
                return true;
            }
        }
        let layout = &self.layout.frame;
        // SAFETY: the kernel is asked first. Whose memory this is by now would have to unmap it between that and the load.
        let Some([code, owner]) = (unsafe { Probed::words(frame, [layout.code, layout.owner_word()]) }) else {
            return false;
        };
        let owner = layout.owner(owner);
        if owner == OF_GENERATOR {
            // SAFETY: as above.
            return unsafe { Probed::pointer((code & !TAG) as Object, OB_TYPE) } == Some(self.code_type);
        }
        // Between two calls of a loop its own first frame is the current one, on the stack of the thread; outside of all loops 3.15 has
        // one in the thread state.
        let here = 0_u8;
        let lowest = if ucontext.is_null() {
            (&raw const here).addr()
        } else {
            // SAFETY: the caller's promise.
            unsafe { registers::stack_pointer(ucontext) }
        };
        (u64::from(layout.entry_from)..=LAST_OWNER).contains(&owner)
            && (frame.addr().wrapping_sub(lowest) < MAX_STACK
                || frame.addr().wrapping_sub(tstate.addr()) < THREAD_STATE)
    }

    /// Whether the thread's newest chunk has its current frame, which a function's is. For the self-test.
    ///
    /// # Safety
    /// As for [`Memory::word`] of any address.
    pub(crate) unsafe fn is_in_newest_chunk<M: Memory>(&self, tstate: Object) -> bool {
        let Entry::Frame { tstate_frame, tstate_chunk: Some(offset) } = self.layout.entry else { return true };
        // SAFETY: the caller's promise.
        let Some([frame, chunk]) = (unsafe { M::words(tstate, [tstate_frame, offset]) }) else { return false };
        // SAFETY: as above.
        unsafe { is_in::<M>(frame as Object, chunk as Object) }
    }
}

/// Whether a frame is one of a chunk's.
///
/// # Safety
/// The chunk must be mapped, or M able to read what is not.
unsafe fn is_in<M: Memory>(frame: Object, chunk: Object) -> bool {
    // SAFETY: the caller's promise.
    unsafe { M::word(chunk, SIZE) }.is_some_and(|size| lies_in(frame, chunk, size))
}

fn lies_in(frame: Object, chunk: Object, size: u64) -> bool {
    (FIRST_FRAME as u64..size).contains(&(frame.addr().wrapping_sub(chunk.addr()) as u64))
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::stack::cframe::tests::{at, code, interpreter, words};
    use crate::stack::layout::LAYOUTS;

    #[test]
    fn the_first_frame_of_a_chunk_that_was_left_is_not_there() {
        /// As CPython's first one of a thread.
        const BYTES: usize = 4 * PAGE;
        // SAFETY: new memory.
        let page = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(ptr::null_mut(), BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        let (chunk, frame) = (page as Object, page.wrapping_byte_add(FIRST_FRAME) as Object);
        for (version, layout) in LAYOUTS {
            let Entry::Frame { tstate_chunk: Some(offset), .. } = layout.entry else { continue };
            let (code, other) = (code(), words::<8>());
            let runtime = interpreter(layout, at(&*code));
            let (tstate, newest) = (words::<64>(), words::<8>());
            let write = |offset: usize, word: usize| {
                // SAFETY: the page is ours, and the frame in it shorter.
                unsafe { ptr::write(frame.wrapping_add(offset).cast_mut().cast(), word) };
            };
            // SAFETY: Probed asks before it reads.
            let is_there = |frame| unsafe { runtime.is_there::<Probed>(at(&tstate), frame, ptr::null()) };
            let newest_is = |chunk: Object| tstate[offset / 8].set(chunk.addr());
            let owner = |owner: usize| write(layout.frame.owner_word(), owner << (8 * (layout.frame.owner % 8)));
            newest_is(at(&newest));
            write(layout.frame.code, at(&*code).addr());
            owner(0);
            assert!(!is_there(frame), "{version:?}: of a chunk that was left");
            assert!(is_there(frame.wrapping_add(8)), "{version:?}: not the first");
            let later = frame.wrapping_byte_add(2 * PAGE);
            for (place, frame) in [("the first", frame), ("one a page's end behind it", later)] {
                // SAFETY: a word of the chunk's own.
                unsafe { ptr::write(chunk.wrapping_add(SIZE).cast_mut().cast(), BYTES) };
                newest[BEFORE / 8].set(chunk.addr());
                assert!(is_there(frame), "{version:?}: {place}, while the next one is in a new chunk");
                newest[BEFORE / 8].set(0);
                assert!(!is_there(frame), "{version:?}: {place} of a chunk that was left");
                newest_is(chunk);
                assert!(is_there(frame), "{version:?}: {place} of the newest chunk");
                // SAFETY: as above.
                unsafe { ptr::write(chunk.wrapping_add(SIZE).cast_mut().cast(), PAGE) };
                newest_is(at(&newest));
            }
            owner(usize::try_from(OF_GENERATOR).unwrap());
            assert!(is_there(frame), "{version:?}: a generator's");
            write(layout.frame.code, at(&other).addr());
            assert!(!is_there(frame), "{version:?}: looks like a generator's, and has no code");
            owner(0x41);
            assert!(!is_there(frame), "{version:?}: somebody else's memory");
        }
        // SAFETY: the page was mapped above.
        assert_eq!(unsafe { libc::munmap(page, BYTES) }, 0);
        for (version, layout) in LAYOUTS {
            let Entry::Frame { tstate_chunk: Some(_), .. } = layout.entry else { continue };
            let runtime = interpreter(layout, ptr::null());
            let tstate = words::<64>();
            // SAFETY: Probed asks before it reads.
            assert!(!unsafe { runtime.is_there::<Probed>(at(&tstate), frame, ptr::null()) }, "{version:?}: unmapped");
        }
    }

    #[test]
    fn the_frame_in_a_thread_state_is_there() {
        /// `_PyThreadStateImpl.base_frame` of 3.15: an odd number of words behind where a thread state may lie.
        const BASE_FRAME: usize = 888;
        let (_, layout) = LAYOUTS.iter().find(|(version, _)| *version == (3, 15)).expect("a table of 3.15");
        let Entry::Frame { tstate_chunk: Some(offset), .. } = layout.entry else { panic!("3.15 has chunks") };
        let runtime = interpreter(layout, ptr::null());
        let (memory, newest) = (words::<1024>(), words::<8>());
        let place = (PAGE + FIRST_FRAME - BASE_FRAME).wrapping_sub(at(&memory).addr()) % PAGE;
        let write = |place: usize, word: usize| memory[place / 8].set(word);
        write(place + offset, at(&newest).addr());
        let owner = BASE_FRAME + layout.frame.owner_word();
        write(place + owner, usize::from(layout.frame.entry_from) << (8 * (layout.frame.owner % 8)));
        let tstate = at(&memory).wrapping_add(place);
        let frame = tstate.wrapping_add(BASE_FRAME);
        assert_eq!(frame.addr() % PAGE, FIRST_FRAME);
        // SAFETY: Probed asks before it reads.
        assert!(unsafe { runtime.is_there::<Probed>(tstate, frame, ptr::null()) });
    }
}
