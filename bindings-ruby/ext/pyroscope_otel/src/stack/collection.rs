//! What the handler knows of garbage collections.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Counts collections, see [`marking`](crate::symbols::marking).
pub(crate) static GC_COUNT: AtomicU32 = AtomicU32::new(0);

/// The thread that is done with one, as libc numbers it, while it takes samples; 0: none does.
static ENDING: AtomicUsize = AtomicUsize::new(0);

/// Whether one is under way, on whichever thread.
#[inline]
pub(super) fn is_collecting() -> bool {
    // SAFETY: takes nothing and reads a flag.
    unsafe { rb_sys::rb_during_gc() != 0 }
}

/// Does `body` at the end of a collection of the calling thread, when Ruby still says that it is under way.
pub(crate) fn ending_here(body: impl FnOnce()) {
    ENDING.store(own_thread(), Ordering::Relaxed);
    body();
    ENDING.store(0, Ordering::Relaxed);
}

/// Whether the calling thread is where [`ending_here`] is.
#[inline]
pub(super) fn is_ending_here() -> bool {
    ENDING.load(Ordering::Relaxed) == own_thread()
}

/// The calling thread, as libc numbers it.
#[expect(clippy::cast_possible_truncation, reason = "an address")]
#[inline]
pub(super) fn own_thread() -> usize {
    // SAFETY: reads a register.
    unsafe { libc::pthread_self() as usize }
}
