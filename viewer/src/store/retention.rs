//! Forgetting: by age, then by size, oldest first, counted.

use std::collections::HashSet;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::connection::{StoreError, is_full, make_place};
use super::counts::Why;
use super::database::{Inner, Store};
use super::schema::UNNAMED_ID;
use super::storage_limits::Member;
use super::{rollup, stack_blob};

/// Each step towards the ceiling drops one part in this many of what is stored.
const STEP: i64 = 10;

/// Spans that one transaction drops. Until its end a store in memory keeps every page that changed twice, and spans of
/// one time lie scattered over all pages.
const SPANS_AT_ONCE: usize = 500;
/// And sums.
const SUMS_AT_ONCE: usize = 200;

impl Store {
    /// Forgets what is older than `oldest`, then what all stores together have no room for.
    pub(crate) fn retain(&self, oldest: i64) -> Result<(), StoreError> {
        let alone = self.limits.forgets();
        self.forget(rollup::round_down(oldest), Why::Age)?;
        drop(alone);
        self.limits.enforce()
    }

    /// Drops what is older than `oldest`, the first moment of a sum. False if there is nothing.
    fn forget(&self, oldest: i64, why: Why) -> Result<bool, StoreError> {
        match self.forget_before(oldest, why) {
            Err(error) if is_full(&error.0) => {
                make_place(&self.lock().connection)?;
                self.forget_before(oldest, why)
            }
            done => done,
        }
    }

    /// In steps, between which the store is free for others.
    fn forget_before(&self, oldest: i64, why: Why) -> Result<bool, StoreError> {
        let (mut profiles, mut spans) = (0, 0);
        loop {
            let mut inner = self.lock();
            let gone = forget_spans(&inner.connection, oldest)?;
            inner.forgotten.add(why, 0, gone);
            spans += gone;
            if gone < SPANS_AT_ONCE {
                break;
            }
        }
        // First, so that what a kill leaves behind is profiles, which the next time finds.
        self.forget_sums(oldest)?;
        loop {
            let mut inner = self.lock();
            if !forget_profile(&mut inner.connection, oldest)? {
                break;
            }
            inner.forgotten.add(why, 1, 0);
            profiles += 1;
        }
        if profiles + spans == 0 {
            return Ok(false);
        }
        // Those of profiles that came meanwhile and went at once.
        self.forget_sums(oldest)?;
        let mut inner = self.lock();
        forget_names(&mut inner, profiles > 0)?;
        self.measure(&inner)?;
        Ok(true)
    }

    fn forget_sums(&self, oldest: i64) -> Result<(), StoreError> {
        loop {
            let inner = self.lock();
            let mut delete = inner.connection.prepare_cached(&format!(
                "DELETE FROM stack_sums WHERE (series, bucket, name) IN (
                     SELECT series, bucket, name FROM stack_sums WHERE bucket < ?1 LIMIT {SUMS_AT_ONCE})"
            ))?;
            if delete.execute(params![rollup::bucket(oldest)])? < SUMS_AT_ONCE {
                return Ok(());
            }
        }
    }
}

impl Member for Store {
    fn used(&self) -> u64 {
        self.bytes()
    }

    /// Drops what is older than the oldest tenth of the profiles and of the spans. False if there is nothing.
    fn forget_a_step(&self) -> Result<bool, StoreError> {
        let cut = |table: &str, time: &str| {
            let sql = format!(
                "SELECT {time} FROM {table} ORDER BY {time} LIMIT 1 OFFSET (SELECT count(*) / {STEP} FROM {table})"
            );
            self.lock().connection.query_row(&sql, [], |row| row.get::<_, i64>(0)).optional()
        };
        let cuts = [cut("profiles", "time")?, cut("spans", "start + duration")?];
        match cuts.into_iter().flatten().min() {
            // The sum after the one that it is in, so that at least one profile or span goes.
            Some(oldest) => self.forget(rollup::next(oldest), Why::Size),
            None => Ok(false),
        }
    }
}

/// Drops names that nothing refers to any more.
fn forget_names(inner: &mut Inner, of_profiles: bool) -> rusqlite::Result<()> {
    let transaction = inner.connection.transaction()?;
    if of_profiles {
        transaction.execute("DELETE FROM series WHERE id NOT IN (SELECT series FROM parts)", [])?;
        forget_stacks(&transaction)?;
        transaction.execute("DELETE FROM functions WHERE id NOT IN (SELECT function FROM stacks)", [])?;
    }
    transaction.execute(
        "DELETE FROM strings WHERE id != ?1 AND id NOT IN (
             SELECT name FROM functions UNION SELECT file FROM functions
             UNION SELECT service FROM series UNION SELECT span_name FROM series
             UNION SELECT service FROM profiles UNION SELECT name FROM stack_sums
             UNION SELECT service FROM spans UNION SELECT name FROM spans)",
        params![UNNAMED_ID],
    )?;
    transaction.commit()?;
    inner.interned.clear();
    Ok(())
}

/// Drops a profile that started before `oldest`, for the same reason in a transaction of its own. False if there is none.
fn forget_profile(connection: &mut Connection, oldest: i64) -> rusqlite::Result<bool> {
    let transaction = connection.transaction()?;
    let next: Option<i64> = transaction
        .prepare_cached("SELECT id FROM profiles WHERE time < ?1 ORDER BY time LIMIT 1")?
        .query_row(params![oldest], |row| row.get(0))
        .optional()?;
    let Some(profile) = next else {
        return Ok(false);
    };
    for sql in [
        "DELETE FROM span_sums WHERE part IN (SELECT id FROM parts WHERE profile = ?1)",
        "DELETE FROM parts WHERE profile = ?1",
        "DELETE FROM profile_traces WHERE profile = ?1",
        "DELETE FROM profiles WHERE id = ?1",
    ] {
        transaction.prepare_cached(sql)?.execute(params![profile])?;
    }
    transaction.commit()?;
    Ok(true)
}

/// Drops some of the spans that ended before `oldest`.
fn forget_spans(connection: &Connection, oldest: i64) -> rusqlite::Result<usize> {
    let mut delete = connection.prepare_cached(&format!(
        "DELETE FROM spans WHERE id IN (
             SELECT id FROM spans WHERE start + duration < ?1 ORDER BY start + duration LIMIT {SPANS_AT_ONCE})"
    ))?;
    delete.execute(params![oldest])
}

/// Drops what no sample's stack goes through.
fn forget_stacks(connection: &Connection) -> rusqlite::Result<()> {
    let mut used = HashSet::new();
    let mut statement = connection.prepare_cached("SELECT stacks FROM stack_sums")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let stacks = row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
        stack_blob::unpack(stacks, |(stack, ..)| {
            used.insert(stack);
        })?;
    }
    let mut unused = Vec::new();
    // What was called comes before its caller.
    let mut statement = connection.prepare_cached("SELECT id, parent FROM stacks ORDER BY id DESC")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (id, parent): (i64, i64) = (row.get(0)?, row.get(1)?);
        if used.contains(&id) {
            used.insert(parent);
        } else {
            unused.push(id);
        }
    }
    let mut delete = connection.prepare_cached("DELETE FROM stacks WHERE id = ?1")?;
    unused.into_iter().try_for_each(|id| delete.execute(params![id]).map(drop))
}

#[cfg(test)]
mod tests {
    use super::super::counts::Forgotten;
    use super::super::rows::Profile;
    use super::super::storage_limits::StorageLimits;
    use super::*;
    use crate::clock::SECOND;
    use crate::ids::SpanId;
    use crate::selection::Selection;

    fn profile(time: i64, function: &str) -> Profile {
        let mut profile = Profile { time, ..Profile::of(function) };
        let part = &mut profile.parts[0];
        part.span_name = Some(format!("name of {function}").into());
        part.labels = format!("{{\"l\":\"{function}\"}}").into();
        part.samples[0].span = SpanId::parse("00000000000000aa");
        profile
    }

    fn functions(store: &Store) -> Vec<String> {
        let mut names: Vec<_> = store
            .stacks(&Selection::of_span(SpanId::parse("00000000000000aa").unwrap()))
            .unwrap()
            .functions
            .into_values()
            .map(|f| f.name.to_string())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_old_goes_with_all_that_only_it_used() {
        let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
        store.insert_profile(&profile(100 * SECOND, "old")).unwrap();
        store.insert_profile(&profile(200 * SECOND, "new")).unwrap();
        assert_eq!(functions(&store), ["new", "old"]);
        store.retain(150 * SECOND).unwrap();
        assert_eq!(functions(&store), ["new"]);
        assert_eq!(store.forgotten(), Forgotten { profiles_by_age: 1, ..Forgotten::default() });
        let inner = store.lock();
        for (table, left) in [
            ("strings", 5),
            ("functions", 1),
            ("stacks", 1),
            ("series", 1),
            ("parts", 1),
            ("span_sums", 1),
            ("stack_sums", 1),
        ] {
            let rows: i64 =
                inner.connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap();
            assert_eq!(rows, left, "{table}");
        }
        drop(inner);
        // What was interned before is interned anew.
        store.insert_profile(&profile(300 * SECOND, "old")).unwrap();
        assert_eq!(functions(&store), ["new", "old"]);
    }

    fn fill(store: &Store, numbers: std::ops::Range<i64>) {
        for n in numbers {
            store.insert_profile(&profile(n * SECOND, &format!("function number {n}"))).unwrap();
        }
    }

    #[test]
    fn the_oldest_goes_when_there_is_no_room() {
        let all = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
        fill(&all, 0..2_000);
        let half = all.bytes() / 2;
        let store = Store::open(None, &StorageLimits::new(half)).unwrap();
        for n in 0..3_000 {
            fill(&store, n..n + 1);
            assert!(store.bytes() <= half);
        }
        let left = functions(&store);
        assert!(left.contains(&"function number 2999".into()) && !left.contains(&"function number 0".into()));
        assert_eq!(store.forgotten().profiles_by_size, 3_000 - left.len());
    }

    #[test]
    fn room_that_two_share_is_taken_from_the_larger() {
        let all = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
        fill(&all, 0..2_000);
        let limits = StorageLimits::new(all.bytes());
        let [large, small] = [0, 1].map(|_| Store::open(None, &limits).unwrap());
        fill(&large, 0..1_500);
        fill(&small, 0..400);
        assert_eq!(small.forgotten(), Forgotten::default());
        assert!(large.forgotten().profiles_by_size > 0 && limits.used() <= limits.most());
        drop(large);
        fill(&small, 400..1_000);
        assert_eq!(small.forgotten(), Forgotten::default(), "what is closed takes no room");
    }
}
