//! Where profiles and spans are kept: SQLite, in memory or in a file. The only place with SQL.
//!
//! One connection writes. A file is read by connections of their own, each of which sees the last whole transaction, so
//! neither waits for the other; a store in memory has the one connection, and every statement on it takes milliseconds.
//! What calls this runs on threads that may wait. Rows go in by [`insert`], come out by [`samples`] and [`spans`], and
//! are forgotten by [`retention`].

mod chosen;
mod filter;
mod insert;
mod intern;
mod overview;
mod packed;
mod reading;
mod retention;
mod room;
mod rows;
mod samples;
mod schema;
mod series;
mod spans;
mod sums;
mod traced;
mod trie;
mod turns;

use std::fmt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed; // a number that orders nothing
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode};

pub(crate) use insert::Inserted;
pub(crate) use overview::KindSeen;
pub(crate) use retention::Forgotten;
pub(crate) use room::Room;
pub(crate) use rows::{Function, Kind, Mark, Part, Profile, Sample, Span, StackNode, Status};
pub(crate) use samples::{NameSum, Owner, StackFrame, Stacks};
pub(crate) use series::{SpanChoice, StoredSeries};
pub(crate) use spans::{Sampling, StoredSpan, TraceSort};

/// The journal beside a file is cut to this many bytes when it was written back.
const LONGEST_JOURNAL: i64 = 4 << 20;
/// Pages of a file that its writer keeps in memory; negative, as SQLite counts KiB so.
const WRITER_CACHE_KIB: i64 = -32_768;
/// Steps of SQLite's machine, some hundred microseconds of them, between two looks at the clock.
const STEPS_BETWEEN: i32 = 20_000;
/// The name of spans that samples name by id only and no trace was received of.
const UNNAMED: &str = "(unnamed span)";
/// Its number among the strings.
const UNNAMED_ID: i64 = 1;

/// The stored profiles and spans.
pub(crate) struct Store {
    /// Connections that only read; none for a store in memory. They are closed before the one that writes, which writes
    /// its journal back and removes it.
    readers: Option<reading::Readers>,
    inner: Mutex<Inner>,
    turns: Arc<turns::Turns>,
    trie: Mutex<trie::Trie>,
    inserted: insert::Counters,
    room: Arc<Room>,
    /// The bytes of its rows.
    used: AtomicU64,
}

struct Inner {
    connection: Connection,
    interned: intern::Interned,
    forgotten: Forgotten,
}

/// SQLite said no: a full disk, a broken file.
#[derive(Debug)]
pub(crate) struct StoreError(rusqlite::Error);

impl StoreError {
    /// Whether it was the time of the request that ended it.
    pub(crate) fn is_over(&self) -> bool {
        self.0.sqlite_error_code() == Some(ErrorCode::OperationInterrupted)
    }
}

/// What ends work whose time is over, as SQLite says it.
fn interrupted() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_INTERRUPT), None)
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_over() {
            return f.write_str("the request took too long and was ended");
        }
        write!(f, "the store failed: {}", self.0)
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self(error)
    }
}

impl Store {
    /// Opens the file, or a store in memory, which shares the room with others; the error is a sentence.
    pub(crate) fn open(file: Option<&Path>, room: &Arc<Room>) -> Result<Arc<Self>, String> {
        let named = |reason: String| match file {
            Some(file) => format!("cannot use --data {}: {reason}", file.display()),
            None => format!("cannot make a store in memory: {reason}"),
        };
        let store = Self::connect(file, room).and_then(|store| {
            store.measure(&store.lock()).map_err(|error| error.to_string())?;
            Ok(Arc::new(store))
        });
        let store = store.map_err(named)?;
        room.add(&store);
        Ok(store)
    }

    fn connect(file: Option<&Path>, room: &Arc<Room>) -> Result<Self, String> {
        let failed = |error: rusqlite::Error| error.to_string();
        let mut connection = match file {
            Some(file) => Connection::open(file),
            None => Connection::open_in_memory(),
        }
        .map_err(failed)?;
        schema::prepare(&connection)?;
        if file.is_some() {
            // A killed process loses at most what the system had not written yet, and the file opens.
            connection.pragma_update(None, "journal_mode", "wal").map_err(failed)?;
            connection.pragma_update(None, "synchronous", "normal").map_err(failed)?;
            connection.pragma_update(None, "journal_size_limit", LONGEST_JOURNAL).map_err(failed)?;
            connection.pragma_update(None, "cache_size", WRITER_CACHE_KIB).map_err(failed)?;
        }
        connection.pragma_update(None, "temp_store", "memory").map_err(failed)?;
        keep_plans(&connection).map_err(failed)?;
        let turns = Arc::<turns::Turns>::default();
        let of_connection = Arc::clone(&turns);
        heed(&mut connection, move || of_connection.is_over()).map_err(failed)?;
        connection.set_prepared_statement_cache_capacity(64);
        let inner = Inner { connection, interned: intern::Interned::default(), forgotten: Forgotten::default() };
        Ok(Self {
            inner: Mutex::new(inner),
            turns,
            readers: file.map(reading::Readers::new),
            trie: Mutex::default(),
            inserted: insert::Counters::default(),
            room: Arc::clone(room),
            used: AtomicU64::new(0),
        })
    }

    // A panic elsewhere cannot leave a transaction half done: dropping it rolls it back, and the numbers that it gave.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.turns.take(|| {
            self.inner.lock().unwrap_or_else(|poisoned| {
                self.inner.clear_poison();
                let mut inner = PoisonError::into_inner(poisoned);
                inner.interned.clear();
                inner
            })
        })
    }

    /// The room that it shares with others.
    pub(crate) fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// How much the stored rows take.
    pub(crate) fn bytes(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Says what it holds to whom it shares the room with.
    fn measure(&self, inner: &Inner) -> Result<(), StoreError> {
        self.used.store(retention::bytes(&inner.connection)?, Relaxed);
        Ok(())
    }
}

/// SQLite would else prepare a statement anew for each value that is compared where an index leaves out rows, as
/// `span != 0` does: half of what storing a span took.
fn keep_plans(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// A statement ends when `is_over`.
fn heed(connection: &mut Connection, is_over: impl FnMut() -> bool + Send + 'static) -> rusqlite::Result<()> {
    connection.progress_handler(STEPS_BETWEEN, Some(is_over))
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}
