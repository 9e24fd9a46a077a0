//! Where profiles and spans are kept: SQLite, in memory or in a file. The only place with SQL.
//!
//! One connection behind one lock: every statement here takes milliseconds, and what calls it runs on threads that
//! may wait. Rows go in by [`insert`], come out by [`samples`] and [`spans`], and are forgotten by [`retention`].

mod insert;
mod intern;
mod retention;
mod rows;
mod samples;
mod schema;
mod spans;

use std::fmt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;

pub(crate) use retention::Forgotten;
pub(crate) use rows::{Function, Kind, Part, Profile, Sample, Span, StackNode, Status};
pub(crate) use samples::{NameSum, Owner, Stacks};
pub(crate) use spans::{Sampling, StoredSpan, TraceSort};

/// The stored profiles and spans.
pub(crate) struct Store {
    inner: Mutex<Inner>,
}

struct Inner {
    connection: Connection,
    interned: intern::Interned,
    forgotten: Forgotten,
}

/// SQLite said no: a full disk, a broken file.
#[derive(Debug)]
pub(crate) struct StoreError(rusqlite::Error);

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store failed: {}", self.0)
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self(error)
    }
}

impl Store {
    /// Opens the file, or a store in memory; the error is a sentence.
    pub(crate) fn open(file: Option<&Path>) -> Result<Self, String> {
        let named = |reason: String| match file {
            Some(file) => format!("cannot use --data {}: {reason}", file.display()),
            None => format!("cannot make a store in memory: {reason}"),
        };
        Self::connect(file).map_err(named)
    }

    fn connect(file: Option<&Path>) -> Result<Self, String> {
        let failed = |error: rusqlite::Error| error.to_string();
        let connection = match file {
            Some(file) => Connection::open(file),
            None => Connection::open_in_memory(),
        }
        .map_err(failed)?;
        schema::prepare(&connection)?;
        if file.is_some() {
            // A killed process loses at most what the system had not written yet, and the file opens.
            connection.pragma_update(None, "journal_mode", "wal").map_err(failed)?;
            connection.pragma_update(None, "synchronous", "normal").map_err(failed)?;
        }
        connection.set_prepared_statement_cache_capacity(64);
        let inner = Inner { connection, interned: intern::Interned::default(), forgotten: Forgotten::default() };
        Ok(Self { inner: Mutex::new(inner) })
    }

    // A panic elsewhere cannot leave a transaction half done: dropping it rolls it back.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}
