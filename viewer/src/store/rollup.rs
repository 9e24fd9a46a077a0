//! Sums of samples over all spans of a name: by series and ten seconds of time, with their stacks. A whole service, or
//! all spans of a name, are read from here; only the ends of a time range are read from the samples themselves.

use std::mem;

use ahash::HashMap;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::stack_blob::{self, Entry};
use crate::clock::SECOND;

/// How long a sum is.
const BUCKET: i64 = 10 * SECOND;

/// The sum that a time belongs to.
pub(super) fn bucket(time: i64) -> i64 {
    time.div_euclid(BUCKET)
}

/// The first moment of the sum that a time belongs to.
pub(super) fn round_down(time: i64) -> i64 {
    bucket(time).saturating_mul(BUCKET)
}

/// The first moment of the sum after the one that a time belongs to.
pub(super) fn next(time: i64) -> i64 {
    (bucket(time) + 1).saturating_mul(BUCKET)
}

/// A time range as whole sums, and what is left of it at its ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Split {
    /// The first and the last sum.
    pub(super) buckets: Option<(i64, i64)>,
    /// First and last nanosecond.
    pub(super) ends: Vec<(i64, i64)>,
}

/// Splits a time range of first and last nanosecond.
pub(super) fn split((from, to): (i64, i64)) -> Split {
    let first = bucket(from) + i64::from(from.rem_euclid(BUCKET) != 0);
    let last = if to == i64::MAX { bucket(to) } else { bucket(to + 1) - 1 };
    if first > last {
        return Split { buckets: None, ends: vec![(from, to)] };
    }
    let starts = first.saturating_mul(BUCKET);
    let mut ends = Vec::new();
    if from < starts && from != i64::MIN {
        ends.push((from, starts - 1));
    }
    if to != i64::MAX && to >= (last + 1) * BUCKET {
        ends.push(((last + 1) * BUCKET, to));
    }
    Split { buckets: Some((first, last)), ends }
}

/// Stacks that changes hold before they are written: some megabytes of them.
const MOST_ENTRIES: usize = 100_000;

/// What is to be added to sums, by series, sum and span name; taken away where it is negative.
#[derive(Default)]
pub(super) struct Changes(HashMap<(i64, i64, i64), Vec<Entry>>);

impl Changes {
    /// Adds stacks of a series at a time to the sum of a span name.
    pub(super) fn add(&mut self, series: i64, time: i64, name: i64) -> &mut Vec<Entry> {
        self.0.entry((series, bucket(time), name)).or_default()
    }

    /// Writes all changes where they have become many.
    pub(super) fn write_if_many(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        if self.0.values().map(Vec::len).sum::<usize>() > MOST_ENTRIES {
            mem::take(self).write(connection)?;
        }
        Ok(())
    }

    /// Writes all changes.
    pub(super) fn write(self, connection: &Connection) -> rusqlite::Result<()> {
        let mut find = connection
            .prepare_cached("SELECT stacks FROM stack_sums WHERE series = ?1 AND bucket = ?2 AND name = ?3")?;
        let mut drop =
            connection.prepare_cached("DELETE FROM stack_sums WHERE series = ?1 AND bucket = ?2 AND name = ?3")?;
        let mut put = connection.prepare_cached(
            "INSERT INTO stack_sums (series, bucket, name, value, count, stacks) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT DO UPDATE SET value = excluded.value, count = excluded.count, stacks = excluded.stacks",
        )?;
        for ((series, bucket, name), mut entries) in self.0 {
            let stored: Option<Vec<u8>> = find.query_row(params![series, bucket, name], |row| row.get(0)).optional()?;
            if let Some(stored) = stored {
                stack_blob::unpack(&stored, |entry| entries.push(entry))?;
            }
            stack_blob::merge(&mut entries);
            if entries.is_empty() {
                drop.execute(params![series, bucket, name])?;
            } else {
                let (value, count) = stack_blob::sum(&entries);
                put.execute(params![series, bucket, name, value, count, stack_blob::pack(&entries)])?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_whole_sums_and_its_ends() {
        let split_of = |from: i64, to: i64| {
            let split = split((from, to));
            (split.buckets, split.ends)
        };
        assert_eq!(split_of(i64::MIN, i64::MAX).1, []);
        assert_eq!(split_of(20 * SECOND, 40 * SECOND - 1), (Some((2, 3)), vec![]));
        assert_eq!(
            split_of(15 * SECOND, 41 * SECOND),
            (Some((2, 3)), vec![(15 * SECOND, 20 * SECOND - 1), (40 * SECOND, 41 * SECOND)])
        );
        assert_eq!(split_of(11 * SECOND, 12 * SECOND), (None, vec![(11 * SECOND, 12 * SECOND)]));
        assert_eq!(split_of(11 * SECOND, i64::MAX).1, [(11 * SECOND, 20 * SECOND - 1)]);
    }

    #[test]
    fn changes_are_written_when_they_have_become_many() {
        let connection = Connection::open_in_memory().unwrap();
        super::super::schema::prepare(&connection).unwrap();
        let mut changes = Changes::default();
        for round in 1..=2 {
            changes.add(1, 0, 1).extend((0..MOST_ENTRIES / 2 + 1).map(|stack| (stack.try_into().unwrap(), 1, 1)));
            changes.write_if_many(&connection).unwrap();
            assert_eq!(changes.0.is_empty(), round == 2);
        }
        let (value, entries): (i64, Vec<u8>) = connection
            .query_row("SELECT value, stacks FROM stack_sums", [], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap();
        let mut stacks = 0;
        stack_blob::unpack(&entries, |_| stacks += 1).unwrap();
        assert_eq!((usize::try_from(value).unwrap(), stacks), (2 * (MOST_ENTRIES / 2 + 1), MOST_ENTRIES / 2 + 1));
    }
}
