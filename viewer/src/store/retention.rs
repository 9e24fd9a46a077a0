//! Forgetting: by age, then by size, oldest first, counted.

use std::sync::atomic::Ordering::Relaxed; // a flag that orders nothing

use rusqlite::{Connection, OptionalExtension as _, params};

use super::connection::{StoreError, is_full, make_place};
use super::counts::Why;
use super::database::Store;
use super::rollup;
use super::storage_limits::Member;

/// Each step towards the ceiling drops one part in this many of what is stored.
const STEP: i64 = 10;

/// Spans that one transaction drops. Until its end a store in memory keeps every page that changed twice, and spans of
/// one time lie scattered over all pages.
const SPANS_AT_ONCE: usize = 500;
/// And sums.
const SUMS_AT_ONCE: usize = 200;

/// The oldest times that stay.
#[derive(Clone, Copy)]
struct Before {
    /// Of the ends of spans.
    spans: i64,
    /// Of the starts of profiles: the first moment of a sum.
    profiles: i64,
}

impl Before {
    fn both(time: i64) -> Self {
        Self { spans: time, profiles: time }
    }
}

impl Store {
    /// Forgets what is older than `oldest`, then what all stores together have no room for.
    pub(crate) fn retain(&self, oldest: i64) -> Result<(), StoreError> {
        let alone = self.limits.forgets();
        self.forget(Before::both(rollup::round_down(oldest)), Why::Age)?;
        drop(alone);
        self.limits.enforce()
    }

    /// Drops what is older. False if there is nothing.
    fn forget(&self, before: Before, why: Why) -> Result<bool, StoreError> {
        match self.forget_before(before, why, || {}) {
            Err(error) if is_full(&error.0) => {
                make_place(&self.lock().connection)?;
                self.forget_before(before, why, || {})
            }
            done => done,
        }
    }

    /// In steps, between which the store is free for others; `between` is called there.
    fn forget_before(&self, before: Before, why: Why, mut between: impl FnMut()) -> Result<bool, StoreError> {
        let (mut profiles, mut spans) = (0, 0);
        loop {
            let mut inner = self.lock();
            let gone = forget_spans(&inner.connection, before.spans)?;
            inner.forgotten.add(why, 0, gone);
            spans += gone;
            drop(inner);
            between();
            if gone < SPANS_AT_ONCE {
                break;
            }
        }
        // First, so that what a kill leaves behind is profiles, which the next time finds.
        while forget_sums(&self.lock().connection, before.profiles)? {
            between();
        }
        between();
        loop {
            let mut inner = self.lock();
            if forget_profile(&mut inner.connection, before.profiles)? {
                inner.forgotten.add(why, 1, 0);
                profiles += 1;
            } else if !forget_sums(&inner.connection, before.profiles)? {
                // Those were of profiles that came meanwhile and went at once. While there is a profile, it has its sums.
                break;
            }
            drop(inner);
            between();
        }
        if profiles + spans == 0 {
            return self.forget_left();
        }
        if profiles == 0 && self.forget_left()? {
            return Ok(true);
        }
        self.forget_names(profiles > 0)?;
        self.measure(&self.lock())?;
        Ok(true)
    }
}

impl Store {
    /// Drops names that uploads left which failed. False if none did since the last time.
    fn forget_left(&self) -> Result<bool, StoreError> {
        if !self.names_left.swap(false, Relaxed) {
            return Ok(false);
        }
        if let Err(error) = self.forget_names(true) {
            self.names_left.store(true, Relaxed);
            return Err(error);
        }
        self.measure(&self.lock())?;
        Ok(true)
    }
}

impl Member for Store {
    fn used(&self) -> u64 {
        self.bytes()
    }

    /// Drops names that failed uploads left, else what is older than the oldest tenth of the profiles and of the spans. False if there is nothing.
    fn forget_a_step(&self) -> Result<bool, StoreError> {
        // Nobody misses these.
        if self.forget_left()? {
            return Ok(true);
        }
        let cut = |table: &str, time: &str| {
            let sql = format!(
                "SELECT {time} FROM {table} ORDER BY {time} LIMIT 1 OFFSET (SELECT count(*) / {STEP} FROM {table})"
            );
            self.lock().connection.query_row(&sql, [], |row| row.get::<_, i64>(0)).optional()
        };
        let cuts = [cut("profiles", "time")?, cut("spans", "start + duration")?];
        match cuts.into_iter().flatten().min() {
            // At least one profile or span goes. Spans are in no sum, and many may end within one.
            Some(last) => {
                let before = Before { spans: last.saturating_add(1), profiles: rollup::next(last) };
                self.forget(before, Why::Size)
            }
            None => Ok(false),
        }
    }
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
        "DELETE FROM timed_samples WHERE part IN (SELECT id FROM parts WHERE profile = ?1)",
        "DELETE FROM parts WHERE profile = ?1",
        "DELETE FROM profile_traces WHERE profile = ?1",
        "DELETE FROM profiles WHERE id = ?1",
    ] {
        transaction.prepare_cached(sql)?.execute(params![profile])?;
    }
    transaction.commit()?;
    Ok(true)
}

/// Drops some of the sums that end before `oldest`. False if these were the last.
fn forget_sums(connection: &Connection, oldest: i64) -> rusqlite::Result<bool> {
    let mut delete = connection.prepare_cached(&format!(
        "DELETE FROM stack_sums WHERE (series, bucket, name) IN (
             SELECT series, bucket, name FROM stack_sums WHERE bucket < ?1 LIMIT {SUMS_AT_ONCE})"
    ))?;
    Ok(delete.execute(params![rollup::bucket(oldest)])? == SUMS_AT_ONCE)
}

/// Drops some of the spans that ended before `oldest`.
fn forget_spans(connection: &Connection, oldest: i64) -> rusqlite::Result<usize> {
    let mut delete = connection.prepare_cached(&format!(
        "DELETE FROM spans WHERE id IN (
             SELECT id FROM spans WHERE start + duration < ?1 ORDER BY start + duration LIMIT {SPANS_AT_ONCE})"
    ))?;
    delete.execute(params![oldest])
}

#[cfg(test)]
mod tests {
    use super::super::counts::Forgotten;
    use super::super::rows::{Profile, Span};
    use super::super::storage_limits::StorageLimits;
    use super::*;
    use crate::clock::SECOND;
    use crate::ids::{SpanId, TraceId};
    use crate::selection::Selection;
    use crate::span_status::Status;

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
    fn of_spans_that_end_within_one_sum_the_oldest_go() {
        let span = |number: u16| Span {
            trace: TraceId::from_bytes(&[1; 16]).unwrap(),
            span: SpanId::from_bytes(&(u64::from(number) + 1).to_be_bytes()).unwrap(),
            parent: None,
            service: "shop".into(),
            name: format!("{number}{}", "x".repeat(500)),
            start: SECOND + i64::from(number),
            duration: 1,
            status: Status::Unset,
            root: None,
            profiled: true,
            attributes: "{}".into(),
            place: None,
        };
        let all = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
        all.insert_spans(&(0..2_000).map(span).collect::<Vec<_>>()).unwrap();
        let store = Store::open(None, &StorageLimits::new(all.bytes() / 2)).unwrap();
        for number in 0..2_000 {
            store.insert_spans(&[span(number)]).unwrap();
        }
        let forgotten = store.forgotten().spans_by_size;
        assert!((900..1_500).contains(&forgotten), "{forgotten}");
        let there = |number| store.span(span(number).span).unwrap().is_some();
        assert!(there(1_999) && !there(0));
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

    #[test]
    fn a_profile_that_comes_while_the_old_goes_has_its_sums_or_goes_too() {
        let values = |store: &Store| {
            let value = |table: &str| -> i64 {
                let sql = format!("SELECT coalesce(sum(value), 0) FROM {table}");
                store.lock().connection.query_row(&sql, [], |row| row.get(0)).unwrap()
            };
            ["span_sums", "stack_sums"].map(value)
        };
        let steps = std::cell::Cell::new(0);
        for at in 0..20 {
            let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
            fill(&store, 10..15);
            fill(&store, 200..201);
            steps.set(0);
            let come = || {
                steps.set(steps.get() + 1);
                if steps.get() == at {
                    fill(&store, 20..21);
                }
            };
            store.forget_before(Before::both(100 * SECOND), Why::Age, come).unwrap();
            let [samples, sums] = values(&store);
            assert!(samples == sums && samples >= 10, "step {at}: {samples} of samples, {sums} of sums");
        }
        assert!(steps.get() > 5, "{}", steps.get());
    }
}
