//! CPython as the engine asks it: for the context and the stack of the interrupted thread, and for what frame ids mean.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::ucontext_t;
use spanprof_core::{Context, Drain, Frame, FrameId, FrameWriter, Runtime, ThreadRecord};

use crate::messages;
use crate::stack::frame_id::COLLECTING;
use crate::stack::gil::is_gil;
use crate::stack::interpreter::CPython;
use crate::stack::layout::Entry;
use crate::symbols::definitions;

/// What a thread's ring holds, and what it does where awaits become samples too: those of some hundred tasks that go on at once.
const RING: usize = 16 * 1024;
const RING_WITH_WALL_TIME: usize = 64 * 1024;

/// Whether the profiler that is started next measures wall time.
pub(crate) static MEASURES_WALL_TIME: AtomicBool = AtomicBool::new(false);

// SAFETY: `context` and `walk` are stack/, which lists what it calls: no allocation, no lock (a flag is tried once), every load of
// memory that the running thread keeps alive or that is guarded.
unsafe impl Runtime for CPython {
    fn ring_bytes(&self) -> usize {
        if MEASURES_WALL_TIME.load(Ordering::Relaxed) { RING_WITH_WALL_TIME } else { RING }
    }

    fn needs_safe_load(&self) -> bool {
        matches!(self.layout.entry, Entry::CFrame { .. })
    }

    #[inline]
    unsafe fn context(&self, _thread: &ThreadRecord, _ucontext: *const ucontext_t) -> Context {
        // SAFETY: the caller's promise.
        unsafe { self.context_now() }
    }

    #[inline]
    unsafe fn is_collecting(&self, _thread: &ThreadRecord) -> bool {
        // SAFETY: the caller's promise, and the interpreter does not end.
        !self.is_finalizing() && unsafe { self.is_collecting_now() }
    }

    fn measures_waits(&self) -> bool {
        true
    }

    #[inline]
    fn is_interpreter_lock(&self, lock: u64, caller: usize) -> bool {
        is_gil(&self.runtime, lock, caller)
    }

    #[inline]
    unsafe fn walk(&self, thread: &ThreadRecord, ucontext: *const ucontext_t, out: &mut FrameWriter<'_>) {
        // SAFETY: the caller's promise.
        if !ucontext.is_null() && unsafe { self.is_collecting(thread) } {
            out.push(COLLECTING);
        }
        // SAFETY: the caller's promise; who starts the profiler mapped the definitions and enabled safe loads.
        unsafe { self.walk_now(ucontext, out) };
    }

    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
        definitions::resolve(ids, self.layout.code.lines)
    }

    fn request_drain(&self) -> Drain {
        messages::tick();
        definitions::collect();
        Drain::Now
    }
}
