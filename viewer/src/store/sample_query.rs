//! A selection as a condition in SQL, and the rows that it holds for.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params, params_from_iter};

use super::connection::{interrupted, too_many_spans};
use super::{profile_traces, rollup};
use crate::ids::{SpanId, TraceId};
use crate::profile_types;
use crate::selection::{DOCTOR, Selection, Side};
use crate::work;

/// The most spans of the traces that samples are chosen by, each of which takes some hundred bytes.
pub(super) const MOST_SPANS: usize = if cfg!(test) { 2_000 } else { 100_000 };

/// Where sums stand: those of single spans, by the index of spans; and, the few series first and then of each what is in the time
/// range, those of ten seconds and those of single profiles.
const BY_SPAN: &str = "span_sums s JOIN parts ON parts.id = s.part AND parts.time BETWEEN ? AND ?
                       JOIN series ON series.id = parts.series JOIN kinds ON kinds.id = series.kind";
const BY_BUCKET: &str = "kinds CROSS JOIN series ON series.kind = kinds.id
                         CROSS JOIN stack_sums s ON s.series = series.id AND s.bucket BETWEEN ? AND ?";
const BY_PROFILE: &str = "kinds CROSS JOIN series ON series.kind = kinds.id
                          CROSS JOIN parts ON parts.series = series.id AND parts.time BETWEEN ? AND ?
                          CROSS JOIN span_sums s ON s.part = parts.id";

/// A condition on `s` (sums of samples), `series` and `kinds`, and a time range.
pub(super) struct SampleQuery {
    sql: String,
    values: Vec<Value>,
    /// Whether it asks for single spans, which the sums over all spans of a name do not know.
    by_span: bool,
    /// Whether its profile type says what there was at an instant.
    is_of_snapshots: bool,
    bounds: (i64, i64),
}

/// What a name alone means.
#[derive(Default)]
struct Meant {
    /// All five parts of it, of one period.
    text: String,
    /// Its numbers, where the name may mean others too.
    kinds: Option<Vec<i64>>,
}

/// Of the sample types that a name alone may mean, and that the service sent in the time range, it is the first; of several
/// periods it is all.
fn meant(connection: &Connection, selection: &Selection) -> rusqlite::Result<Meant> {
    let mut find = connection.prepare_cached("SELECT text, id FROM kinds WHERE name = ? AND main")?;
    let rows = find.query_map(params![selection.profile_type], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let rows = rows.collect::<rusqlite::Result<Vec<(String, i64)>>>()?;
    let mut kinds: BTreeMap<_, (&str, Vec<i64>)> = BTreeMap::new();
    for (text, id) in &rows {
        let (_, sample_type, unit) = profile_types::parts(text);
        let order = (profile_types::order(&selection.profile_type, sample_type, unit), unit);
        kinds.entry(order).or_insert((text, Vec::new())).1.push(*id);
    }
    if kinds.len() < 2 {
        let text = kinds.into_values().next().map(|(text, _)| text.to_owned()).unwrap_or_default();
        return Ok(Meant { text, kinds: None });
    }
    let mut is_sent = connection.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM series WHERE series.kind IN (SELECT value FROM json_each(?1))
             AND (?2 IS NULL OR series.service = (SELECT id FROM strings WHERE text = ?2))
             AND EXISTS (SELECT 1 FROM parts WHERE parts.series = series.id AND parts.time BETWEEN ?3 AND ?4))",
    )?;
    // A single span says no service; what it has is meant.
    let mut is_in_span = connection.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM span_sums s JOIN parts ON parts.id = s.part JOIN series ON series.id = parts.series
             WHERE s.span != 0 AND s.span = ?2 AND series.kind IN (SELECT value FROM json_each(?1)))",
    )?;
    let (from, to) = selection.time_range.bounds();
    let mut has = |list: String| match selection.span {
        Some(span) => is_in_span.query_row(params![list, span.to_column()], |row| row.get(0)),
        None => is_sent.query_row(params![list, selection.service, from, to], |row| row.get(0)),
    };
    for (text, ids) in kinds.values() {
        if has(serde_json::json!(ids).to_string())? {
            return Ok(Meant { text: (*text).into(), kinds: Some(ids.clone()) });
        }
    }
    Ok(Meant { kinds: Some(Vec::new()), ..Meant::default() })
}

impl SampleQuery {
    /// Holds for all samples between two times, both included.
    pub(super) fn within(bounds: (i64, i64)) -> Self {
        Self { sql: "true".into(), values: Vec::new(), by_span: false, is_of_snapshots: false, bounds }
    }

    /// Holds for the samples of the selection.
    pub(super) fn new(connection: &Connection, selection: &Selection) -> rusqlite::Result<Self> {
        let mut query = Self::within(selection.time_range.bounds());
        let profile_type = selection.profile_type.clone();
        if profile_type.contains(':') {
            query.is_of_snapshots = profile_types::is_snapshot(&profile_type);
            query.and("kinds.text = ?", [profile_type.into()]);
        } else {
            let Meant { text, kinds } = meant(connection, selection)?;
            query.is_of_snapshots = profile_types::is_snapshot(&text);
            match kinds {
                None => query.and("kinds.name = ? AND kinds.main", [profile_type.into()]),
                Some(kinds) => {
                    let list = serde_json::json!(kinds).to_string();
                    query.and("kinds.id IN (SELECT value FROM json_each(?))", [list.into()]);
                }
            }
        }
        if let Some(service) = &selection.service {
            query.and("series.service = (SELECT id FROM strings WHERE text = ?)", [service.clone().into()]);
        } else if selection.span.is_none() && selection.trace.is_none() {
            query.and("series.service IS NOT (SELECT id FROM strings WHERE text = ?)", [DOCTOR.to_owned().into()]);
        }
        if let Some(name) = &selection.name {
            query.and("s.name = (SELECT id FROM strings WHERE text = ?)", [name.clone().into()]);
        }
        if let Some(trace) = selection.trace {
            query.of_traces(connection, &[trace])?;
        }
        if let Some(span) = selection.span.filter(|_| !selection.below) {
            query.and_span("s.span = ?", [span.to_column().into()]);
        }
        match selection.side {
            Side::Any => {}
            Side::Inside => query.and("s.name != 0", []),
            Side::Outside => query.and("s.name = 0", []),
        }
        for condition in super::span_predicate::samples(selection) {
            if condition.by_span {
                query.and_span(&condition.sql, condition.values)
            } else {
                query.and(&condition.sql, condition.values)
            }
        }
        Ok(query)
    }

    /// Holds for samples of spans of these traces only, whether a trace was received or samples name it.
    pub(super) fn of_traces(&mut self, connection: &Connection, traces: &[TraceId]) -> rusqlite::Result<()> {
        let mut spans: BTreeSet<i64> = BTreeSet::new();
        let mut received = connection.prepare_cached("SELECT span FROM spans WHERE trace = ?1")?;
        for trace in traces {
            let mut add = |span| {
                spans.insert(span);
                if spans.len() > MOST_SPANS { Err(too_many_spans(MOST_SPANS)) } else { Ok(()) }
            };
            profile_traces::each_record(connection, *trace, |span, _, _| add(span.to_column()))?;
            for span in received.query_map(params![trace.to_column()], |row| row.get(0))? {
                add(span?)?;
            }
        }
        let list = format!("[{}]", spans.iter().map(i64::to_string).collect::<Vec<_>>().join(","));
        self.and_span("s.span IN (SELECT value FROM json_each(?))", [list.into()]);
        if let [trace] = traces {
            let mut others: Vec<(i64, i64)> = Vec::new();
            for span in spans.into_iter().filter_map(SpanId::from_column) {
                let profiles = profile_traces::of_others(connection, span, *trace)?;
                others.extend(profiles.into_iter().map(|profile| (span.to_column(), profile)));
            }
            if !others.is_empty() {
                // One condition for all: each of its own would be a level more of a tree that SQLite bounds.
                let sql = "(s.span, parts.profile) NOT IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))";
                self.and_span(sql, [serde_json::json!(others).to_string().into()]);
            }
        }
        Ok(())
    }

    /// Reads the samples of each profile, also where sums over all spans of a name would do.
    pub(super) fn of_profiles(&mut self) {
        self.by_span = true;
    }

    /// Adds a condition on `s.name`, `series` or `kinds`.
    pub(super) fn and(&mut self, sql: &str, values: impl IntoIterator<Item = Value>) {
        self.sql.push_str(" AND ");
        self.sql.push_str(sql);
        self.values.extend(values);
    }

    /// Adds a condition on `s.span`.
    pub(super) fn and_span(&mut self, sql: &str, values: impl IntoIterator<Item = Value>) {
        self.by_span = true;
        // The index by span leaves out 0, and is used only where the statement says so.
        self.and("s.span != 0", []);
        self.and(sql, values);
    }

    /// Whether values are averaged over time, and not added.
    pub(super) fn is_of_snapshots(&self) -> bool {
        self.is_of_snapshots
    }

    /// Reads `columns` of every row of sums; several rows may be of one series and name.
    pub(super) fn each(
        &self,
        connection: &Connection,
        columns: &str,
        mut each: impl FnMut(&Row<'_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        if self.by_span {
            return self.run(connection, columns, BY_SPAN, self.bounds, each);
        }
        let split = rollup::split(self.bounds);
        if let Some(buckets) = split.buckets {
            self.run(connection, columns, BY_BUCKET, buckets, &mut each)?;
        }
        split.ends.into_iter().try_for_each(|end| self.run(connection, columns, BY_PROFILE, end, &mut each))
    }

    /// The same of the rows that single profiles have, by their table `parts`.
    pub(super) fn each_in_profiles(
        &self,
        connection: &Connection,
        columns: &str,
        each: impl FnMut(&Row<'_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        self.run(connection, columns, if self.by_span { BY_SPAN } else { BY_PROFILE }, self.bounds, each)
    }

    fn run(
        &self,
        connection: &Connection,
        columns: &str,
        tables: &str,
        (from, to): (i64, i64),
        mut each: impl FnMut(&Row<'_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        let sql = format!("SELECT {columns} FROM {tables} WHERE {}", self.sql);
        let mut statement = connection.prepare_cached(&sql)?;
        let bounds = [from.into(), to.into()];
        let mut rows = statement.query(params_from_iter(bounds.iter().chain(&self.values)))?;
        while let Some(row) = rows.next()? {
            if work::is_over() {
                return Err(interrupted());
            }
            each(row)?;
        }
        Ok(())
    }
}
