//! Whether the newest frame is still there, on CPython 3.13 and later.
//!
//! Frames lie one behind the other in *chunks*, which are mapped and unmapped as the stack grows and shrinks. A function that makes a
//! generator is taken off its chunk *before* its caller becomes the current frame (`RETURN_GENERATOR`). If it was the only one there,
//! 3.13 and 3.14 up to some minor version unmap the chunk: until the caller is current, the current frame lies where no memory is, or
//! somebody else's. The signal of a timer that expires meanwhile comes as that system call returns, in just this instant.
//!
//! Such a frame is the first of its chunk, and its chunk is no longer the thread's newest one.

use crate::stack::interpreter::CPython;
use crate::stack::layout::Entry;
use crate::stack::memory::{Memory, Object, PAGE, Probed};

/// `_PyStackChunk`: the chunk before, its bytes, words in use; then come frames.
const BEFORE: usize = 0;
const SIZE: usize = 8;
const FIRST_FRAME: usize = 24;

impl CPython {
    /// Whether a thread's current frame is there: a compare, but for one frame in some hundred.
    ///
    /// # Safety
    /// `tstate` must be the calling thread's own thread state, and its current frame `frame`.
    #[inline]
    pub(crate) unsafe fn is_there<M: Memory>(&self, tstate: Object, frame: Object) -> bool {
        // SAFETY: the caller's promise.
        frame.addr() % PAGE != FIRST_FRAME || unsafe { self.is_first_and_there::<M>(tstate, frame) }
    }

    /// # Safety
    /// As for [`is_there`](Self::is_there).
    #[cold]
    unsafe fn is_first_and_there<M: Memory>(&self, tstate: Object, frame: Object) -> bool {
        let Entry::Frame { tstate_chunk: Some(offset), .. } = self.layout.entry else { return true };
        let chunk = frame.wrapping_sub(FIRST_FRAME);
        // SAFETY: a field of the thread state.
        let Some(newest) = (unsafe { M::pointer(tstate, offset) }) else { return false };
        // The next frame may be under way already, in a chunk of its own.
        // SAFETY: the thread's newest chunk is mapped.
        if newest == chunk || !newest.is_null() && unsafe { M::pointer(newest, BEFORE) } == Some(chunk) {
            return true;
        }
        let layout = &self.layout.frame;
        // An object or the C stack has it. In memory that is somebody else's by now the byte is 0 nearly always.
        // SAFETY: the kernel is asked first.
        let owner = unsafe { Probed::word(frame, layout.owner_word()) };
        owner.is_some_and(|word| layout.owner(word) != 0)
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
        let size = unsafe { M::word(chunk as Object, SIZE) };
        size.is_some_and(|size| (FIRST_FRAME as u64..size).contains(&frame.wrapping_sub(chunk)))
    }
}
