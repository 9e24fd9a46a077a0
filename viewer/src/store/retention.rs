//! Forgetting: by age, then by size, oldest first, counted.

use rusqlite::{Connection, params};

use super::{Inner, Store, StoreError};

/// Each step towards the ceiling drops one part in this many of what is stored.
const STEP: i64 = 10;

/// What was forgotten since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Forgotten {
    /// Profiles that were too old.
    pub(crate) profiles_by_age: usize,
    /// Spans that were too old.
    pub(crate) spans_by_age: usize,
    /// Profiles that had no room.
    pub(crate) profiles_by_size: usize,
    /// Spans that had no room.
    pub(crate) spans_by_size: usize,
}

impl Store {
    /// Forgets what is older than `oldest`, then the oldest beyond `most_bytes`.
    pub(crate) fn retain(&self, oldest: i64, most_bytes: u64) -> Result<(), StoreError> {
        let mut inner = self.lock();
        let (profiles, spans) = forget(&mut inner, oldest)?;
        inner.forgotten.profiles_by_age += profiles;
        inner.forgotten.spans_by_age += spans;
        let mut any = profiles + spans > 0;
        while bytes(&inner.connection)? > most_bytes {
            let (profiles, spans) = forget_a_step(&mut inner)?;
            if profiles + spans == 0 {
                break;
            }
            inner.forgotten.profiles_by_size += profiles;
            inner.forgotten.spans_by_size += spans;
            any = true;
        }
        if any {
            inner.interned.clear();
        }
        Ok(())
    }

    /// What was forgotten since the start.
    pub(crate) fn forgotten(&self) -> Forgotten {
        self.lock().forgotten
    }

    /// How much the stored rows take.
    pub(crate) fn bytes(&self) -> Result<u64, StoreError> {
        Ok(bytes(&self.lock().connection)?)
    }
}

/// Drops what is older than the oldest tenth of the profiles and of the spans.
fn forget_a_step(inner: &mut Inner) -> rusqlite::Result<(usize, usize)> {
    let cut = |table: &str, time: &str| {
        let sql = format!(
            "SELECT {time} + 1 FROM {table} ORDER BY {time} LIMIT 1 OFFSET (SELECT count(*) / {STEP} FROM {table})"
        );
        match inner.connection.query_row(&sql, [], |row| row.get::<_, i64>(0)) {
            Err(rusqlite::Error::QueryReturnedNoRows) => Ok(i64::MAX),
            found => found,
        }
    };
    let oldest = cut("profiles", "time")?.min(cut("spans", "start + duration")?);
    if oldest == i64::MAX { Ok((0, 0)) } else { forget(inner, oldest) }
}

/// Drops what is older than `oldest`, and names that nothing refers to any more.
fn forget(inner: &mut Inner, oldest: i64) -> rusqlite::Result<(usize, usize)> {
    let transaction = inner.connection.transaction()?;
    let spans = transaction.execute("DELETE FROM spans WHERE start + duration < ?1", params![oldest])?;
    let profiles = transaction.execute("DELETE FROM profiles WHERE time < ?1", params![oldest])?;
    if profiles > 0 {
        for table in ["samples", "span_sums"] {
            let parts = "SELECT parts.id FROM parts WHERE profile NOT IN (SELECT id FROM profiles)";
            transaction.execute(&format!("DELETE FROM {table} WHERE part IN ({parts})"), [])?;
        }
        transaction.execute("DELETE FROM parts WHERE profile NOT IN (SELECT id FROM profiles)", [])?;
        transaction.execute("DELETE FROM sampled_spans WHERE time < ?1", params![oldest])?;
        transaction.execute("DELETE FROM series WHERE id NOT IN (SELECT series FROM parts)", [])?;
        // What is left of the trie is what a sample's stack goes through.
        transaction.execute(
            "DELETE FROM stacks WHERE id NOT IN (
                 WITH RECURSIVE used (id) AS (
                     SELECT DISTINCT stack FROM samples
                     UNION SELECT parent FROM used JOIN stacks USING (id) WHERE parent != 0)
                 SELECT id FROM used)",
            [],
        )?;
        transaction.execute("DELETE FROM functions WHERE id NOT IN (SELECT function FROM stacks)", [])?;
    }
    if profiles + spans > 0 {
        transaction.execute(
            "DELETE FROM strings WHERE id NOT IN (
                 SELECT name FROM functions UNION SELECT file FROM functions
                 UNION SELECT service FROM series UNION SELECT span_name FROM series
                 UNION SELECT service FROM profiles
                 UNION SELECT service FROM sampled_spans UNION SELECT name FROM sampled_spans
                 UNION SELECT service FROM spans UNION SELECT name FROM spans)",
            [],
        )?;
    }
    transaction.commit()?;
    Ok((profiles, spans))
}

fn bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let used = pragma("page_count")?.saturating_sub(pragma("freelist_count")?);
    Ok(used.saturating_mul(pragma("page_size")?).max(0).cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::super::rows::{Function, Kind, Part, Profile, Sample, StackNode};
    use super::*;
    use crate::ids::SpanId;
    use crate::selection::Selection;

    fn profile(time: i64, function: &str) -> Profile {
        let kind = Kind {
            name: "process_cpu".into(),
            text: "process_cpu:cpu:nanoseconds:cpu:nanoseconds".into(),
            unit: "nanoseconds".into(),
            main: true,
        };
        let sample = Sample { span: SpanId::parse("00000000000000aa"), stack: 1, value: 10, count: 1 };
        Profile {
            service: "shop".into(),
            time,
            functions: vec![Function { name: function.into(), file: "shop.py".into() }],
            stacks: vec![StackNode { parent: 0, function: 0, line: 7 }],
            parts: vec![Part {
                kind,
                period: 10,
                span_name: Some(format!("name of {function}")),
                labels: format!("{{\"l\":\"{function}\"}}"),
                samples: vec![sample],
                traces: vec![],
            }],
        }
    }

    fn functions(store: &Store) -> Vec<String> {
        let mut names: Vec<_> = store
            .stacks(&Selection::of_span(SpanId::parse("00000000000000aa").unwrap()))
            .unwrap()
            .functions
            .into_values()
            .map(|f| f.name)
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_old_goes_with_all_that_only_it_used() {
        let store = Store::open(None).unwrap();
        store.insert_profile(&profile(100, "old")).unwrap();
        store.insert_profile(&profile(200, "new")).unwrap();
        assert_eq!(functions(&store), ["new", "old"]);
        store.retain(150, u64::MAX).unwrap();
        assert_eq!(functions(&store), ["new"]);
        assert_eq!(store.forgotten(), Forgotten { profiles_by_age: 1, ..Forgotten::default() });
        let inner = store.lock();
        for (table, left) in [
            ("strings", 4),
            ("functions", 1),
            ("stacks", 1),
            ("series", 1),
            ("parts", 1),
            ("samples", 1),
            ("span_sums", 1),
        ] {
            let rows: i64 =
                inner.connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap();
            assert_eq!(rows, left, "{table}");
        }
        drop(inner);
        // What was interned before is interned anew.
        store.insert_profile(&profile(300, "old")).unwrap();
        assert_eq!(functions(&store), ["new", "old"]);
    }

    #[test]
    fn the_oldest_goes_when_there_is_no_room() {
        let store = Store::open(None).unwrap();
        for n in 0..2_000 {
            store.insert_profile(&profile(n, &format!("function number {n}"))).unwrap();
        }
        let half = store.bytes().unwrap() / 2;
        store.retain(0, half).unwrap();
        assert!(store.bytes().unwrap() <= half);
        let left = functions(&store);
        assert!(left.contains(&"function number 1999".into()) && !left.contains(&"function number 0".into()));
        assert_eq!(store.forgotten().profiles_by_size, 2_000 - left.len());
    }
}
