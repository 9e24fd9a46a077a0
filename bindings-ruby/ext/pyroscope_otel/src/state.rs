//! The one profiler of this process, and what the last one counted.

use std::sync::{Mutex, MutexGuard, PoisonError};

use spanprof_core::{Profiler, Stats};

/// What the last profiler had counted when it was stopped. Locked as `PROFILER` is.
static LAST: Mutex<Option<Stats>> = Mutex::new(None);
/// The profiler that runs. Locked with the GVL held and for no more than a clone, so that no fork finds it locked.
static PROFILER: Mutex<Option<Profiler>> = Mutex::new(None);

/// The profiler, of this process or of its parent. With the GVL held.
pub(crate) fn current() -> MutexGuard<'static, Option<Profiler>> {
    PROFILER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the last one counted. With the GVL held.
pub(crate) fn last() -> MutexGuard<'static, Option<Stats>> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The profiler that runs. With the GVL held. The parent's does not run in a forked child.
pub(crate) fn running() -> Option<Profiler> {
    if spanprof_core::forked() { None } else { current().clone() }
}

/// Whether one runs.
pub(crate) fn is_running() -> bool {
    running().is_some()
}
