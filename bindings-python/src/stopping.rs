//! The profiler that is being stopped, for as long as that takes: whoever asks meanwhile asks this one.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spanprof_core::{Profiler, host};

/// What a thread is just stopping, for those who ask meanwhile. Locked with the GIL held and for no more than a clone, so that
/// no fork finds it locked.
static STOPPING: Mutex<Option<Arc<Stop>>> = Mutex::new(None);

/// A stop that is under way, and whether all was delivered, once it is over. Locked without the GIL.
#[derive(Debug)]
pub(crate) struct Stop {
    pub(crate) profiler: Profiler,
    all: Mutex<Option<bool>>,
    over: Condvar,
}

impl Stop {
    /// The stop of `profiler`, which has yet to be stopped.
    pub(crate) fn of(profiler: Profiler) -> Self {
        Self { profiler, all: Mutex::new(None), over: Condvar::new() }
    }

    fn all(&self) -> MutexGuard<'_, Option<bool>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn end(&self, timeout: Duration) -> bool {
        let all = self.profiler.stop(timeout);
        *self.all() = Some(all);
        self.over.notify_all();
        all
    }

    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let all = self.over.wait_timeout_while(self.all(), timeout, |all| all.is_none());
        all.unwrap_or_else(PoisonError::into_inner).0.unwrap_or(false)
    }
}

pub(crate) fn stopping() -> MutexGuard<'static, Option<Arc<Stop>>> {
    STOPPING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The profiler that runs, else the one that is just being stopped.
pub(crate) fn running_or_stopping() -> Option<Profiler> {
    if spanprof_core::forked() {
        return None;
    }
    host::running().or_else(|| stopping().as_ref().map(|stop| stop.profiler.clone()))
}
