//! Samples out: the stacks of a selection, and sums of single spans.

use std::collections::HashMap;

use rusqlite::{Connection, params};

use super::connection::StoreError;
use super::database::Store;
use super::gather::Gathered;
use super::profile_traces;
use super::sample_query::SampleQuery;
use super::snapshots::Snapshots;
use super::span_predicate::{IS_OWN, STATE};
use super::stacks::Stacks;
use crate::ids::{SpanId, TraceId};
use crate::selection::{CPU, Selection, TimeRange, WALL};
use crate::states::{State, StateTimes};

impl Store {
    /// The samples of a selection, by stack.
    pub(crate) fn stacks(&self, selection: &Selection) -> Result<Stacks, StoreError> {
        let (gathered, concurrent) = self.read(|connection| {
            let query = SampleQuery::new(connection, selection)?;
            let mut gathered = Gathered::of(self, selection).averaged(Snapshots::of(connection, &query)?);
            let mut concurrent = 0_i64;
            let (state, is_own) = if selection.is_wall() { (STATE, IS_OWN) } else { ("NULL", "true") };
            query.each(connection, &format!("series.id, {state}, s.stacks, {is_own}, s.value"), |row| {
                if !row.get::<_, bool>(3)? {
                    concurrent = concurrent.saturating_add(row.get(4)?);
                }
                gathered.add(row.get(0)?, row.get_ref(1)?.as_str_or_null()?, row.get_ref(2)?.as_blob()?)
            })?;
            Ok((gathered, concurrent))
        })?;
        let stacks = gathered.finish(self)?;
        let concurrent = if stacks.averaged_over.is_none() { concurrent } else { 0 };
        Ok(Stacks { concurrent, ..stacks })
    }

    /// Whether any sample of any type is labelled with the span.
    pub(crate) fn is_sampled(&self, span: SpanId) -> Result<bool, StoreError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM span_sums WHERE span != 0 AND span = ?1)";
        self.read(|connection| connection.prepare_cached(sql)?.query_row(params![span.to_column()], |row| row.get(0)))
    }

    /// What each of the spans of a trace burnt itself, and where its time went. Spans without samples are left out.
    pub(crate) fn sums_of_spans(
        &self,
        trace: TraceId,
        spans: &[SpanId],
    ) -> Result<HashMap<SpanId, SpanSum>, StoreError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT s.value, s.count, parts.profile, kinds.name = '{CPU}', iif(kinds.name = '{WALL}', {STATE}, NULL), {IS_OWN}
                 FROM span_sums s JOIN parts ON parts.id = s.part
                 JOIN series ON series.id = parts.series JOIN kinds ON kinds.id = series.kind
                 WHERE s.span != 0 AND s.span = ?1 AND kinds.name IN ('{CPU}', '{WALL}') AND kinds.main AND kinds.unit = 'nanoseconds'"
            ))?;
            let mut found: HashMap<SpanId, SpanSum> = HashMap::new();
            for span in spans {
                let others = profile_traces::of_others(connection, *span, trace)?;
                let mut rows = statement.query(params![span.to_column()])?;
                while let Some(row) = rows.next()? {
                    if others.contains(&row.get(2)?) {
                        continue;
                    }
                    let (value, count): (i64, i64) = (row.get(0)?, row.get(1)?);
                    let sum = found.entry(*span).or_default();
                    if row.get(3)? {
                        let (cpu, samples) = sum.cpu.unwrap_or_default();
                        sum.cpu = Some((cpu.saturating_add(value), samples.saturating_add(count)));
                    } else if !row.get::<_, bool>(5)? {
                        sum.concurrent = sum.concurrent.saturating_add(value);
                    } else {
                        sum.states.add(State::of_label(row.get_ref(4)?.as_str_or_null()?), value);
                    }
                }
            }
            Ok(found)
        })
    }

    /// Whether any profile of a service, or of all, says the states of its samples, which are nanoseconds.
    pub(crate) fn has_states(&self, service: Option<&str>, time_range: TimeRange) -> Result<bool, StoreError> {
        let (from, to) = time_range.bounds();
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM kinds CROSS JOIN series ON series.kind = kinds.id
                 WHERE kinds.name = '{WALL}' AND kinds.main AND kinds.unit = 'nanoseconds' AND {STATE} IS NOT NULL
                 AND (?3 IS NULL OR series.service = (SELECT id FROM strings WHERE text = ?3))
                 AND EXISTS (SELECT 1 FROM parts WHERE parts.series = series.id AND parts.time BETWEEN ?1 AND ?2))"
        );
        self.read(|connection| connection.prepare_cached(&sql)?.query_row(params![from, to, service], |row| row.get(0)))
    }
}

/// What a span burnt itself, and where its time went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpanSum {
    /// CPU and samples of it; none if no sample of CPU is labelled with it.
    pub(crate) cpu: Option<(i64, i64)>,
    /// What its samples of all time say.
    pub(crate) states: StateTimes,
    /// Beside it: what other threads or tasks spent in it meanwhile.
    pub(crate) concurrent: i64,
}

/// A string by its number.
pub(super) fn text(connection: &Connection, id: i64) -> rusqlite::Result<String> {
    connection.prepare_cached("SELECT text FROM strings WHERE id = ?1")?.query_row(params![id], |row| row.get(0))
}
