//! What the handler knows of garbage collections.

use std::sync::atomic::AtomicU32;

/// Counts collections, see [`marking`](crate::symbols::marking).
pub(crate) static GC_COUNT: AtomicU32 = AtomicU32::new(0);

/// Whether one is under way, on whichever thread.
#[inline]
pub(super) fn is_collecting() -> bool {
    // SAFETY: takes nothing and reads a flag.
    unsafe { rb_sys::rb_during_gc() != 0 }
}
