//! What the walk leaves for the profiler's thread beside frames: how many methods were reported, which frame is the first managed one, and
//! that an address was met that is not known to be code. The words of the stack follow, and the names of libraries
//! ([`library_names`](super::library_names)).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Methods that were reported so far.
static METHOD_COUNT: AtomicU32 = AtomicU32::new(0);
/// The handler met an address that is not known to be code.
static UNKNOWN: AtomicBool = AtomicBool::new(false);

/// In the place of a frame: no frame is managed.
const NO_FRAME: u64 = INTERRUPTED - 1;
/// With a frame: the thread was interrupted there, in the middle of its instructions.
const INTERRUPTED: u64 = 1 << 15;
const FRAME_BITS: u32 = 16;
/// A frame that says that what called is not known.
pub(crate) const CUT: u64 = 1;

/// How many methods were reported so far, for a sample that is taken now. Async-signal-safe.
#[inline]
pub(crate) fn method_count() -> u32 {
    // Relaxed: who runs a method was handed its code, after those before its compilation were counted, and on the same thread itself.
    METHOD_COUNT.load(Ordering::Relaxed)
}

/// The number of a method that is reported now; the first is 1.
pub(crate) fn next_number() -> u32 {
    METHOD_COUNT.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
}

/// The frame of a stack from which on it is of managed code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstManaged {
    pub(crate) frame: usize,
    /// The thread was interrupted there, by our signal or by one whose handler is above, and is not within a call.
    pub(crate) is_interrupted: bool,
}

/// The first extra word of a sample: which frame is the first managed one, how many words of the stack follow, and how many methods were
/// reported when it was taken. Async-signal-safe.
#[inline]
pub(crate) fn header(first: Option<FirstManaged>, words: usize, method_count: u32) -> u64 {
    let first = first.map_or(NO_FRAME, |first| first.frame as u64 | if first.is_interrupted { INTERRUPTED } else { 0 });
    u64::from(method_count) << 32 | (words as u64) << FRAME_BITS | first
}

/// What a header says.
pub(crate) fn read(header: u64) -> (Option<FirstManaged>, usize, u32) {
    let frame = header & NO_FRAME;
    let first = FirstManaged { frame: frame as usize, is_interrupted: header & INTERRUPTED != 0 };
    let words = (header >> FRAME_BITS & 0xffff) as usize;
    ((frame != NO_FRAME).then_some(first), words, (header >> 32) as u32)
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
