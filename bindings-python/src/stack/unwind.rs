//! The stack of the interrupted thread, read in the signal handler.
//!
//! Whose memory is read: the handler runs on the thread whose frames these are, so every frame of its own chain is
//! alive, and each owns its code object. Nothing is counted, as another thread may hold the GIL.
//!
//! 3.11 and 3.12 publish a frame some instructions before it can be read; [`cframe`](crate::stack::cframe) has the rules for
//! that. The other versions publish frames whole, greenlets' too: plain loads are enough, once [`chunk`](crate::stack::chunk) says that
//! the newest one is there.

use libc::ucontext_t;
use spanprof_core::FrameWriter;

use crate::stack::code_object::CodeReader;
use crate::stack::code_table::DEFINITIONS;
use crate::stack::frame_id::{NATIVE_THREAD, NO_PYTHON_FRAME, SWITCHING, UNREADABLE};
use crate::stack::interpreter::{CPython, thread_state};
use crate::stack::layout::{Entry, TSTATE_INTERP};
use crate::stack::memory::{Guarded, Memory, Object, Plain};

/// Frames looked at for those that are kept: each loop of the interpreter has one of its own.
const MAX_SEEN: usize = 2 * spanprof_core::MAX_FRAMES;
/// The lowest bits of a frame's code are a tag from 3.14, and 0 before: objects are aligned.
pub(crate) const TAG: u64 = 7;

impl CPython {
    /// Pushes the stack of the interrupted thread, leaf first. Handler only.
    ///
    /// # Safety
    /// Called on the sampled thread with what its handler got; who starts the profiler mapped the definitions and enabled safe loads.
    #[inline]
    pub(crate) unsafe fn walk_now(&self, ucontext: *const ucontext_t, out: &mut FrameWriter<'_>) {
        if self.is_finalizing() {
            out.push(NO_PYTHON_FRAME);
            return;
        }
        // SAFETY: as above; who starts the profiler mapped the definitions and enabled safe loads.
        unsafe { self.walk_thread(thread_state(), ucontext, out) };
    }

    /// Pushes the frames of the calling thread, leaf first, by the loads that its version needs.
    ///
    /// # Safety
    /// As for [`walk_from`](Self::walk_from); on 3.11 and 3.12 safe loads must be enabled.
    #[inline]
    pub(crate) unsafe fn walk_thread(&self, tstate: Object, ucontext: *const ucontext_t, out: &mut FrameWriter<'_>) {
        match self.layout.entry {
            // SAFETY: the caller's promise; the thread state is alive, and its chain of frames whole at any instant.
            Entry::Frame { .. } => unsafe { self.walk_from::<Plain>(tstate, ucontext, out) },
            // SAFETY: the caller's promise.
            Entry::CFrame { .. } => unsafe { self.walk_from::<Guarded>(tstate, ucontext, out) },
        }
    }

    /// Pushes the frames of the calling thread, leaf first.
    ///
    /// Hot: 57 frames in about 0.3 µs.
    ///
    /// # Safety
    /// `tstate` must be null or the calling thread's own thread state, `ucontext` null or what the running handler got;
    /// the definitions' memory must be mapped, and M able to read what this version publishes.
    #[inline]
    pub(crate) unsafe fn walk_from<M: Memory>(
        &self,
        tstate: Object,
        ucontext: *const ucontext_t,
        out: &mut FrameWriter<'_>,
    ) {
        if tstate.is_null() {
            out.push(NATIVE_THREAD);
            return;
        }
        // SAFETY: the thread state is alive.
        let interpreter = unsafe { M::pointer(tstate, TSTATE_INTERP) };
        let first = match self.layout.entry {
            Entry::Frame { tstate_frame, .. } => {
                // SAFETY: as above.
                let frame = unsafe { M::pointer(tstate, tstate_frame) };
                // SAFETY: as above.
                frame.filter(|&frame| unsafe { self.is_there::<M>(tstate, frame, ucontext) })
            }
            Entry::CFrame { tstate_cframe, .. } => {
                // SAFETY: as above.
                let cframe = unsafe { M::pointer(tstate, tstate_cframe) };
                // SAFETY: it is on this thread's stack, and M can read what it names.
                cframe.and_then(|cframe| unsafe { self.first_frame::<M>(tstate, cframe, ucontext) })
            }
        };
        match first {
            // SAFETY: frames of the thread's own chain are alive, and M can read what is not of it.
            Some(frame) => unsafe { self.push_frames::<M>(frame, interpreter == Some(self.main), out) },
            None => {
                out.push(UNREADABLE);
            }
        }
        if out.frames() == 0 {
            out.push(NO_PYTHON_FRAME);
        }
    }

    /// # Safety
    /// The chain from `frame` must be the calling thread's own, or M able to read what is not.
    #[inline]
    unsafe fn push_frames<M: Memory>(&self, mut frame: Object, in_main: bool, out: &mut FrameWriter<'_>) {
        let layout = &self.layout.frame;
        let fields = [layout.code, layout.previous, layout.instr, layout.owner_word()];
        let mut definer = DEFINITIONS.definer();
        let mut reader = CodeReader::new(self.layout, self.code_type, in_main);
        let mut loops = 0;
        for _ in 0..MAX_SEEN {
            if frame.is_null() {
                // A chain without the shims of its loops is that of a greenlet which is being left: it links its frames
                // past them, and the thread's context may be that of the next one already. On 3.12 it may also be that
                // of a generator which was published before its caller was noted, where no register told of that.
                if layout.entry_is_shim && loops == 0 && out.frames() > 0 {
                    out.push(SWITCHING);
                }
                return;
            }
            // SAFETY: the caller's promise.
            let Some([code, previous, instr, owner]) = (unsafe { M::words(frame, fields) }) else {
                return;
            };
            let code = (code & !TAG) as Object;
            let is_shim = layout.entry_is_shim && layout.is_entry(owner);
            loops += u32::from(is_shim);
            // SAFETY: what a live frame names is an object.
            let is_function = if is_shim { Some(false) } else { unsafe { reader.is_function::<M>(code) } };
            // No frame names what is not there. To follow this one would cost some microseconds for each that is none either.
            let Some(is_function) = is_function else { return };
            if is_function {
                // SAFETY: is_function() said that it is a code object, and its frame owns it.
                let key = unsafe { reader.key::<M>(code) };
                let index = self.instruction_number(code, instr);
                // SAFETY: the caller mapped the definitions.
                let frame = unsafe { definer.frame_id(key, index, |record| reader.describe::<M>(code, record)) };
                if !out.push(frame) {
                    return;
                }
            }
            frame = previous as Object;
        }
    }

    /// The code object that the word at `object + offset` names.
    ///
    /// # Safety
    /// The word must be mapped and name one.
    pub(crate) unsafe fn code_at(&self, object: Object, offset: usize) -> Object {
        // SAFETY: the caller's promise.
        let word = unsafe { Plain::word(object, offset) }.unwrap_or(0);
        (word & !TAG) as Object
    }

    /// The number of an instruction of `code`, in code units; u32::MAX before the first.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "no function has 2³² instructions; -1 before the first")]
    pub(crate) fn instruction_number(&self, code: Object, instr: u64) -> u32 {
        if self.layout.frame.instr_is_number {
            return instr as u32;
        }
        let first = code.addr().wrapping_add(self.layout.code.size) as u64;
        (instr.wrapping_sub(first).cast_signed() >> 1).cast_unsigned() as u32
    }
}
