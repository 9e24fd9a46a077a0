//! Numbers for strings, functions and stacks: looked up in memory first, then in their table, else added to it.

use ahash::HashMap;
use rusqlite::{Connection, params};

use super::rows::Function;

/// Bytes of an entry beside its text: the keys and numbers, and the room that maps keep free.
const ENTRY: usize = 80;

/// Numbers, 64 of which take the place of one where they stand close together.
#[derive(Debug, Default)]
pub(super) struct Numbers(HashMap<i64, u64>);

impl Numbers {
    pub(super) fn add(&mut self, number: i64) {
        *self.0.entry(number >> 6).or_default() |= 1 << (number & 63);
    }

    pub(super) fn has(&self, number: i64) -> bool {
        self.0.get(&(number >> 6)).is_some_and(|bits| bits >> (number & 63) & 1 != 0)
    }
}

/// Names that are in use.
#[derive(Debug, Default)]
pub(super) struct Noted {
    pub(super) strings: Numbers,
    pub(super) functions: Numbers,
    pub(super) stacks: Numbers,
}

/// What is known without asking SQLite. It must be dropped when a transaction that added to it is not committed.
#[derive(Default)]
pub(super) struct Interned {
    strings: HashMap<Box<str>, i64>,
    functions: HashMap<(i64, i64), i64>,
    stacks: HashMap<(i64, i64, i64), i64>,
    bytes: usize,
    /// Beyond so many bytes it is dropped and filled anew from the tables.
    most: usize,
    /// What was asked for since names began to be forgotten; none where they are not.
    noted: Option<Noted>,
    /// How often names began to be forgotten.
    sweeps: u64,
}

impl Interned {
    /// Forgets everything, as numbers may no longer be in the tables.
    pub(super) fn clear(&mut self) {
        *self = Self { most: self.most, noted: self.noted.take(), sweeps: self.sweeps, ..Self::default() };
    }

    /// Takes note of each name that is asked for or referred to from now on.
    pub(super) fn take_note(&mut self) {
        // Who finds a number here is not seen to ask for it.
        self.clear();
        self.noted = Some(Noted::default());
        self.sweeps += 1;
    }

    /// How often it began to take note. A number that was given since the last time stays until the next one.
    pub(super) fn sweeps(&self) -> u64 {
        self.sweeps
    }

    /// Takes no note any more.
    pub(super) fn take_no_note(&mut self) {
        self.noted = None;
    }

    /// What it took note of.
    pub(super) fn noted(&mut self) -> &mut Noted {
        self.noted.get_or_insert_default()
    }

    /// What is referred to by a number that comes from another row.
    pub(super) fn refer(&mut self, string: i64, stacks: impl Iterator<Item = i64>) {
        if let Some(noted) = &mut self.noted {
            noted.strings.add(string);
            stacks.for_each(|stack| noted.stacks.add(stack));
        }
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
        self.noted.iter_mut().for_each(|noted| noted.strings.add(id));
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
        self.noted.iter_mut().for_each(|noted| noted.functions.add(id));
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
        self.noted.iter_mut().for_each(|noted| noted.stacks.add(id));
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
