//! Forgetting names: stacks, functions and strings that nothing refers to any more. In steps, between which the store is
//! free for others; what these refer to meanwhile stays, as [`Interned`](super::intern::Interned) takes note of it.

use rusqlite::{Connection, params};

use super::connection::StoreError;
use super::database::{Inner, Store};
use super::intern::Noted;
use super::schema::UNNAMED_ID;
use super::stack_blob;

/// Rows that one step looks at, stacks of sums that it does, and rows that it drops: until its end a store in memory keeps
/// every page that changed twice.
const ROWS: usize = if cfg!(test) { 3 } else { 5_000 };
const STACKS: usize = if cfg!(test) { 3 } else { 50_000 };
const DROPPED: usize = if cfg!(test) { 2 } else { 500 };

/// A row of `stack_sums`: series, bucket, name.
type SumKey = (i64, i64, i64);

impl Store {
    /// Drops names that nothing refers to any more. One thread does at a time.
    pub(super) fn forget_names(&self, of_profiles: bool) -> Result<(), StoreError> {
        self.sweep(of_profiles, || {})
    }

    /// The same; `between` is called between two steps.
    fn sweep(&self, of_profiles: bool, between: impl FnMut()) -> Result<(), StoreError> {
        self.lock().interned.take_note();
        let done = Sweep { store: self, used: Noted::default(), between }.run(of_profiles);
        self.lock().interned.take_no_note();
        done
    }
}

/// What is referred to, as far as it was looked at, and who looks.
struct Sweep<'s, B> {
    store: &'s Store,
    used: Noted,
    between: B,
}

impl<B: FnMut()> Sweep<'_, B> {
    fn run(mut self, of_profiles: bool) -> Result<(), StoreError> {
        if of_profiles {
            self.forget_series()?;
            self.forget_kinds()?;
            self.look_at_sums(true)?;
            self.forget_stacks()?;
            self.forget_functions()?;
        } else {
            self.look_at_sums(false)?;
            self.look_at("functions", "name, file")?;
        }
        self.look_at("series", "service, span_name")?;
        self.look_at("profiles", "service, service")?;
        self.look_at("spans", "service, name")?;
        self.forget_strings()
    }

    /// Repeats a step from where the last one came to, until there is nothing left to look at.
    fn in_steps<K>(
        &mut self,
        first: K,
        mut step: impl FnMut(&Connection, &Noted, &mut Noted, K) -> rusqlite::Result<Option<K>>,
    ) -> Result<(), StoreError> {
        let mut next = Some(first);
        while let Some(from) = next {
            let mut inner = self.store.lock();
            let Inner { connection, interned, .. } = &mut *inner;
            let transaction = connection.transaction()?;
            next = step(&transaction, interned.noted(), &mut self.used, from)?;
            transaction.commit()?;
            drop(inner);
            (self.between)();
        }
        Ok(())
    }

    /// Each step finds for itself which have no part.
    fn forget_series(&mut self) -> Result<(), StoreError> {
        self.in_steps(0_i64, |connection, _, _, from| {
            let sql = format!("SELECT max(id) FROM (SELECT id FROM series WHERE id > ?1 ORDER BY id LIMIT {DROPPED})");
            let to: Option<i64> = connection.prepare_cached(&sql)?.query_row(params![from], |row| row.get(0))?;
            let Some(to) = to else { return Ok(None) };
            let sql = "DELETE FROM series WHERE id > ?1 AND id <= ?2
                       AND NOT EXISTS (SELECT 1 FROM parts WHERE parts.series = series.id)";
            connection.prepare_cached(sql)?.execute(params![from, to])?;
            Ok(Some(to))
        })
    }

    /// The same of profile types, which have no series: who inserts asks for a type and refers to it in one transaction.
    fn forget_kinds(&mut self) -> Result<(), StoreError> {
        self.in_steps(0_i64, |connection, _, _, from| {
            let sql = format!("SELECT max(id) FROM (SELECT id FROM kinds WHERE id > ?1 ORDER BY id LIMIT {DROPPED})");
            let to: Option<i64> = connection.prepare_cached(&sql)?.query_row(params![from], |row| row.get(0))?;
            let Some(to) = to else { return Ok(None) };
            let sql = "DELETE FROM kinds WHERE id > ?1 AND id <= ?2
                       AND NOT EXISTS (SELECT 1 FROM series WHERE series.kind = kinds.id)";
            connection.prepare_cached(sql)?.execute(params![from, to])?;
            Ok(Some(to))
        })
    }

    /// Which names and, if asked for, stacks sums are of.
    fn look_at_sums(&mut self, of_stacks: bool) -> Result<(), StoreError> {
        let columns = if of_stacks { "series, bucket, name, stacks" } else { "series, bucket, name" };
        let sql = format!(
            "SELECT {columns} FROM stack_sums WHERE (series, bucket, name) > (?1, ?2, ?3) ORDER BY series, bucket, name
             LIMIT {ROWS}"
        );
        self.in_steps((i64::MIN, 0, 0), |connection, _, used, from: SumKey| {
            let mut statement = connection.prepare_cached(&sql)?;
            let mut rows = statement.query(params![from.0, from.1, from.2])?;
            let (mut last, mut stacks) = (None, 0);
            while stacks < STACKS
                && let Some(row) = rows.next()?
            {
                last = Some((row.get(0)?, row.get(1)?, row.get(2)?));
                used.strings.add(row.get(2)?);
                if of_stacks {
                    let blob = row.get_ref(3)?.as_blob().map_err(rusqlite::Error::from)?;
                    stack_blob::unpack(blob, |(stack, ..)| {
                        used.stacks.add(stack);
                        stacks += 1;
                    })?;
                }
            }
            Ok(last)
        })
    }

    /// Which strings the rows of a table refer to, by two columns.
    fn look_at(&mut self, table: &str, columns: &str) -> Result<(), StoreError> {
        let sql = format!("SELECT id, {columns} FROM {table} WHERE id > ?1 ORDER BY id LIMIT {ROWS}");
        self.in_steps(0, |connection, _, used, from: i64| {
            let mut statement = connection.prepare_cached(&sql)?;
            let mut rows = statement.query(params![from])?;
            let mut last = None;
            while let Some(row) = rows.next()? {
                last = Some(row.get(0)?);
                used.strings.add(row.get(1)?);
                used.strings.add(row.get(2)?);
            }
            Ok(last)
        })
    }

    /// Drops what no sample's stack goes through. What was called comes before its caller, which has a lower number.
    fn forget_stacks(&mut self) -> Result<(), StoreError> {
        let sql = format!("SELECT id, parent, function FROM stacks WHERE id < ?1 ORDER BY id DESC LIMIT {ROWS}");
        self.in_steps(i64::MAX, |connection, noted, used, from| {
            let mut statement = connection.prepare_cached(&sql)?;
            let mut rows = statement.query(params![from])?;
            let (mut last, mut unused) = (None, Vec::new());
            while unused.len() < DROPPED
                && let Some(row) = rows.next()?
            {
                let (id, parent, function) = (row.get(0)?, row.get(1)?, row.get(2)?);
                last = Some(id);
                if used.stacks.has(id) || noted.stacks.has(id) {
                    used.stacks.add(parent);
                    used.functions.add(function);
                } else {
                    unused.push(id);
                }
            }
            drop(rows);
            drop_rows(connection, "DELETE FROM stacks WHERE id = ?1", &unused)?;
            Ok(last)
        })
    }

    /// Drops functions that are in no stack.
    fn forget_functions(&mut self) -> Result<(), StoreError> {
        let sql = format!("SELECT id, name, file FROM functions WHERE id > ?1 ORDER BY id LIMIT {ROWS}");
        self.in_steps(0, |connection, noted, used, from: i64| {
            let mut statement = connection.prepare_cached(&sql)?;
            let mut rows = statement.query(params![from])?;
            let (mut last, mut unused) = (None, Vec::new());
            while unused.len() < DROPPED
                && let Some(row) = rows.next()?
            {
                let id = row.get(0)?;
                last = Some(id);
                if used.functions.has(id) || noted.functions.has(id) {
                    used.strings.add(row.get(1)?);
                    used.strings.add(row.get(2)?);
                } else {
                    unused.push(id);
                }
            }
            drop(rows);
            drop_rows(connection, "DELETE FROM functions WHERE id = ?1", &unused)?;
            Ok(last)
        })
    }

    /// Drops strings that are no name of anything.
    fn forget_strings(&mut self) -> Result<(), StoreError> {
        let sql = format!("SELECT id FROM strings WHERE id > ?1 ORDER BY id LIMIT {ROWS}");
        self.in_steps(UNNAMED_ID, |connection, noted, used, from| {
            let mut statement = connection.prepare_cached(&sql)?;
            let mut rows = statement.query(params![from])?;
            let (mut last, mut unused) = (None, Vec::new());
            while unused.len() < DROPPED
                && let Some(row) = rows.next()?
            {
                let id = row.get(0)?;
                last = Some(id);
                if !used.strings.has(id) && !noted.strings.has(id) {
                    unused.push(id);
                }
            }
            drop(rows);
            drop_rows(connection, "DELETE FROM strings WHERE id = ?1", &unused)?;
            Ok(last)
        })
    }
}

fn drop_rows(connection: &Connection, sql: &str, ids: &[i64]) -> rusqlite::Result<()> {
    let mut delete = connection.prepare_cached(sql)?;
    ids.iter().try_for_each(|id| delete.execute(params![id]).map(drop))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::super::rows::{Function, Profile, Sample, Span, StackNode};
    use super::super::storage_limits::StorageLimits;
    use super::*;
    use crate::clock::SECOND;
    use crate::ids::{SpanId, TraceId};
    use crate::selection::{Selection, TimeRange};
    use crate::span_status::Status;

    /// One profile of each of some functions, in a span of its own.
    fn insert_profiles(store: &Store, time: i64, functions: &[&str]) {
        for (number, function) in (1..).zip(functions) {
            let mut profile = Profile { time, ..Profile::of(function) };
            profile.service = format!("service of {function}").into();
            let of_it = Arc::make_mut(&mut profile.parts[0].profile_type);
            of_it.text = format!("process_cpu:cpu:nanoseconds:{function}:nanoseconds");
            // Through functions of others, and with a caller that all have.
            profile.functions.push(Function { name: "main".into(), file: "main.py".into() });
            profile.stacks =
                vec![StackNode { parent: 0, function: 1, line: 1 }, StackNode { parent: 1, function: 0, line: 7 }];
            let part = &mut profile.parts[0];
            part.span_name = Some(format!("label of {function}").into());
            part.samples[0] = Sample { span: SpanId::from_bytes(&[number; 8]), stack: 2, value: 10, count: 1 };
            store.insert_profile(&profile).unwrap();
        }
    }

    fn insert_span(store: &Store, number: u8, name: &str) {
        let span = Span {
            trace: TraceId::from_bytes(&[number; 16]).unwrap(),
            span: SpanId::from_bytes(&[number; 8]).unwrap(),
            parent: None,
            service: "service of spans".into(),
            name: name.into(),
            start: SECOND,
            duration: 1,
            status: Status::Unset,
            root: None,
            profiled: true,
            attributes: "{}".into(),
            place: None,
        };
        store.insert_spans(&[span]).unwrap();
    }

    /// What refers to a name that is not there.
    fn dangling(store: &Store) -> Vec<String> {
        let inner = store.lock();
        let mut found = Vec::new();
        for (table, column, names) in [
            ("functions", "name", "strings"),
            ("functions", "file", "strings"),
            ("series", "service", "strings"),
            ("series", "span_name", "strings"),
            ("profiles", "service", "strings"),
            ("spans", "service", "strings"),
            ("spans", "name", "strings"),
            ("span_sums", "name", "strings"),
            ("stack_sums", "name", "strings"),
            ("stacks", "parent", "stacks"),
            ("stacks", "function", "functions"),
            ("parts", "series", "series"),
            ("series", "kind", "kinds"),
        ] {
            let sql = format!(
                "SELECT count(*) FROM {table} WHERE {column} != 0 AND {column} NOT IN (SELECT id FROM {names})"
            );
            let missing: i64 = inner.connection.query_row(&sql, [], |row| row.get(0)).unwrap();
            if missing != 0 {
                found.push(format!("{missing} of {table}.{column}"));
            }
        }
        for table in ["span_sums", "stack_sums"] {
            let mut statement = inner.connection.prepare(&format!("SELECT stacks FROM {table}")).unwrap();
            let blobs: Vec<Vec<u8>> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
            for blob in blobs {
                stack_blob::unpack(&blob, |(stack, ..)| {
                    let there = "SELECT EXISTS (SELECT 1 FROM stacks WHERE id = ?1)";
                    if !inner.connection.query_row(there, params![stack], |row| row.get::<_, bool>(0)).unwrap() {
                        found.push(format!("a stack of {table}"));
                    }
                })
                .unwrap();
            }
        }
        found
    }

    const OLD: [&str; 5] = ["a", "b", "c", "d", "e"];

    /// A store from which the old went, and whose names are still there.
    fn store() -> Arc<Store> {
        let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
        insert_profiles(&store, SECOND, &OLD);
        insert_profiles(&store, 100 * SECOND, &["new", "newer"]);
        insert_span(&store, 9, "old span");
        let gone = "DELETE FROM span_sums WHERE part IN (SELECT id FROM parts WHERE time < 50000000000);
                    DELETE FROM parts WHERE time < 50000000000; DELETE FROM profiles WHERE time < 50000000000;
                    DELETE FROM stack_sums WHERE bucket < 5; DELETE FROM spans";
        store.lock().connection.execute_batch(gone).unwrap();
        store
    }

    fn functions(store: &Store) -> Vec<String> {
        let stacks = store.stacks(&Selection::everything().time_range(TimeRange::Stored)).unwrap();
        let mut names: Vec<_> = stacks.functions.into_values().map(|function| function.name.to_string()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_comes_between_two_steps_has_its_names() {
        let steps = Cell::new(0);
        store().sweep(true, || steps.set(steps.get() + 1)).unwrap();
        assert!(steps.get() > 20, "{}", steps.get());
        for at in 0..steps.get() {
            let (store, step) = (store(), Cell::new(0));
            let come = || {
                step.set(step.get() + 1);
                if step.get() == at + 1 {
                    insert_profiles(&store, 200 * SECOND, &OLD);
                } else if step.get() == at + 2 {
                    // Moves a sum to another row, and to a name that it has from this span.
                    insert_span(&store, 1, "old span");
                    insert_span(&store, 2, "label of e");
                }
            };
            store.sweep(true, come).unwrap();
            assert_eq!(dangling(&store), [""; 0], "step {at}");
            assert_eq!(functions(&store), ["a", "b", "c", "d", "e", "main", "new", "newer"], "step {at}");
        }
    }

    #[test]
    fn what_nothing_refers_to_goes() {
        for of_profiles in [false, true] {
            let store = store();
            store.forget_names(of_profiles).unwrap();
            let count = |table: &str| {
                let sql = format!("SELECT count(*) FROM {table}");
                store.lock().connection.query_row(&sql, [], |row| row.get::<_, i64>(0)).unwrap()
            };
            // Of strings the unnamed span, and of each profile its function, label and service; of all main and two files.
            let left = ["stacks", "functions", "series", "kinds", "strings"].map(count);
            assert_eq!(left, if of_profiles { [3, 3, 2, 2, 10] } else { [8, 8, 7, 7, 25] });
            assert_eq!(dangling(&store), [""; 0]);
        }
    }
}
