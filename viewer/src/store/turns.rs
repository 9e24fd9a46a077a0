//! Who is next at the connection that writes: small requests, which are done in milliseconds, before all others. What is at
//! work there and takes long gives it up for them, and begins anew.

use std::sync::atomic::Ordering::Relaxed; // what they guard is behind a lock
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Inner, Store, StoreError};
use crate::work::{self, Haste};

/// How long a request that is not urgent may be at the connection while urgent ones wait.
const TURN: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 800 });
/// How long it waits for urgent ones, so that many of them cannot keep it out for ever.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it may begin.
const TRIES: usize = 3;

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
    pub(super) fn take<T>(&self, lock: impl FnOnce() -> T) -> T {
        let haste = work::haste();
        if haste == Some(Haste::Urgent) {
            self.urgent.fetch_add(1, Relaxed);
        } else {
            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.none_waits.wait_timeout_while(waiting, PATIENCE, |()| self.urgent.load(Relaxed) > 0));
        }
        let locked = lock();
        // What must be done whoever waits, such as forgetting, is done in steps that are short.
        *self.until() = (haste == Some(Haste::Patient)).then(|| Instant::now() + TURN);
        self.is_given_up.store(false, Relaxed);
        if haste == Some(Haste::Urgent) && self.urgent.fetch_sub(1, Relaxed) == 1 {
            // Whoever looked before has begun to wait by now.
            drop(self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            self.none_waits.notify_all();
        }
        locked
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

    fn until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    /// Does `work` at the connection that writes, and anew where it was given up for urgent requests.
    pub(super) fn at_connection<T>(
        &self,
        mut work: impl FnMut(&mut Inner) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        for _ in 1..TRIES {
            let mut inner = self.lock();
            let done = work(&mut inner);
            if done.is_ok() || !self.turns.is_given_up.load(Relaxed) || work::is_over() {
                return done;
            }
        }
        work(&mut self.lock())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::super::{Room, interrupted};
    use super::*;
    use crate::work::Gone;

    #[test]
    fn what_takes_long_is_given_up_for_urgent_requests_and_begun_anew() {
        let store = Store::open(None, &Room::new(u64::MAX)).unwrap();
        let hour = Duration::from_secs(3_600);
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let store = &store;
            let long = move || {
                let mut tries = 0;
                store.at_connection(|inner| {
                    tries += 1;
                    if tries == 2 {
                        return Ok(tries);
                    }
                    tell.send(()).unwrap();
                    // Until SQLite says that it must end.
                    let endless =
                        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n";
                    let ended = inner.connection.query_row(endless, [], |row| row.get::<_, i64>(0));
                    assert_eq!(ended.unwrap_err().sqlite_error_code(), interrupted().sqlite_error_code());
                    Err(interrupted().into())
                })
            };
            let long = scope.spawn(move || work::within(hour, Haste::Patient, Gone::default(), long).unwrap());
            told.recv().unwrap();
            let services = work::within(hour, Haste::Urgent, Gone::default(), || store.is_empty());
            assert!(services.unwrap());
            assert_eq!(long.join().unwrap(), 2);
        });
    }
}
