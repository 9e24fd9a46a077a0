//! What the numbers of stacks and functions mean, remembered from the tables: a graph of thousands of stacks goes
//! through ten times as many nodes, and SQLite is asked for each only once.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::rows::Function;

/// Bytes of an entry beside its text: the keys and numbers, and the room that maps keep free.
const ENTRY: usize = 96;

/// A node: parent, function, line.
pub(super) type Node = (i64, i64, i64);

/// Nodes and functions that were asked for. Numbers are never given twice, so nothing in here turns wrong.
#[derive(Default)]
pub(super) struct Trie {
    nodes: ahash::HashMap<i64, Node>,
    functions: ahash::HashMap<i64, Function>,
    strings: ahash::HashMap<i64, Arc<str>>,
    bytes: usize,
    /// Beyond so many bytes it is dropped and filled anew.
    most: usize,
}

impl Trie {
    /// Bounds it from now on.
    pub(super) fn bound(&mut self, most: usize) {
        self.most = most;
    }

    /// The function that a stack ends in; 0 of the empty stack and of one that was forgotten meanwhile.
    pub(super) fn leaf(&mut self, connection: &Connection, stack: i64) -> rusqlite::Result<i64> {
        Ok(if stack == 0 { 0 } else { self.node(connection, stack)?.map_or(0, |node| node.1) })
    }

    /// A function by its number, if it was not forgotten meanwhile.
    pub(super) fn function(&mut self, connection: &Connection, id: i64) -> rusqlite::Result<Option<Function>> {
        if let Some(known) = self.functions.get(&id) {
            return Ok(Some(known.clone()));
        }
        let mut find = connection.prepare_cached("SELECT name, file FROM functions WHERE id = ?1")?;
        let found: Option<(i64, i64)> = find.query_row(params![id], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        let Some((name, file)) = found else { return Ok(None) };
        let (Some(name), Some(file)) = (self.string(connection, name)?, self.string(connection, file)?) else {
            return Ok(None);
        };
        let function = Function { name, file };
        self.grow(0);
        self.functions.insert(id, function.clone());
        Ok(Some(function))
    }

    /// A node by its number, if it was not forgotten meanwhile.
    pub(super) fn node(&mut self, connection: &Connection, id: i64) -> rusqlite::Result<Option<Node>> {
        if let Some(known) = self.nodes.get(&id) {
            return Ok(Some(*known));
        }
        let mut find = connection.prepare_cached("SELECT parent, function, line FROM stacks WHERE id = ?1")?;
        let found = find.query_row(params![id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()?;
        if let Some(node) = found {
            self.grow(0);
            self.nodes.insert(id, node);
        }
        Ok(found)
    }

    /// A string by its number, kept once however many functions have it.
    fn string(&mut self, connection: &Connection, id: i64) -> rusqlite::Result<Option<Arc<str>>> {
        if let Some(known) = self.strings.get(&id) {
            return Ok(Some(Arc::clone(known)));
        }
        let mut find = connection.prepare_cached("SELECT text FROM strings WHERE id = ?1")?;
        let found: Option<Arc<str>> =
            find.query_row(params![id], |row| Ok(row.get_ref(0)?.as_str()?.into())).optional()?;
        if let Some(text) = &found {
            self.grow(text.len());
            self.strings.insert(id, Arc::clone(text));
        }
        Ok(found)
    }

    fn grow(&mut self, bytes: usize) {
        if self.bytes + bytes + ENTRY > self.most {
            *self = Self { most: self.most, ..Self::default() };
        }
        self.bytes += bytes + ENTRY;
    }
}
