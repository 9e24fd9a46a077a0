//! The .NET runtime as the sampler sees it: who does what the engine asks for. What it calls in the signal handler, and
//! when a wait is over, is [`record::context`] and [`stack`](crate::stack).

use libc::ucontext_t;
use spanprof_core::{
    Context, Drain, Frame, FrameId, FrameWriter, LockWait, Repair, Runtime, SampleSignal, SpanTimes, State,
    ThreadRecord, WaitFrame,
};

use crate::span::{record, times};
use crate::stack::{unwind, wait_calls};
use crate::symbols::{refresh, repair, resolver};

/// CoreCLR.
#[derive(Debug)]
pub(crate) struct CoreClr;

// SAFETY: no calls, the block that static TLS names, static tables, and loads that are checked: see `stack::unwind`.
unsafe impl Runtime for CoreClr {
    /// Sixty frames and the words for repair are a kilobyte.
    fn ring_bytes(&self) -> usize {
        64 * 1024
    }

    /// CoreCLR makes exceptions of SIGSEGV and masks only this signal of its own meanwhile: another one may come on an
    /// alternate stack that it is about to leave, and end the process.
    fn signal(&self) -> SampleSignal {
        SampleSignal::Shared(libc::SIGRTMIN())
    }

    #[inline]
    unsafe fn context(&self, _thread: &ThreadRecord, _ucontext: *const ucontext_t) -> Context {
        record::context()
    }

    #[inline]
    unsafe fn walk(&self, _thread: &ThreadRecord, ucontext: *const ucontext_t, out: &mut FrameWriter<'_>) {
        // SAFETY: null or the handler's own argument.
        unsafe { unwind::walk(ucontext, out) }
    }

    fn measures_waits(&self) -> bool {
        true
    }

    /// CoreCLR's own begin with a page that is protected, and say nothing of it.
    fn signal_stack_guard(&self) -> usize {
        4_096
    }

    /// There is no such lock; this is where a wait is seen that tells how locks are waited for.
    #[inline]
    fn interpreter_lock_ns(&self, wait: &LockWait) -> u64 {
        if wait.mutex != 0 {
            // SAFETY: called within the wait's call.
            wait_calls::note(wait.took_ns, unsafe { wait.frame.registers() });
        }
        0
    }

    #[inline]
    unsafe fn walk_caller(&self, _thread: &ThreadRecord, frame: WaitFrame, out: &mut FrameWriter<'_>) {
        // SAFETY: called within the wait's call.
        if let Some(registers) = unsafe { frame.registers() } {
            unwind::walk_caller(registers, out);
        }
    }

    #[inline]
    fn own_wait(&self, times: &SpanTimes, (state, ns): (State, u64), frame: WaitFrame) -> (State, u64) {
        let ns = times::own(times, ns);
        // SAFETY: called within the wait's call.
        let is_sleep = ns > 0 && state == State::Lock && wait_calls::is_sleep(unsafe { frame.registers() });
        (if is_sleep { State::Sleep } else { state }, ns)
    }

    fn repair(&self, frames: &mut Vec<FrameId>, extra: &[u64], state: &mut State) -> Repair {
        repair::repair(frames, extra, state)
    }

    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
        resolver::resolve(ids)
    }

    fn request_drain(&self) -> Drain {
        refresh::tick();
        Drain::Now
    }
}
