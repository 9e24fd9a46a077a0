//! The kernel's numbers of threads.

/// The kernel's id of the calling thread.
pub(crate) fn tid() -> i32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::gettid() }
}
