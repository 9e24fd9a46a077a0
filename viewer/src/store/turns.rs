//! Who is next at the connection that writes: small requests, which are done in milliseconds, before all others. What is at
//! work there and takes long gives it up for them, and begins anew.

use std::sync::atomic::Ordering::Relaxed; // what they guard is behind a lock
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::work::{self, Haste};

/// How long a request that is not urgent may be at the connection while urgent ones wait.
const TURN: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 800 });
/// The same for the last turn of a question, so that it ends also where they never stop: as long as a push may wait. What is sent stays
/// until it is done: it would be sent again for an hour, and never be taken.
const LAST_TURN: Duration = Duration::from_millis(if cfg!(test) { 60_000 } else { 1_500 });
/// The same for an urgent one: whatever came in few bytes may turn out to be much to do, and is not urgent then.
const URGENT_TURN: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 300 });
/// How long it waits for urgent ones, so that many of them cannot keep it out for ever.
const PATIENCE: Duration = Duration::from_secs(1);
/// The turns at one connection.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Urgent requests that wait.
    urgent: AtomicUsize,
    waiting: Mutex<()>,
    none_waits: Condvar,
    /// When who is at the connection has to give it up where urgent ones wait; none if it need not.
    until: Mutex<Option<Instant>>,
    /// Whether it did.
    is_given_up: AtomicBool,
}

impl Turns {
    /// Locks when it is this thread's turn.
    pub(super) fn take<T>(&self, lock: impl Fn() -> T) -> T {
        let haste = work::haste();
        let locked = if haste == Some(Haste::Urgent) {
            self.urgent.fetch_add(1, Relaxed);
            lock()
        } else {
            self.take_after_urgent(lock)
        };
        // What must be done whoever waits, such as forgetting, is done in steps that are short.
        *self.until() = haste.map(|haste| Instant::now() + if haste == Haste::Urgent { URGENT_TURN } else { TURN });
        self.is_given_up.store(false, Relaxed);
        if haste == Some(Haste::Urgent) && self.urgent.fetch_sub(1, Relaxed) == 1 {
            // Whoever looked before has begun to wait by now.
            drop(self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            self.none_waits.notify_all();
        }
        locked
    }

    /// Locks when no urgent one waits, or after some patience.
    fn take_after_urgent<T>(&self, lock: impl Fn() -> T) -> T {
        let start = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(start.elapsed());
            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.none_waits.wait_timeout_while(waiting, left, |()| self.urgent.load(Relaxed) > 0));
            let locked = lock();
            // Urgent ones may have come while this one stood at the lock, which lets anyone in first.
            if self.urgent.load(Relaxed) == 0 || start.elapsed() >= PATIENCE {
                return locked;
            }
            drop(locked);
        }
    }

    /// Who is at the connection gave it up before, and has more time until it has to.
    pub(super) fn last(&self) {
        *self.until() = Some(Instant::now() + LAST_TURN);
    }

    /// Who is at the connection need not give it up any more.
    pub(super) fn stay(&self) {
        *self.until() = None;
    }

    /// Whether what is done at the connection must end: its time is over, nobody waits for it, or others do.
    pub(super) fn is_over(&self) -> bool {
        let gives_up = self.urgent.load(Relaxed) > 0 && self.until().is_some_and(|until| Instant::now() >= until);
        if gives_up {
            self.is_given_up.store(true, Relaxed);
        }
        gives_up || work::is_over()
    }

    /// Whether who was at the connection last gave it up.
    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Relaxed)
    }

    fn until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
