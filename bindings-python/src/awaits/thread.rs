//! What a thread knows of the flows that it runs.

use std::cell::{Cell, UnsafeCell};
use std::ptr;

use spanprof_core::FrameId;

use crate::awaits::rate::Remaining;
use crate::span::flow;

/// A suspension, as the self-test is told of it.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) took_ns: u64,
    /// Leaf first.
    pub(crate) frames: Vec<FrameId>,
}

#[derive(Debug)]
pub(super) struct Thread {
    /// A step of a coroutine is under way.
    pub(super) inside: bool,
    /// Which flow this is, where spans look for it.
    flow: *const Cell<u64>,
    pub(super) remaining: Remaining,
    /// Where all suspensions go during the self-test, null otherwise.
    pub(super) seen: *mut Vec<Seen>,
}

thread_local! {
    static THREAD: UnsafeCell<Thread> = const {
        UnsafeCell::new(Thread { inside: false, flow: ptr::null(), remaining: Remaining::new(), seen: ptr::null_mut() })
    };
}

impl Thread {
    /// The calling thread's. It has no destructor, so it is there to the thread's end.
    #[inline(always)]
    pub(super) fn own() -> *mut Self {
        THREAD.with(UnsafeCell::get)
    }

    /// Where the number of the thread's flow is.
    #[inline(always)]
    pub(super) fn flow(&mut self) -> &Cell<u64> {
        if self.flow.is_null() {
            self.flow = flow::own();
        }
        // SAFETY: this thread's own, which has no destructor either.
        unsafe { &*self.flow }
    }
}
