//! Connections that read, so that whoever asks does not wait for whoever inserts.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::connection::{heed, keep_plans};
use crate::work;

/// Connections that are kept open; more are opened when more ask at once.
const MOST_KEPT: usize = 4;
/// How long a reader waits for a lock that only recovery and the last close take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connections to a file that nobody uses right now.
pub(super) struct Readers {
    file: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    /// Reads this file, which another connection made.
    pub(super) fn new(file: &Path) -> Self {
        Self { file: file.into(), idle: Mutex::default() }
    }

    /// Reads by one of them. All statements of `ask` see the same rows.
    pub(super) fn read<T>(&self, mut ask: impl FnMut(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        let connection = self.take()?;
        let answer = ask(&connection);
        self.give_back(connection);
        answer
    }

    fn take(&self) -> rusqlite::Result<Connection> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => {
                let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
                let mut connection = Connection::open_with_flags(&self.file, flags)?;
                connection.busy_timeout(PATIENCE)?;
                connection.pragma_update(None, "temp_store", "memory")?;
                keep_plans(&connection)?;
                heed(&mut connection, work::is_over)?;
                connection.set_prepared_statement_cache_capacity(64);
                connection
            }
        };
        // All statements of one reading see the same rows.
        connection.execute_batch("BEGIN")?;
        Ok(connection)
    }

    fn give_back(&self, connection: Connection) {
        // One that cannot end its transaction is closed instead.
        if connection.execute_batch("COMMIT").is_ok() {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < MOST_KEPT {
                idle.push(connection);
            }
        }
    }
}
