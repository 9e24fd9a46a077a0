//! How the handler and callers wake the profiler's thread: a futex, since a handler may not signal a condvar.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::clock::timespec;

/// A flag that one thread sleeps on.
#[derive(Debug)]
pub(crate) struct Wake(AtomicU32);

impl Wake {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Wakes the sleeper, now or when it next sleeps. Async-signal-safe: one raw system call, none if it is awake.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.0.swap(1, Ordering::AcqRel) == 0 {
            // SAFETY: FUTEX_WAKE reads nothing but the address, which is a live AtomicU32.
            unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
        }
    }

    /// Sleeps until woken or for `timeout`.
    pub(crate) fn sleep(&self, timeout: Duration) {
        if self.0.load(Ordering::Acquire) == 0 {
            let time = timespec(timeout);
            let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: the address is a live AtomicU32 and `time` lives until the call returns.
            unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), operation, 0, &raw const time) };
        }
        // Acquire: whoever woke us did so after what we are to look at now.
        self.0.swap(0, Ordering::AcqRel);
    }
}
