//! Whether stacks may be read: faults come to `shim/guard.c`, and the interpreter has not ended. The handler reads two flags;
//! all else here is called outside of it, by a start and by the engine's thread.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::stack::collection::is_collecting;

/// Whether faults come to us: no stack is read without.
pub(super) static IS_GUARDED: AtomicBool = AtomicBool::new(false);
/// The interpreter is being taken down.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// Installs the guard.
pub(crate) fn install_guard() {
    unsafe extern "C" {
        fn pyroscope_install_guard();
    }
    // SAFETY: called with the GVL held, so by one thread at a time.
    unsafe { pyroscope_install_guard() };
    check_guard();
}

/// The interpreter ends: nothing of it is looked at any more.
pub(crate) fn end() {
    HAS_ENDED.store(true, Ordering::Relaxed);
    IS_GUARDED.store(false, Ordering::Relaxed);
}

/// Whether it has ended.
pub(crate) fn has_ended() -> bool {
    HAS_ENDED.load(Ordering::Relaxed)
}

/// Checks whether faults still come to us; from then on stacks are read only if they do. Returns that.
///
/// A collection that compacts has the handlers for itself meanwhile. That is no time to check, and stacks are not read then.
pub(crate) fn check_guard() -> bool {
    unsafe extern "C" {
        fn pyroscope_is_guarded() -> c_int;
    }
    // SAFETY: takes nothing and only asks the kernel.
    let is_ours = || unsafe { pyroscope_is_guarded() } != 0;
    let mut is_guarded = is_ours();
    // Twice, as a collection may end, or begin, between the two questions.
    for _ in 0..2 {
        if !is_guarded && is_collecting() {
            return IS_GUARDED.load(Ordering::Relaxed);
        }
        is_guarded = is_guarded || is_ours();
    }
    IS_GUARDED.store(is_guarded && !has_ended(), Ordering::Relaxed);
    is_guarded
}
