//! What traces call spans.

use rusqlite::{CachedStatement, Connection, params};

use crate::ids::{SpanId, TraceId};

/// The names that traces know of spans.
pub(super) struct SpanNames<'c>(CachedStatement<'c>);

impl<'c> SpanNames<'c> {
    pub(super) fn of(connection: &'c Connection) -> rusqlite::Result<Self> {
        // Asked for each span of a profile: to have SQLite order the rows, which are seldom more than one, takes as long again.
        let find = "SELECT name, service, id FROM spans WHERE span = ?1 AND (?2 IS NULL OR trace = ?2)";
        connection.prepare_cached(find).map(Self)
    }

    /// The name of a span, which its samples say the trace of or not: that in the service of the samples, or else in the
    /// newest of others, as a profiler may call its service otherwise.
    pub(super) fn get(&mut self, span: SpanId, trace: Option<TraceId>, service: i64) -> rusqlite::Result<Option<i64>> {
        let mut rows = self.0.query(params![span.to_column(), trace.map(TraceId::to_column)])?;
        let mut best: Option<((bool, i64), i64)> = None;
        while let Some(row) = rows.next()? {
            let order = (row.get::<_, i64>(1)? == service, row.get(2)?);
            if best.is_none_or(|(before, _)| order > before) {
                best = Some((order, row.get(0)?));
            }
        }
        Ok(best.map(|(_, name)| name))
    }
}
