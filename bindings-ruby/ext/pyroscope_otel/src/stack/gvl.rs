//! Which waits are for the GVL: those for a condition with the mutex of Ruby's scheduler.
//!
//! Where that mutex lies is learnt: a thread of ours that comes back to take the GVL, and must wait, waits for nothing else. Before
//! Ruby 3.3 that is all. From then on a thread that sleeps until another wakes it waits for the same condition, and from the wake-up
//! on for the GVL: [`ready`](crate::events::ready) notes when that was.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use spanprof_core::LockWait;

use crate::stack::collection::own_thread;

/// The mutex; null: not known yet.
static MUTEX: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
/// The thread of ours that comes back for the GVL, as libc numbers it; 0: none does.
static COMES_BACK: AtomicUsize = AtomicUsize::new(0);
/// That thread waits outside the GVL, from which it will come back.
static IS_AWAY: AtomicBool = AtomicBool::new(false);

/// The mutex of the GVL, null if it is not known.
pub(crate) fn mutex() -> *const () {
    MUTEX.load(Ordering::Relaxed)
}

/// Whether it still is to be learnt.
pub(crate) fn is_unknown() -> bool {
    mutex().is_null()
}

/// The calling thread has let the GVL go, and takes it back after [`come_back`].
pub(crate) fn leave() {
    IS_AWAY.store(true, Ordering::Release);
}

/// The calling thread takes the GVL back next, and waits for nothing else.
pub(crate) fn come_back() {
    if is_unknown() {
        COMES_BACK.store(own_thread(), Ordering::Relaxed);
    }
    IS_AWAY.store(false, Ordering::Release);
}

/// The calling thread has the GVL.
pub(crate) fn is_back() {
    if COMES_BACK.load(Ordering::Relaxed) == own_thread() {
        COMES_BACK.store(0, Ordering::Relaxed);
    }
}

/// In a forked child, where that thread is not.
pub(crate) fn forget() {
    COMES_BACK.store(0, Ordering::Relaxed);
    IS_AWAY.store(false, Ordering::Relaxed);
}

/// Whether a thread of ours waits outside the GVL.
pub(crate) fn is_away() -> bool {
    // Pairs with the stores above.
    IS_AWAY.load(Ordering::Acquire)
}

/// How much of a wait, at its end, was for the GVL. For who waited, within the call; `ready_ns`: when it was woken by another thread
/// last, 0 if all of such a wait is for the GVL.
pub(crate) fn waited_ns(wait: &LockWait, ready_ns: u64) -> u64 {
    if wait.mutex == 0 {
        return 0;
    }
    if is_unknown() && wait.lock != wait.mutex as u64 && COMES_BACK.load(Ordering::Relaxed) == own_thread() {
        MUTEX.store(ptr::without_provenance_mut(wait.mutex), Ordering::Relaxed);
    }
    // A thread that was not woken meanwhile came for the GVL by itself.
    if mutex().addr() == wait.mutex { wait.ended_ns.saturating_sub(ready_ns).min(wait.took_ns) } else { 0 }
}
