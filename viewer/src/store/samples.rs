//! Samples out: the stacks of a selection, and sums by service and of single spans.

use std::collections::HashMap;

use rusqlite::{Connection, params};

use super::connection::StoreError;
use super::database::Store;
use super::gather::Gathered;
use super::profile_traces;
use super::sample_query::SampleQuery;
use super::stacks::Stacks;
use crate::ids::{SpanId, TraceId};
use crate::selection::{CPU, Selection, TimeRange};

/// What a service burnt.
#[derive(Debug, Default)]
pub(crate) struct ServiceSum {
    /// Its name.
    pub(crate) service: String,
    /// CPU.
    pub(crate) cpu: i64,
    /// CPU in spans.
    pub(crate) cpu_in_spans: i64,
    /// Samples of CPU.
    pub(crate) samples: i64,
    /// Spans received.
    pub(crate) spans: i64,
    /// Profiles received.
    pub(crate) profiles: i64,
    /// When the last of them came.
    pub(crate) last_received: Option<i64>,
    /// The first and the last time that it was heard of, by profiles or spans.
    pub(crate) heard: Option<(i64, i64)>,
}

impl ServiceSum {
    fn widen(&mut self, first: i64, last: i64) {
        self.heard = Some(self.heard.map_or((first, last), |(a, b)| (a.min(first), b.max(last))));
    }
}

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

    /// Every service that sent anything in the time range, most CPU first. A profile is stamped with its start;
    /// `longest_profile` bounds its end.
    pub(crate) fn services(&self, time_range: TimeRange, longest_profile: i64) -> Result<Vec<ServiceSum>, StoreError> {
        self.read(|connection| {
            let mut found: HashMap<i64, ServiceSum> = HashMap::new();
            let (from, to) = time_range.bounds();
            let mut statement = connection.prepare_cached(
                "SELECT service, count(*), max(received), min(time), max(min(max(received, time), time + ?3))
                 FROM profiles WHERE time BETWEEN ?1 AND ?2 GROUP BY service",
            )?;
            let mut rows = statement.query(params![from, to, longest_profile])?;
            while let Some(row) = rows.next()? {
                let sum = found.entry(row.get(0)?).or_default();
                (sum.profiles, sum.last_received) = (row.get(1)?, row.get(2)?);
                sum.widen(row.get(3)?, row.get(4)?);
            }
            let mut statement = connection.prepare_cached(
                "SELECT service, count(*), min(start), max(start + duration)
                 FROM spans WHERE start + duration >= ?1 AND start <= ?2 GROUP BY service",
            )?;
            let mut rows = statement.query(params![from, to])?;
            while let Some(row) = rows.next()? {
                let sum = found.entry(row.get(0)?).or_default();
                sum.spans = row.get(1)?;
                sum.widen(row.get(2)?, row.get(3)?);
            }
            let cpu = SampleQuery::new(
                connection,
                &Selection { profile_type: CPU.into(), ..Selection::everything() }.time_range(time_range),
            )?;
            cpu.each(connection, "series.service, s.name, s.value, s.count", |row| {
                let sum = found.entry(row.get(0)?).or_default();
                let value: i64 = row.get(2)?;
                let in_spans = if row.get::<_, i64>(1)? == 0 { 0 } else { value };
                sum.cpu = sum.cpu.saturating_add(value);
                sum.cpu_in_spans = sum.cpu_in_spans.saturating_add(in_spans);
                sum.samples = sum.samples.saturating_add(row.get(3)?);
                Ok(())
            })?;
            let mut services = Vec::with_capacity(found.len());
            for (service, sum) in found {
                services.push(ServiceSum { service: text(connection, service)?, ..sum });
            }
            services.sort_by(|a, b| b.cpu.cmp(&a.cpu).then_with(|| a.service.cmp(&b.service)));
            Ok(services)
        })
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
