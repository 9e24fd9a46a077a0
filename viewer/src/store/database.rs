//! A store: the connections to its rows, whose turn it is at them, and what is remembered of them.

use std::fmt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed; // a number that orders nothing
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;

use super::connection::{self, StoreError};
use super::counts::{Counters, Forgotten, Inserted};
use super::intern::Interned;
use super::readers::Readers;
use super::storage_limits::StorageLimits;
use super::trie::Trie;
use super::turns::Turns;
use crate::work::{self, Haste};

/// How often work may begin at the connection that writes.
const TRIES: usize = 3;

/// The stored profiles and spans.
pub(crate) struct Store {
    /// Connections that only read; none for a store in memory. They are closed before the one that writes, which writes
    /// its journal back and removes it.
    readers: Option<Readers>,
    inner: Mutex<Inner>,
    pub(super) turns: Arc<Turns>,
    trie: Mutex<Trie>,
    pub(super) inserted: Counters,
    pub(super) limits: Arc<StorageLimits>,
    /// The bytes of its rows.
    used: AtomicU64,
    /// Whether names may be there that nothing referred to yet when their upload failed, or the process before this one ended.
    pub(super) names_left: AtomicBool,
}

/// What only one thread at a time may use.
pub(super) struct Inner {
    pub(super) connection: Connection,
    pub(super) interned: Interned,
    pub(super) forgotten: Forgotten,
}

impl Store {
    /// Opens the file, or a store in memory, which shares the limits with others; the error is a sentence.
    pub(crate) fn open(file: Option<&Path>, limits: &Arc<StorageLimits>) -> Result<Arc<Self>, String> {
        let named = |reason: String| match file {
            Some(file) => format!("cannot use --data {}: {reason}", file.display()),
            None => format!("cannot make a store in memory: {reason}"),
        };
        let store = Self::connect(file, limits).and_then(|store| {
            store.measure(&store.lock()).map_err(|error| error.to_string())?;
            Ok(Arc::new(store))
        });
        let store = store.map_err(named)?;
        let member = Arc::downgrade(&store);
        limits.add(member);
        Ok(store)
    }

    fn connect(file: Option<&Path>, limits: &Arc<StorageLimits>) -> Result<Self, String> {
        let turns = Arc::<Turns>::default();
        let of_connection = Arc::clone(&turns);
        let connection = connection::open(file, move || of_connection.is_over())?;
        let inner = Inner { connection, interned: Interned::default(), forgotten: Forgotten::default() };
        Ok(Self {
            inner: Mutex::new(inner),
            turns,
            readers: file.map(Readers::new),
            trie: Mutex::default(),
            inserted: Counters::default(),
            limits: Arc::clone(limits),
            used: AtomicU64::new(0),
            names_left: AtomicBool::new(file.is_some()),
        })
    }

    // A panic elsewhere cannot leave a transaction half done: dropping it rolls it back, and the numbers that it gave.
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.turns.take(|| {
            self.inner.lock().unwrap_or_else(|poisoned| {
                self.inner.clear_poison();
                let mut inner = PoisonError::into_inner(poisoned);
                inner.interned.clear();
                inner
            })
        })
    }

    /// The limits that it shares with others.
    pub(crate) fn limits(&self) -> &Arc<StorageLimits> {
        &self.limits
    }

    /// How much the stored rows take.
    pub(crate) fn bytes(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Says what it holds to whom it shares the limits with.
    pub(super) fn measure(&self, inner: &Inner) -> Result<(), StoreError> {
        self.used.store(connection::bytes(&inner.connection)?, Relaxed);
        Ok(())
    }

    /// Reads rows. All statements of `ask` see the same ones.
    pub(super) fn read<T>(&self, mut ask: impl FnMut(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        let Some(readers) = &self.readers else {
            // Who asks gives way to who sends, and asks again.
            return self.in_turns(Turns::last, |inner| Ok(ask(&inner.connection)?));
        };
        Ok(readers.read(ask)?)
    }

    /// Ends a reading that must give way, or whose time is over: for loops that take long between two steps of SQLite.
    pub(super) fn go_on_reading(&self) -> rusqlite::Result<()> {
        // Readers of a file are in nobody's way.
        let is_over = if self.readers.is_some() { work::is_over() } else { self.turns.is_over() };
        if is_over { Err(connection::interrupted()) } else { Ok(()) }
    }

    /// Does `work` at the connection that writes, and anew where it was given up for urgent requests; in the end they wait.
    pub(super) fn at_connection<T>(
        &self,
        work: impl FnMut(&mut Inner) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.in_turns(Turns::stay, work)
    }

    /// The same, where `last` says what its last turn is.
    fn in_turns<T>(
        &self,
        last: impl FnOnce(&Turns),
        mut work: impl FnMut(&mut Inner) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        for _ in 1..TRIES {
            let mut inner = self.lock();
            let done = work(&mut inner);
            // An urgent one is begun anew among the others: here it would keep a place from those that take little.
            let is_urgent = work::haste() == Some(Haste::Urgent);
            if done.is_ok() || !self.turns.is_given_up() || work::is_over() || is_urgent {
                return done;
            }
        }
        let mut inner = self.lock();
        if work::haste().is_some() {
            last(&self.turns);
        }
        work(&mut inner)
    }

    /// What numbers of stacks mean.
    pub(super) fn trie(&self) -> MutexGuard<'_, Trie> {
        self.trie.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was added since the start.
    pub(crate) fn inserted(&self) -> Inserted {
        self.inserted.read()
    }

    /// What was forgotten since the start.
    pub(crate) fn forgotten(&self) -> Forgotten {
        self.lock().forgotten
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::super::connection::interrupted;
    use super::*;
    use crate::work::Gone;

    #[test]
    fn what_takes_long_is_given_up_for_urgent_requests_and_begun_anew() {
        let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
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

    #[test]
    fn what_takes_longer_than_a_turn_ends_also_where_urgent_requests_never_stop() {
        let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
        let (hour, is_done) = (Duration::from_secs(3_600), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let store = &store;
            let long = || {
                let mut tries = 0;
                store.at_connection(|_| {
                    tries += 1;
                    let start = Instant::now();
                    while start.elapsed() < Duration::from_millis(500) {
                        store.go_on_reading()?;
                    }
                    Ok(tries)
                })
            };
            let urgent = || {
                while !is_done.load(Relaxed) {
                    work::within(hour, Haste::Urgent, Gone::default(), || store.is_empty()).unwrap();
                }
            };
            scope.spawn(urgent);
            let done = work::within(hour, Haste::Patient, Gone::default(), long);
            is_done.store(true, Relaxed);
            assert!(done.unwrap() <= TRIES);
        });
    }

    #[test]
    fn what_was_urgent_and_takes_long_is_given_up_once_and_for_all() {
        let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
        let hour = Duration::from_secs(3_600);
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let store = &store;
            let long = move || {
                store.at_connection(|_| {
                    tell.send(()).unwrap();
                    while !store.turns.is_over() {
                        std::thread::yield_now();
                    }
                    Err::<(), _>(interrupted().into())
                })
            };
            let long = scope.spawn(move || work::within(hour, Haste::Urgent, Gone::default(), long));
            told.recv().unwrap();
            work::within(hour, Haste::Urgent, Gone::default(), || store.is_empty()).unwrap();
            assert!(long.join().unwrap().unwrap_err().is_over());
            assert!(told.recv().is_err(), "it was not begun again");
        });
    }
}
