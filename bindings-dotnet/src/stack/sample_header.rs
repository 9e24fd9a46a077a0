//! What the walk leaves for the profiler's thread beside frames: how many methods were told, which frame is the first managed
//! one, and that an address was met that is not known to be code.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Methods that were told so far.
static TOLD: AtomicU32 = AtomicU32::new(0);
/// The handler met an address that is not known to be code.
static UNKNOWN: AtomicBool = AtomicBool::new(false);

/// In the place of a frame: no frame is managed.
pub(crate) const NO_FRAME: u64 = u32::MAX as u64;

/// How many methods were told so far, for a sample that is taken now. Async-signal-safe.
#[inline]
pub(crate) fn told() -> u32 {
    // Relaxed: who runs a method was handed its code, after its telling was counted.
    TOLD.load(Ordering::Relaxed)
}

/// The number of a method that is told now; the first is 1.
pub(crate) fn next_number() -> u32 {
    TOLD.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
}

/// The first extra word of a sample: which frame is the first managed one, and how many methods were told when it was taken.
/// Async-signal-safe.
#[inline]
pub(crate) fn header(first: Option<usize>, told: u32) -> u64 {
    u64::from(told) << 32 | first.map_or(NO_FRAME, |first| first as u64)
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
