//! Numbers for strings, functions and stacks: looked up in memory first, then in their table, else added to it.

use ahash::HashMap;
use rusqlite::{Connection, params};

use super::rows::Function;

/// Bytes of an entry beside its text: the keys and numbers, and the room that maps keep free.
const ENTRY: usize = 80;

/// What is known without asking SQLite. It must be dropped when a transaction that added to it is not committed.
#[derive(Default)]
pub(super) struct Interned {
    strings: HashMap<Box<str>, i64>,
    functions: HashMap<(i64, i64), i64>,
    stacks: HashMap<(i64, i64, i64), i64>,
    bytes: usize,
    /// Beyond so many bytes it is dropped and filled anew from the tables.
    most: usize,
}

impl Interned {
    /// Forgets everything, as numbers may no longer be in the tables.
    pub(super) fn clear(&mut self) {
        *self = Self { most: self.most, ..Self::default() };
    }

    /// Bounds it from now on.
    pub(super) fn bound(&mut self, most: usize) {
        self.most = most;
    }

    /// Makes room for an entry. What is in the tables is found there again.
    fn grow(&mut self, bytes: usize) {
        if self.bytes + bytes + ENTRY > self.most {
            self.clear();
        }
        self.bytes += bytes + ENTRY;
    }

    /// The number of a string.
    pub(super) fn string(&mut self, connection: &Connection, text: &str) -> rusqlite::Result<i64> {
        if let Some(id) = self.strings.get(text) {
            return Ok(*id);
        }
        let id = find_or_add(
            connection,
            "SELECT id FROM strings WHERE text = ?1",
            "INSERT INTO strings (text) VALUES (?1)",
            params![text],
        )?;
        self.grow(text.len());
        self.strings.insert(text.into(), id);
        Ok(id)
    }

    /// The number of a function.
    pub(super) fn function(&mut self, connection: &Connection, function: &Function) -> rusqlite::Result<i64> {
        let key = (self.string(connection, &function.name)?, self.string(connection, &function.file)?);
        if let Some(id) = self.functions.get(&key) {
            return Ok(*id);
        }
        let id = find_or_add(
            connection,
            "SELECT id FROM functions WHERE name = ?1 AND file = ?2",
            "INSERT INTO functions (name, file) VALUES (?1, ?2)",
            params![key.0, key.1],
        )?;
        self.grow(0);
        self.functions.insert(key, id);
        Ok(id)
    }

    /// The number of the stack that is `line` of `function` on top of `parent`.
    pub(super) fn stack(
        &mut self,
        connection: &Connection,
        parent: i64,
        function: i64,
        line: i64,
    ) -> rusqlite::Result<i64> {
        let key = (parent, function, line);
        if let Some(id) = self.stacks.get(&key) {
            return Ok(*id);
        }
        let id = find_or_add(
            connection,
            "SELECT id FROM stacks WHERE parent = ?1 AND function = ?2 AND line = ?3",
            "INSERT INTO stacks (parent, function, line) VALUES (?1, ?2, ?3)",
            params![parent, function, line],
        )?;
        self.grow(0);
        self.stacks.insert(key, id);
        Ok(id)
    }
}

/// Both statements take the same parameters.
pub(super) fn find_or_add(
    connection: &Connection,
    find: &str,
    add: &str,
    values: &[&dyn rusqlite::ToSql],
) -> rusqlite::Result<i64> {
    let mut find = connection.prepare_cached(find)?;
    match find.query_row(values, |row| row.get(0)) {
        Err(rusqlite::Error::QueryReturnedNoRows) => {
            connection.prepare_cached(add)?.execute(values)?;
            Ok(connection.last_insert_rowid())
        }
        found => found,
    }
}
