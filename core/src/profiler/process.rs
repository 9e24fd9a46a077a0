//! The one profiler of this process: which one runs, whether any may start, and what a fork leaves behind.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::engine::Engine;
use crate::context::{span_names, span_slot, tags};
use crate::error::{Error, ErrorKind};
use crate::os::{background_thread, fork};
use crate::sample::{safe_load, threads, waits};

/// The profiler of this process.
pub(super) struct Current {
    /// The one that runs.
    pub(super) engine: Option<Arc<Engine>>,
    /// One is being started.
    starts: bool,
}

static CURRENT: Mutex<Current> = Mutex::new(Current { engine: None, starts: false });
/// Told when one has stopped, and when a start is over.
pub(super) static CHANGED: Condvar = Condvar::new();
/// No profiler starts any more.
static PROCESS_ENDS: AtomicBool = AtomicBool::new(false);
/// How long a start waits for a profiler that another thread is just stopping or starting.
pub(super) const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// The start of a profiler, of which there is one at a time. No lock is held meanwhile: a fork would wait for it, and a start waits for
/// whoever loads a library, as a thread does that begins.
pub(super) struct Start(());

impl Start {
    /// Waits, 5 s at most, for another thread that stops or starts one.
    ///
    /// # Errors
    /// The process ends, or a profiler runs, or this is a child that was made past `fork`.
    pub(super) fn begin() -> Result<Self, Error> {
        if fork::is_past_hooks() {
            let why = "this process was made by the system call itself, past fork() and its hooks, and there no profiler can start";
            return Err(Error::new(ErrorKind::System, why));
        }
        let mut current = lock_current();
        if PROCESS_ENDS.load(Ordering::Relaxed) {
            return Err(process_ends());
        }
        if fork::forked() {
            leave_behind(&mut current);
        }
        let is_changing = |current: &mut Current| {
            let stops = |engine: &Arc<Engine>| !engine.is_parents() && engine.control().stop;
            current.starts || current.engine.as_ref().is_some_and(stops)
        };
        let waited = CHANGED.wait_timeout_while(current, STOP_PATIENCE, is_changing);
        let mut current = waited.unwrap_or_else(PoisonError::into_inner).0;
        if PROCESS_ENDS.load(Ordering::Relaxed) {
            return Err(process_ends());
        }
        if current.engine.is_some() || current.starts {
            return Err(Error::new(ErrorKind::AlreadyRunning, "a profiler runs in this process already"));
        }
        current.starts = true;
        Ok(Self(()))
    }

    /// The profiler runs.
    ///
    /// # Errors
    /// The process ends; who ends it may have waited no longer, so the profiler is to be stopped.
    pub(super) fn end(self, engine: &Arc<Engine>) -> Result<(), Error> {
        lock_current().engine = Some(engine.clone());
        drop(self);
        if PROCESS_ENDS.load(Ordering::Relaxed) { Err(process_ends()) } else { Ok(()) }
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        lock_current().starts = false;
        CHANGED.notify_all();
    }
}

fn process_ends() -> Error {
    Error::new(ErrorKind::Disabled, "the process ends, so no profiler starts")
}

/// No profiler starts from here on. The one that runs, once a start that is under way is over, for which this waits `patience` at most.
pub(super) fn end_process(patience: Duration) -> Option<Arc<Engine>> {
    PROCESS_ENDS.store(true, Ordering::Relaxed);
    if fork::is_past_hooks() {
        return None;
    }
    let current = lock_current();
    if fork::forked() {
        return current.engine.clone();
    }
    let waited = CHANGED.wait_timeout_while(current, patience, |current| current.starts);
    waited.unwrap_or_else(PoisonError::into_inner).0.engine.clone()
}

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

fn leave_behind(current: &mut Current) {
    // Never dropped: its locks may be held by threads that do not exist here.
    let _ = std::mem::ManuallyDrop::new(current.engine.take());
    // Nor does the thread that started one.
    current.starts = false;
    background_thread::forget();
    threads::forget_all();
    waits::forget();
    safe_load::forget_others();
    // Of the parent's names nothing is left, and a span that was sampled there has to be defined here again.
    drop(span_names::rotate_generations());
    fork::clear();
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

pub(super) fn lock_current() -> MutexGuard<'static, Current> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}
