//! Which flow the thread runs: the coroutine that its loop called, by number.

use std::cell::Cell;

thread_local! {
    /// 0 outside of coroutines, and while nobody looks at them.
    static FLOW: Cell<u64> = const { Cell::new(0) };
}

/// The calling thread's. It is written where coroutines go on and are suspended (`awaits`).
#[inline]
pub(crate) fn own() -> *const Cell<u64> {
    FLOW.with(std::ptr::from_ref)
}

/// The number of the calling thread's flow.
#[inline]
pub(crate) fn current() -> u64 {
    FLOW.with(Cell::get)
}
