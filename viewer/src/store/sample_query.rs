//! A selection as a condition in SQL, and the rows that it holds for.

use std::collections::BTreeSet;

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params, params_from_iter};

use super::connection::{interrupted, too_many_spans};
use super::{profile_traces, rollup};
use crate::ids::{SpanId, TraceId};
use crate::selection::{Selection, Side};
use crate::work;

/// The most spans of the traces that samples are chosen by, each of which takes some hundred bytes.
pub(super) const MOST_SPANS: usize = if cfg!(test) { 2_000 } else { 100_000 };

/// A condition on `s` (sums of samples), `series` and `kinds`, and a time range.
pub(super) struct SampleQuery {
    sql: String,
    values: Vec<Value>,
    /// Whether it asks for single spans, which the sums over all spans of a name do not know.
    by_span: bool,
    bounds: (i64, i64),
}

impl SampleQuery {
    /// Holds for all samples between two times, both included.
    pub(super) fn within(bounds: (i64, i64)) -> Self {
        Self { sql: "true".into(), values: Vec::new(), by_span: false, bounds }
    }

    /// Holds for the samples of the selection.
    pub(super) fn new(connection: &Connection, selection: &Selection) -> rusqlite::Result<Self> {
        let mut query = Self::within(selection.time_range.bounds());
        let profile_type = selection.profile_type.clone();
        if profile_type.contains(':') {
            query.and("kinds.text = ?", [profile_type.into()]);
        } else {
            query.and("kinds.name = ? AND kinds.main", [profile_type.into()]);
        }
        if let Some(service) = &selection.service {
            query.and("series.service = (SELECT id FROM strings WHERE text = ?)", [service.clone().into()]);
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

    /// Reads `columns` of every row of sums; several rows may be of one series and name.
    pub(super) fn each(
        &self,
        connection: &Connection,
        columns: &str,
        mut each: impl FnMut(&Row<'_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        let mut run = |tables: &str, (from, to): (i64, i64)| {
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
            rusqlite::Result::Ok(())
        };
        if self.by_span {
            let tables = "span_sums s JOIN parts ON parts.id = s.part AND parts.time BETWEEN ? AND ?
                          JOIN series ON series.id = parts.series JOIN kinds ON kinds.id = series.kind";
            return run(tables, self.bounds);
        }
        let split = rollup::split(self.bounds);
        // The few series first, then of each what is in the time range.
        let series = "kinds CROSS JOIN series ON series.kind = kinds.id CROSS JOIN";
        if let Some(buckets) = split.buckets {
            let sums = "stack_sums s ON s.series = series.id AND s.bucket BETWEEN ? AND ?";
            run(&format!("{series} {sums}"), buckets)?;
        }
        let parts = "parts ON parts.series = series.id AND parts.time BETWEEN ? AND ?
                     CROSS JOIN span_sums s ON s.part = parts.id";
        split.ends.into_iter().try_for_each(|end| run(&format!("{series} {parts}"), end))
    }
}
