//! Connections to SQLite: how they are set, how they fail, and what only SQLite itself knows of its pages.

use std::fmt;
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode};

use super::schema;

/// The journal beside a file is cut to this many bytes when it was written back.
const LONGEST_JOURNAL: i64 = 4 << 20;
/// Pages of a file that its writer keeps in memory; negative, as SQLite counts KiB so.
const WRITER_CACHE_KIB: i64 = -32_768;
/// Steps of SQLite's machine, some hundred microseconds of them, between two looks at the clock.
const STEPS_BETWEEN: i32 = 20_000;

/// SQLite said no: a full disk, a broken file.
#[derive(Debug)]
pub(crate) struct StoreError(pub(super) rusqlite::Error);

impl StoreError {
    /// What ends work outside of SQLite whose time is over.
    pub(crate) fn over() -> Self {
        Self(interrupted())
    }

    /// Whether it was the time of the request that ended it.
    pub(crate) fn is_over(&self) -> bool {
        self.0.sqlite_error_code() == Some(ErrorCode::OperationInterrupted)
    }

    /// Whether it was about more than is looked at.
    pub(crate) fn is_too_large(&self) -> bool {
        self.0.sqlite_error_code() == Some(ErrorCode::TooBig)
    }
}

/// What ends a question about more spans of traces than are looked for.
pub(super) fn too_many_spans(most: usize) -> rusqlite::Error {
    let sentence = format!("the selection has more than {most} spans of traces; choose a span");
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_TOOBIG), Some(sentence))
}

/// What ends work whose time is over, as SQLite says it.
pub(super) fn interrupted() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_INTERRUPT), None)
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_over() {
            return f.write_str("the request took too long and was ended");
        }
        if self.is_too_large() {
            return self.0.fmt(f);
        }
        write!(f, "the store failed: {}", self.0)
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self(error)
    }
}

/// Opens the connection that writes to the file, or one to a store in memory; a statement ends when `is_over`.
pub(super) fn open(file: Option<&Path>, is_over: impl FnMut() -> bool + Send + 'static) -> Result<Connection, String> {
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
    heed(&mut connection, is_over).map_err(failed)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// SQLite would else prepare a statement anew for each value that is compared where an index leaves out rows, as
/// `span != 0` does: half of what storing a span took.
pub(super) fn keep_plans(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// A statement ends when `is_over`.
pub(super) fn heed(
    connection: &mut Connection,
    is_over: impl FnMut() -> bool + Send + 'static,
) -> rusqlite::Result<()> {
    connection.progress_handler(STEPS_BETWEEN, Some(is_over))
}

/// Whether the disk had no place for it.
pub(super) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// Writes the journal of a file back and cuts it to nothing: on a full disk it holds the place that forgetting needs.
pub(super) fn make_place(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

/// The bytes of all pages in use.
pub(super) fn bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let used = pragma("page_count")?.saturating_sub(pragma("freelist_count")?);
    Ok(used.saturating_mul(pragma("page_size")?).max(0).cast_unsigned())
}
