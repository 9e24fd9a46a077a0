//! The .NET runtime as the sampler sees it: who does what the engine asks for. What it calls in the signal handler is
//! [`record::context`] and [`stack`](crate::stack).

use libc::ucontext_t;
use spanprof_core::{Context, Drain, Frame, FrameId, FrameWriter, Repair, Runtime, SampleSignal, ThreadRecord};

use crate::span::record;
use crate::stack::unwind;
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

    fn repair(&self, frames: &mut Vec<FrameId>, extra: &[u64]) -> Repair {
        repair::repair(frames, extra)
    }

    fn resolve(&self, ids: &[FrameId]) -> Vec<Option<Frame>> {
        resolver::resolve(ids)
    }

    fn request_drain(&self) -> Drain {
        refresh::tick();
        Drain::Now
    }
}
