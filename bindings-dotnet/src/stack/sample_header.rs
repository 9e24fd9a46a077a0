//! What the walk leaves for the profiler's thread beside frames: how many methods were reported, which frame is the first managed
//! one, and that an address was met that is not known to be code.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Methods that were reported so far.
static METHOD_COUNT: AtomicU32 = AtomicU32::new(0);
/// The handler met an address that is not known to be code.
static UNKNOWN: AtomicBool = AtomicBool::new(false);

/// In the place of a frame: no frame is managed.
pub(crate) const NO_FRAME: u64 = u32::MAX as u64;

/// How many methods were reported so far, for a sample that is taken now. Async-signal-safe.
#[inline]
pub(crate) fn method_count() -> u32 {
    // Relaxed: who runs a method was handed its code, after it was counted.
    METHOD_COUNT.load(Ordering::Relaxed)
}

/// The number of a method that is reported now; the first is 1.
pub(crate) fn next_number() -> u32 {
    METHOD_COUNT.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
}

/// The first extra word of a sample: which frame is the first managed one, and how many methods were reported when it was taken.
/// Async-signal-safe.
#[inline]
pub(crate) fn header(first: Option<usize>, method_count: u32) -> u64 {
    u64::from(method_count) << 32 | first.map_or(NO_FRAME, |first| first as u64)
}

/// The handler met an address that is not known to be code. Async-signal-safe.
#[inline]
pub(crate) fn note_unknown_code() {
    UNKNOWN.store(true, Ordering::Relaxed);
}

/// Whether it did since this was asked for last.
pub(crate) fn take_unknown_code() -> bool {
    UNKNOWN.swap(false, Ordering::Relaxed)
}
