//! The string table of one profile.
//!
//! Servers look labels up by the index of their name, so a table with the same string twice loses every span without
//! a word. That is why nothing else may add to it.

use std::collections::HashMap;

/// Strings by index. Entry 0 is "", as pprof demands.
#[derive(Debug)]
pub(super) struct Strings<'a> {
    table: Vec<String>,
    indices: HashMap<&'a str, i64>,
}

impl<'a> Strings<'a> {
    pub(super) fn new() -> Self {
        Self { table: vec![String::new()], indices: HashMap::from([("", 0)]) }
    }

    /// The index of `text`, which is added when it is new.
    pub(super) fn index(&mut self, text: &'a str) -> i64 {
        *self.indices.entry(text).or_insert_with(|| {
            self.table.push(text.to_owned());
            i64::try_from(self.table.len() - 1).unwrap_or(i64::MAX)
        })
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn into_table(self) -> Vec<String> {
        self.table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_in_the_table_once_and_the_empty_one_is_first() {
        let mut strings = Strings::new();
        let spoken_twice = format!("span{}", "_id");
        assert_eq!([strings.index("span_id"), strings.index(""), strings.index(&spoken_twice)], [1, 0, 1]);
        assert_eq!(strings.into_table(), ["", "span_id"]);
    }
}
