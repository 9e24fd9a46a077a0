//! Series by their labels, and the samples of chosen series.

use std::collections::{BTreeMap, HashMap, HashSet};

use rusqlite::{Connection, OptionalExtension as _, params};

use super::connection::StoreError;
use super::database::Store;
use super::gather::Gathered;
use super::profile_traces;
use super::sample_query::SampleQuery;
use super::stacks::Stacks;
use crate::ids::{ProfileId, SpanId, TraceId};

/// A series: a label set of one profile type.
#[derive(Debug)]
pub(crate) struct StoredSeries {
    /// Its number.
    pub(crate) id: i64,
    /// All five parts of its profile type.
    pub(crate) profile_type: String,
    /// Its labels, with `__name__` and service_name.
    pub(crate) labels: BTreeMap<String, String>,
}

/// What a profile holds of a series.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    /// The series.
    pub(crate) series: i64,
    /// Start of the profile's window.
    pub(crate) time: i64,
    /// The profile's number.
    pub(crate) profile: i64,
    /// Value of all its samples.
    pub(crate) value: i64,
}

/// What a profile holds of a span in a series.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpanPoint {
    pub(crate) series: i64,
    /// Start of the profile's window.
    pub(crate) time: i64,
    /// The profile's number.
    pub(crate) profile: i64,
    pub(crate) span: SpanId,
    /// Value of the span's samples.
    pub(crate) value: i64,
}

/// Single spans and profiles to choose samples by; empty lists choose all.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// Samples of these spans.
    pub(crate) spans: Vec<SpanId>,
    /// Samples of spans of these traces.
    pub(crate) traces: Vec<TraceId>,
    /// Samples of these profiles.
    pub(crate) profiles: Vec<ProfileId>,
}

impl Store {
    /// Looks at all series with a profile between two times, both included, until it has seen enough. What it makes of them
    /// it adds to what `begin` returns, once more where it has to give way and is begun anew.
    pub(crate) fn each_series<S>(
        &self,
        (from, to): (i64, i64),
        mut begin: impl FnMut() -> S,
        mut visit: impl FnMut(&mut S, StoredSeries) -> bool,
    ) -> Result<S, StoreError> {
        self.read(|connection| {
            let mut found = begin();
            let mut statement = connection.prepare_cached(
                "SELECT series.id, kinds.text, series.labels FROM series JOIN kinds ON kinds.id = series.kind
                 WHERE EXISTS (SELECT 1 FROM parts WHERE parts.series = series.id AND parts.time BETWEEN ?1 AND ?2)
                 ORDER BY series.id",
            )?;
            let mut rows = statement.query(params![from, to])?;
            while let Some(row) = rows.next()? {
                self.go_on_reading()?;
                let labels = labels(row.get_ref(2)?.as_str()?)?;
                if !visit(&mut found, StoredSeries { id: row.get(0)?, profile_type: row.get(1)?, labels }) {
                    break;
                }
            }
            Ok(found)
        })
    }

    /// The samples of series between two times, both included, by stack.
    pub(crate) fn stacks_of_series(
        &self,
        series: &[i64],
        choice: &Choice,
        bounds: (i64, i64),
    ) -> Result<Stacks, StoreError> {
        let gathered = self.read(|connection| {
            let mut gathered = Gathered::new(self);
            query(connection, series, choice, bounds)?.each(connection, "series.id, s.stacks", |row| {
                gathered.add(row.get(0)?, None, row.get_ref(1)?.as_blob()?)
            })?;
            Ok(gathered)
        })?;
        gathered.finish(self)
    }

    /// Looks at what the profiles of series hold between two times, both included, in the same way.
    pub(crate) fn each_point_of_series<S>(
        &self,
        series: &[i64],
        (from, to): (i64, i64),
        mut begin: impl FnMut() -> S,
        mut visit: impl FnMut(&mut S, Point) -> bool,
    ) -> Result<S, StoreError> {
        self.read(|connection| {
            let mut found = begin();
            let mut statement = connection.prepare_cached(
                "SELECT parts.series, parts.time, parts.profile, parts.value FROM json_each(?1) AS chosen
                 CROSS JOIN parts ON parts.series = chosen.value AND parts.time BETWEEN ?2 AND ?3",
            )?;
            let mut rows = statement.query(params![json(series), from, to])?;
            while let Some(row) = rows.next()? {
                self.go_on_reading()?;
                let (series, time, profile, value) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
                if !visit(&mut found, Point { series, time, profile, value }) {
                    break;
                }
            }
            Ok(found)
        })
    }

    /// Looks at what they hold of each span, in the same way.
    pub(crate) fn each_span_of_series<S>(
        &self,
        series: &[i64],
        (from, to): (i64, i64),
        mut begin: impl FnMut() -> S,
        mut visit: impl FnMut(&mut S, SpanPoint) -> bool,
    ) -> Result<S, StoreError> {
        self.read(|connection| {
            let mut found = begin();
            let mut statement = connection.prepare_cached(
                "SELECT parts.series, parts.time, parts.profile, s.span, s.value FROM json_each(?1) AS chosen
                 CROSS JOIN parts ON parts.series = chosen.value AND parts.time BETWEEN ?2 AND ?3
                 CROSS JOIN span_sums s ON s.part = parts.id WHERE s.span != 0",
            )?;
            let mut rows = statement.query(params![json(series), from, to])?;
            while let Some(row) = rows.next()? {
                self.go_on_reading()?;
                let Some(span) = SpanId::from_column(row.get(3)?) else { continue };
                let (series, time, profile, value) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(4)?);
                if !visit(&mut found, SpanPoint { series, time, profile, span, value }) {
                    break;
                }
            }
            Ok(found)
        })
    }

    /// The traces of spans in profiles, as far as samples name them or one span alone is known of that id.
    pub(crate) fn traces_of_spans(
        &self,
        spans: &[(i64, SpanId)],
    ) -> Result<HashMap<(i64, SpanId), TraceId>, StoreError> {
        let mut by_profile: BTreeMap<i64, HashSet<SpanId>> = BTreeMap::new();
        for (profile, span) in spans {
            by_profile.entry(*profile).or_default().insert(*span);
        }
        self.read(|connection| {
            let mut found = HashMap::new();
            let mut received = connection.prepare_cached("SELECT trace FROM spans WHERE span = ?1 LIMIT 2")?;
            for (profile, spans) in &by_profile {
                self.go_on_reading()?;
                profile_traces::each_of_profile(connection, *profile, |span, trace| {
                    if spans.contains(&span) {
                        found.insert((*profile, span), trace);
                    }
                })?;
                for span in spans {
                    if found.contains_key(&(*profile, *span)) {
                        continue;
                    }
                    let traces = received.query_map(params![span.to_column()], |row| row.get::<_, Vec<u8>>(0))?;
                    if let [trace] = &traces.collect::<rusqlite::Result<Vec<_>>>()?[..] {
                        found.extend(TraceId::from_bytes(trace).map(|trace| ((*profile, *span), trace)));
                    }
                }
            }
            Ok(found)
        })
    }

    /// The times of the first and the last profile.
    pub(crate) fn profile_times(&self) -> Result<Option<(i64, i64)>, StoreError> {
        self.read(|connection| {
            let time = |order: &str| {
                let sql = format!("SELECT time FROM profiles ORDER BY time {order} LIMIT 1");
                connection.prepare_cached(&sql)?.query_row([], |row| row.get(0)).optional()
            };
            Ok(time("ASC")?.zip(time("DESC")?))
        })
    }
}

fn query(
    connection: &Connection,
    series: &[i64],
    choice: &Choice,
    bounds: (i64, i64),
) -> rusqlite::Result<SampleQuery> {
    let mut query = SampleQuery::within(bounds);
    query.and("series.id IN (SELECT value FROM json_each(?))", [json(series).into()]);
    if !choice.spans.is_empty() {
        let spans: Vec<i64> = choice.spans.iter().map(|span| span.to_column()).collect();
        query.and_span("s.span IN (SELECT value FROM json_each(?))", [json(&spans).into()]);
    }
    if !choice.traces.is_empty() {
        query.of_traces(connection, &choice.traces)?;
    }
    if !choice.profiles.is_empty() {
        let profiles: Vec<(i64, i64)> = choice.profiles.iter().map(|id| (id.number, id.time)).collect();
        query.of_profiles();
        let sql = "(parts.profile, parts.time) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))";
        query.and(sql, [serde_json::json!(profiles).to_string().into()]);
    }
    Ok(query)
}

/// A list as one parameter.
fn json(numbers: &[i64]) -> String {
    serde_json::json!(numbers).to_string()
}

fn labels(text: &str) -> rusqlite::Result<BTreeMap<String, String>> {
    let broken = |error| rusqlite::Error::FromSqlConversionFailure(2, rusqlite::types::Type::Text, Box::new(error));
    serde_json::from_str(text).map_err(broken)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::super::rows::Profile;
    use super::super::storage_limits::StorageLimits;
    use super::*;
    use crate::work::{self, Gone, Haste};

    #[test]
    fn what_gives_way_and_is_begun_anew_counts_once() {
        let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
        // More than SQLite goes through between two looks at whose turn it is.
        for n in 0..2_000 {
            let mut profile = Profile::of("main");
            profile.parts[0].labels = format!("{{\"n\":\"{n}\"}}").into();
            store.insert_profile(&profile).unwrap();
        }
        let (all, hour) = ((i64::MIN, i64::MAX), Duration::from_secs(3_600));
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let store = &store;
            let ask = move || {
                let mut tries = 0;
                let found = store.each_series(
                    all,
                    || {
                        tries += 1;
                        if tries == 1 {
                            tell.send(()).unwrap();
                            while !store.turns.is_over() {
                                std::thread::yield_now();
                            }
                        }
                        Vec::new()
                    },
                    |found, series| {
                        found.push(series.id);
                        true
                    },
                );
                (found.unwrap(), tries)
            };
            let asked = scope.spawn(move || work::within(hour, Haste::Patient, Gone::default(), ask));
            told.recv().unwrap();
            work::within(hour, Haste::Urgent, Gone::default(), || store.is_empty()).unwrap();
            let (series, tries) = asked.join().unwrap();
            assert_eq!((series.len(), tries), (2_000, 2));
            let points = store.each_point_of_series(
                &series,
                all,
                || 0,
                |points, _| {
                    *points += 1;
                    true
                },
            );
            assert_eq!(points.unwrap(), 2_000);
        });
    }

    #[test]
    fn who_takes_long_over_a_row_gives_way_at_the_next() {
        let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
        // Fewer than SQLite goes through before it looks at whose turn it is.
        for n in 0..3 {
            let mut profile = Profile::of("main");
            profile.parts[0].labels = format!("{{\"n\":\"{n}\"}}").into();
            store.insert_profile(&profile).unwrap();
        }
        let (all, hour) = ((i64::MIN, i64::MAX), Duration::from_secs(3_600));
        for of_points in [false, true] {
            let (tell, told) = mpsc::channel();
            std::thread::scope(|scope| {
                let store = &store;
                let ask = move || {
                    let (mut is_first, mut tries) = (true, 0);
                    // The first look takes until somebody waits, as one by a regular expression may.
                    let mut visit = || {
                        if std::mem::take(&mut is_first) {
                            tell.send(()).unwrap();
                            while !store.turns.is_over() {
                                std::thread::yield_now();
                            }
                        }
                        true
                    };
                    let begin = || tries += 1;
                    if of_points {
                        store.each_point_of_series(&[1, 2, 3], all, begin, |(), _| visit()).unwrap();
                    } else {
                        store.each_series(all, begin, |(), _| visit()).unwrap();
                    }
                    tries
                };
                let asked = scope.spawn(move || work::within(hour, Haste::Patient, Gone::default(), ask));
                told.recv().unwrap();
                work::within(hour, Haste::Urgent, Gone::default(), || store.is_empty()).unwrap();
                assert_eq!(asked.join().unwrap(), 2, "it was begun anew");
            });
        }
    }
}
