//! Samples out: the stacks of a selection, and sums of single spans.

use std::collections::HashMap;

use rusqlite::{Connection, params};

use super::connection::StoreError;
use super::database::Store;
use super::gather::Gathered;
use super::profile_traces;
use super::sample_query::SampleQuery;
use super::stacks::Stacks;
use crate::ids::{SpanId, TraceId};
use crate::selection::{CPU, Selection};

impl Store {
    /// The samples of a selection, by stack.
    pub(crate) fn stacks(&self, selection: &Selection) -> Result<Stacks, StoreError> {
        let gathered = self.read(|connection| {
            let mut gathered = Gathered::new(self);
            SampleQuery::new(connection, selection)?
                .each(connection, "series.id, s.stacks", |row| gathered.add(row.get(0)?, row.get_ref(1)?.as_blob()?))?;
            Ok(gathered)
        })?;
        gathered.finish(self)
    }

    /// Whether any sample of any type is labelled with the span.
    pub(crate) fn is_sampled(&self, span: SpanId) -> Result<bool, StoreError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM span_sums WHERE span != 0 AND span = ?1)";
        self.read(|connection| connection.prepare_cached(sql)?.query_row(params![span.to_column()], |row| row.get(0)))
    }

    /// What each of the spans of a trace burnt itself: value and samples of CPU. Spans without samples are left out.
    pub(crate) fn cpu_of_spans(
        &self,
        trace: TraceId,
        spans: &[SpanId],
    ) -> Result<HashMap<SpanId, (i64, i64)>, StoreError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT s.value, s.count, parts.profile FROM span_sums s JOIN parts ON parts.id = s.part
                 JOIN series ON series.id = parts.series JOIN kinds ON kinds.id = series.kind
                 WHERE s.span != 0 AND s.span = ?1 AND kinds.name = '{CPU}' AND kinds.main"
            ))?;
            let mut found = HashMap::new();
            for span in spans {
                let others = profile_traces::of_others(connection, *span, trace)?;
                let mut rows = statement.query(params![span.to_column()])?;
                while let Some(row) = rows.next()? {
                    if others.contains(&row.get(2)?) {
                        continue;
                    }
                    let sum: &mut (i64, i64) = found.entry(*span).or_default();
                    *sum = (sum.0.saturating_add(row.get(0)?), sum.1.saturating_add(row.get(1)?));
                }
            }
            Ok(found)
        })
    }
}

/// A string by its number.
pub(super) fn text(connection: &Connection, id: i64) -> rusqlite::Result<String> {
    connection.prepare_cached("SELECT text FROM strings WHERE id = ?1")?.query_row(params![id], |row| row.get(0))
}
