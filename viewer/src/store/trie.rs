//! What the numbers of stacks and functions mean, remembered from the tables: a graph of thousands of stacks goes
//! through ten times as many nodes, and SQLite is asked for each only once.

use std::collections::hash_map::Entry;

use rusqlite::{Connection, params};

use super::rows::Function;
use super::samples::Stacks;

/// About 20 MB, which the stores of all tenants share; beyond it the memory is dropped and filled anew.
pub(super) const MOST: usize = 200_000;

/// A node: parent, function, line.
type Node = (i64, i64, i64);

/// Nodes and functions that were asked for. Numbers are never given twice, so nothing in here turns wrong.
#[derive(Default)]
pub(super) struct Trie {
    nodes: ahash::HashMap<i64, Node>,
    functions: ahash::HashMap<i64, Function>,
}

impl Trie {
    /// Fills in the nodes from the stacks down to the root, and the functions in them.
    pub(super) fn resolve(&mut self, connection: &Connection, found: &mut Stacks, most: usize) -> rusqlite::Result<()> {
        if self.nodes.len().max(self.functions.len()) > most {
            *self = Self::default();
        }
        for &(stack, ..) in &found.sums {
            let mut at = stack;
            while at != 0
                && let Entry::Vacant(free) = found.nodes.entry(at)
            {
                let node = *free.insert(self.node(connection, at)?);
                if let Entry::Vacant(free) = found.functions.entry(node.1) {
                    free.insert(self.function(connection, node.1)?.clone());
                }
                at = node.0;
            }
        }
        Ok(())
    }

    /// The function that a stack ends in.
    pub(super) fn leaf(&mut self, connection: &Connection, stack: i64) -> rusqlite::Result<i64> {
        Ok(if stack == 0 { 0 } else { self.node(connection, stack)?.1 })
    }

    /// A function by its number.
    pub(super) fn function(&mut self, connection: &Connection, id: i64) -> rusqlite::Result<&Function> {
        Ok(match self.functions.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => free.insert(
                connection
                    .prepare_cached(
                        "SELECT names.text, files.text FROM functions
                         JOIN strings AS names ON names.id = functions.name JOIN strings AS files ON files.id = functions.file
                         WHERE functions.id = ?1",
                    )?
                    .query_row(params![id], |row| Ok(Function { name: row.get(0)?, file: row.get(1)? }))?,
            ),
        })
    }

    fn node(&mut self, connection: &Connection, id: i64) -> rusqlite::Result<Node> {
        Ok(match self.nodes.entry(id) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(free) => *free.insert(
                connection
                    .prepare_cached("SELECT parent, function, line FROM stacks WHERE id = ?1")?
                    .query_row(params![id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?,
            ),
        })
    }
}
