//! The .NET runtime as the sampler sees it.
//!
//! **Functions called in the handler:** none.

use libc::ucontext_t;
use spanprof_core::{Context, Frame, FrameWriter, Runtime, ThreadRecord};

use crate::block;

/// CoreCLR.
#[derive(Debug)]
pub(crate) struct CoreClr;

// SAFETY: see the module's doc.
unsafe impl Runtime for CoreClr {
    fn needs_safe_load(&self) -> bool {
        true
    }
    fn ring_bytes(&self) -> usize {
        64 * 1024
    }

    #[inline]
    unsafe fn context(&self, _thread: &ThreadRecord, _ucontext: *const ucontext_t) -> Context {
        block::context()
    }

    #[inline]
    unsafe fn walk(&self, _thread: &ThreadRecord, ucontext: *const ucontext_t, out: &mut FrameWriter<'_>) {
        // SAFETY: the handler's own argument.
        unsafe { spanprof_core::walk_frame_pointers(ucontext, out) };
    }

    fn resolve(&self, words: &[u64]) -> Vec<Option<Frame>> {
        words.iter().map(|word| Some(Frame { function: format!("{word:#x}").into(), ..Frame::default() })).collect()
    }
}
