//! Ruby as the engine sees it. Each method hands on to where its work stands.

use std::ptr;
use std::sync::atomic::Ordering;

use spanprof_core::{
    Context, Drain, Frame, FrameId, FrameWriter, LockWait, Runtime, SampleSignal, State, ThreadRecord,
};

use crate::drain;
use crate::span::{record, saved};
use crate::stack::collection::GC_COUNT;
use crate::stack::unwind::Interpreter;
use crate::stack::{gvl, method};
use crate::symbols::{functions, resolver};

/// The one there is.
pub(crate) static RUBY: Interpreter = Interpreter;

// SAFETY: see the doc of `stack`: the listed calls, no allocation, no lock (a flag is tried), and what may be missing is read
// behind the guard.
unsafe impl Runtime for Interpreter {
    /// Puma has a use for SIGURG: with `fork_worker` its cluster forks all workers anew at each one, and traps it after it has
    /// loaded the application.
    fn signal(&self) -> SampleSignal {
        SampleSignal::RealTime
    }

    #[inline]
    unsafe fn context(&self, _thread: &ThreadRecord, _ucontext: *const libc::ucontext_t) -> Context {
        let Some(slot) = record::own() else { return Context::NONE };
        let context = slot.context();
        if !context.span.is_null() && self.is_between_fibers(slot.fiber()) {
            return Context { span: ptr::null(), ..context };
        }
        context
    }

    #[inline]
    unsafe fn defers(&self, _thread: &ThreadRecord) -> bool {
        self.cannot_be_walked()
    }

    #[inline]
    unsafe fn walk(&self, _thread: &ThreadRecord, ucontext: *const libc::ucontext_t, out: &mut FrameWriter<'_>) {
        // SAFETY: as the engine promises.
        unsafe { self.walk_interrupted(ucontext, out) };
    }

    fn measures_waits(&self) -> bool {
        true
    }

    #[inline]
    fn interpreter_lock_ns(&self, wait: &LockWait) -> u64 {
        gvl::waited_ns(wait, record::own().map_or(0, record::Slot::ready_ns))
    }

    fn interpreter_lock(&self) -> State {
        State::Gvl
    }

    fn interpreter_mutex(&self) -> *const () {
        gvl::mutex()
    }

    fn wait_state(&self, state: State, caller: usize) -> State {
        if self.is_walked_here() { method::state(state, caller) } else { state }
    }

    fn announces_threads(&self) -> bool {
        // Where native threads are shared, a new one goes on with what another one began.
        !saved::is_on()
    }

    fn epoch(&self) -> u32 {
        GC_COUNT.load(Ordering::Relaxed)
    }

    fn caches_frames(&self) -> bool {
        false
    }

    fn window_rotated(&self) {
        functions::window_rotated();
    }

    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
        resolver::resolve(ids)
    }

    fn request_drain(&self) -> Drain {
        drain::request();
        Drain::Requested
    }
}
