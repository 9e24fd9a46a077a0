//! The one profiler of this process: which one runs, whether any may start, and what a fork leaves behind.

use std::any::Any;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::engine::Engine;
use crate::context::{span_names, span_slot, tags};
use crate::os::{background_thread, fork};
use crate::sample::{safe_load, threads, waits};

/// The one that runs.
static CURRENT: Mutex<Option<Arc<Engine>>> = Mutex::new(None);
/// Told when it has stopped.
pub(super) static STOPPED: Condvar = Condvar::new();
/// No profiler starts any more.
pub(super) static PROCESS_ENDS: AtomicBool = AtomicBool::new(false);
/// How long a start waits for a profiler that another thread is just stopping.
pub(super) const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// In the child after a fork where no profiler is to run: leaves the parent's behind, if there was one, so that
/// [`forked`](crate::forked) is false again. [`Profiler::start`](crate::Profiler::start) does so itself.
pub fn leave_parent_behind() {
    if fork::forked() {
        let mut current = lock_current();
        // Another thread may have done so meanwhile, and started one.
        if fork::forked() {
            leave_behind(&mut current);
        }
    }
}

pub(super) fn leave_behind(current: &mut Option<Arc<Engine>>) {
    // Never dropped: its locks may be held by threads that do not exist here.
    let _ = std::mem::ManuallyDrop::new(current.take());
    background_thread::forget();
    threads::forget_all();
    waits::forget();
    safe_load::forget_others();
    // Of the parent's names nothing is left, and a span that was sampled there has to be defined here again.
    drop(span_names::rotate_generations());
    fork::clear();
}

/// Waits, 5 s at most, until a profiler that another thread stops has stopped.
pub(super) fn wait_for_stopping(
    current: MutexGuard<'static, Option<Arc<Engine>>>,
) -> MutexGuard<'static, Option<Arc<Engine>>> {
    let is_stopping = |current: &mut Option<Arc<Engine>>| {
        current.as_ref().is_some_and(|engine| !engine.is_parents() && engine.control().stop)
    };
    STOPPED.wait_timeout_while(current, STOP_PATIENCE, is_stopping).unwrap_or_else(PoisonError::into_inner).0
}

/// All static locks of the engine in the order in which they are taken within each other.
pub(super) fn lock_all() -> Vec<Box<dyn Any>> {
    vec![
        Box::new(lock_current()),
        Box::new(threads::lock()),
        Box::new(span_slot::lock()),
        Box::new(tags::lock()),
        Box::new(span_names::lock()),
        Box::new(background_thread::lock()),
        Box::new(waits::lock()),
    ]
}

pub(super) fn lock_current() -> MutexGuard<'static, Option<Arc<Engine>>> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}
