//! Return addresses that CoreCLR put in place of a method's own, so that a thread stops for a collection where it comes back: they lead to a
//! function of the runtime's, and the thread's own object keeps the right one until it is there.

use std::sync::atomic::{AtomicU64, Ordering};

/// Where that function begins; 0: not known.
static TRAP: AtomicU64 = AtomicU64::new(0);

/// Notes where the function is.
pub(crate) fn set(address: u64) {
    TRAP.store(address, Ordering::Relaxed);
}

/// Whether a return address leads there: who called is not on the stack. Async-signal-safe.
#[inline]
pub(crate) fn is_trap(return_address: u64) -> bool {
    return_address == TRAP.load(Ordering::Relaxed)
}
