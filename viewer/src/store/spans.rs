//! Spans out: the traces of a name, one trace, one span.

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params, params_from_iter};

use super::connection::StoreError;
use super::database::Store;
use super::profile_traces;
use super::rows::Span;
use super::samples::text;
use crate::ids::{SpanId, TraceId};
use crate::selection::{CPU, Selection};
use crate::span_status::Status;

/// Bytes that a span of a trace takes in an answer beside its texts: 14 states may take half of it.
const SPAN: usize = 1_024;

/// A child span: its sender says so, or its parent is a span of the same service.
pub(super) const IS_CHILD: &str = "coalesce(s.root = 0, s.parent != 0 AND EXISTS (
    SELECT 1 FROM spans p WHERE p.trace = s.trace AND p.span = s.parent AND p.service = s.service))";

/// A span as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct StoredSpan {
    /// The span; for one that only samples name, start and duration are 0.
    pub(crate) span: Span,
    /// Whether its parent is in the same service.
    pub(crate) child: bool,
    /// Whether its trace was received.
    pub(crate) traced: bool,
}

/// How traces are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TraceSort {
    /// Longest span of the name first.
    Wall,
    /// Most CPU in the trace first.
    Cpu,
}

/// A trace that has a span of the name.
#[derive(Debug)]
pub(crate) struct TraceSum {
    /// Its id.
    pub(crate) trace: TraceId,
    /// The longest span of the name; none if only samples name the trace.
    pub(crate) span_wall: Option<i64>,
}

impl Store {
    /// The spans of a trace, by start; those that only samples name come last.
    pub(crate) fn trace(&self, trace: TraceId) -> Result<Vec<StoredSpan>, StoreError> {
        Ok(self.trace_within(trace)?.0)
    }

    /// The same, and how many spans more only samples name, which have no room.
    pub(crate) fn trace_within(&self, trace: TraceId) -> Result<(Vec<StoredSpan>, usize), StoreError> {
        self.read(|connection| {
            let mut left = self.limits.answer();
            let mut spans = spans_where(connection, "s.trace = ?1", &Value::Blob(trace.to_column().into()), &mut left)?;
            let (named, mut more) = profile_traces::spans_of(connection, trace, left / SPAN)?;
            for named in named {
                let Some(span) = sampled(connection, named)? else { continue };
                left = left.saturating_sub(SPAN + 3 * (span.span.name.len() + span.span.service.len()));
                if left > 0 {
                    spans.push(span);
                } else {
                    more += 1;
                }
            }
            Ok((spans, more))
        })
    }

    /// How many spans of a trace were received.
    pub(crate) fn count_of_trace(&self, trace: TraceId) -> Result<usize, StoreError> {
        let sql = "SELECT count(*) FROM spans WHERE trace = ?1";
        let all: i64 = self.read(|connection| {
            connection.prepare_cached(sql)?.query_row(params![trace.to_column()], |row| row.get(0))
        })?;
        Ok(usize::try_from(all).unwrap_or(0))
    }

    /// A span by its id.
    pub(crate) fn span(&self, span: SpanId) -> Result<Option<StoredSpan>, StoreError> {
        self.read(|connection| {
            let mut left = usize::MAX;
            let found = spans_where(connection, "s.span = ?1", &span.to_column().into(), &mut left)?.into_iter().next();
            match found {
                Some(found) => Ok(Some(found)),
                None => match profile_traces::of_span(connection, span)? {
                    Some(named) => sampled(connection, named),
                    None => Ok(None),
                },
            }
        })
    }

    /// Up to `most` traces with a span of the selection.
    pub(crate) fn traces(
        &self,
        selection: &Selection,
        sort: TraceSort,
        most: usize,
    ) -> Result<Vec<TraceSum>, StoreError> {
        let predicate = super::span_predicate::spans_in_time(selection, "s");
        let by = match sort {
            TraceSort::Wall => "wall DESC, trace",
            TraceSort::Cpu => "cpu DESC, wall DESC, trace",
        };
        let cpu = match sort {
            TraceSort::Wall => "0".to_owned(),
            TraceSort::Cpu => format!(
                "(SELECT total(span_sums.value) FROM spans t JOIN span_sums ON span_sums.span != 0 AND span_sums.span = t.span
                  JOIN parts ON parts.id = span_sums.part JOIN series ON series.id = parts.series
                  JOIN kinds ON kinds.id = series.kind AND kinds.name = '{CPU}' AND kinds.main AND kinds.unit = 'nanoseconds'
                  WHERE t.trace = chosen.trace)"
            ),
        };
        self.read(|connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT trace, wall, {cpu} AS cpu FROM (
                 SELECT s.trace, max(s.duration) AS wall FROM spans s WHERE {} GROUP BY s.trace) AS chosen
             ORDER BY {by} LIMIT {most}",
                predicate.sql
            ))?;
            let rows = statement.query_map(params_from_iter(&predicate.values), |row| {
                Ok(TraceSum { trace: trace_id(row, 0)?, span_wall: row.get(1)? })
            })?;
            let mut found = rows.collect::<rusqlite::Result<Vec<_>>>()?;
            // Of spans that only samples name, no wall time is known; they come last.
            if found.len() < most && !selection.reads_spans() && selection.name_part.is_none() {
                let (service, name) = (selection.service.as_deref(), selection.name.as_deref());
                let mut is_traced = connection.prepare_cached("SELECT 1 FROM spans WHERE trace = ?1")?;
                for trace in profile_traces::traces_of(connection, service, name, selection.time_range.bounds())? {
                    if found.len() < most && !is_traced.exists(params![trace.to_column()])? {
                        found.push(TraceSum { trace, span_wall: None });
                    }
                }
            }
            Ok(found)
        })
    }
}

/// Spans that were received.
fn spans_where(
    connection: &Connection,
    condition: &str,
    value: &Value,
    left: &mut usize,
) -> rusqlite::Result<Vec<StoredSpan>> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT s.trace, s.span, s.parent, services.text, names.text, s.start, s.duration, s.status, s.root, s.profiled,
                s.attributes, {IS_CHILD}
         FROM spans s JOIN strings AS services ON services.id = s.service JOIN strings AS names ON names.id = s.name
         WHERE {condition} ORDER BY s.start, s.duration DESC, s.span"
    ))?;
    let mut rows = statement.query(params![value])?;
    let mut spans = Vec::new();
    while let Some(row) = rows.next()? {
        let span = stored_span(row)?;
        // The answer is a copy, in which a character may take more than one.
        let texts = span.span.name.len() + span.span.service.len() + span.span.attributes.len();
        *left = left.saturating_sub(SPAN + 3 * texts);
        if *left == 0 {
            break;
        }
        spans.push(span);
    }
    Ok(spans)
}

/// What is known of a span from its samples; none if the span itself was received.
fn sampled(connection: &Connection, named: profile_traces::Named) -> rusqlite::Result<Option<StoredSpan>> {
    let mut received = connection.prepare_cached("SELECT 1 FROM spans WHERE span = ?1 AND trace = ?2")?;
    if received.exists(params![named.span.to_column(), named.trace.to_column()])? {
        return Ok(None);
    }
    let span = Span {
        trace: named.trace,
        span: named.span,
        parent: None,
        service: text(connection, named.service)?.into(),
        name: if named.name == 0 { String::new() } else { text(connection, named.name)? },
        start: 0,
        duration: 0,
        status: Status::Unset,
        root: None,
        profiled: true,
        attributes: "{}".into(),
        place: None,
    };
    Ok(Some(StoredSpan { span, child: false, traced: false }))
}

fn trace_id(row: &Row<'_>, column: usize) -> rusqlite::Result<TraceId> {
    let bytes: Vec<u8> = row.get(column)?;
    TraceId::from_bytes(&bytes)
        .ok_or_else(|| rusqlite::Error::InvalidColumnType(column, "trace".into(), rusqlite::types::Type::Blob))
}

fn stored_span(row: &Row<'_>) -> rusqlite::Result<StoredSpan> {
    let id = |column| {
        SpanId::from_column(row.get(column)?)
            .ok_or_else(|| rusqlite::Error::InvalidColumnType(column, "span".into(), rusqlite::types::Type::Integer))
    };
    let span = Span {
        trace: trace_id(row, 0)?,
        span: id(1)?,
        parent: SpanId::from_column(row.get(2)?),
        service: row.get_ref(3)?.as_str()?.into(),
        name: row.get(4)?,
        start: row.get(5)?,
        duration: row.get(6)?,
        status: Status::from_number(row.get(7)?),
        root: row.get(8)?,
        profiled: row.get(9)?,
        attributes: row.get(10)?,
        place: None,
    };
    Ok(StoredSpan { span, child: row.get(11)?, traced: true })
}

#[cfg(test)]
mod tests {
    use super::super::rows::{Profile, Sample};
    use super::super::storage_limits::StorageLimits;
    use super::*;

    fn ids(number: u64) -> (SpanId, TraceId) {
        (SpanId::from_bytes(&number.to_be_bytes()).unwrap(), TraceId::from_bytes(&[7; 16]).unwrap())
    }

    /// A store with a trace of so many spans that samples name by a name of some bytes.
    fn store(spans: u64, name: usize, answer: usize) -> std::sync::Arc<Store> {
        let store = Store::open(None, &StorageLimits::with(u64::MAX, 1 << 20, answer)).unwrap();
        let mut profile = Profile::of("main");
        let part = &mut profile.parts[0];
        part.span_name = Some("n".repeat(name).into());
        part.samples = (1..=spans).map(|n| Sample { span: Some(ids(n).0), ..part.samples[0] }).collect();
        part.traces = (1..=spans).map(ids).collect();
        // Twice, as a span burns in several profiles.
        store.insert_profile(&profile).unwrap();
        store.insert_profile(&Profile { time: profile.time + 1, ..profile }).unwrap();
        store
    }

    #[test]
    fn spans_that_samples_name_and_that_have_no_room_are_counted() {
        for (spans, name, room) in [(50, 10, 50), (1_000, 10, 96), (1_000, 3_000, 10)] {
            let store = store(spans, name, 100 << 10);
            let (found, more) = store.trace_within(ids(1).1).unwrap();
            let gathered = profile_traces::spans_of(&store.lock().connection, ids(1).1, 10).unwrap();
            assert_eq!((gathered.0.len(), gathered.1), (10, usize::try_from(spans.min(10 + 11 * 16) - 10).unwrap()));
            assert!((found.len(), more) == (room, usize::try_from(spans).unwrap() - room), "{} {more}", found.len());
        }
    }

    #[test]
    fn a_selection_of_more_spans_of_a_trace_than_are_looked_for_is_refused() {
        let most = u64::try_from(super::super::sample_query::MOST_SPANS).unwrap();
        let of_trace = Selection::of_trace(ids(1).1);
        assert_eq!(store(100, 1, 100 << 10).stacks(&of_trace).unwrap().sums.len(), 1);
        let refused = store(most + 1, 1, 100 << 10).stacks(&of_trace).unwrap_err();
        assert!(refused.is_too_large() && refused.to_string().contains("more than 2000 spans of traces"), "{refused}");
    }
}
