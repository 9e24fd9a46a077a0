//! Which of a service's spans its samples are labelled with.

use ahash::{HashMap, HashSet};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::connection::{StoreError, interrupted};
use super::database::Store;
use super::spans::IS_CHILD;
use crate::selection::{CPU, WALL};
use crate::work;

/// Whether a service labels all its spans is judged by this many of its newest child spans.
const JUDGED: i64 = 2_000;
/// And they are looked for among this many of its newest spans.
const LOOKED_AT: i64 = 10_000;

/// Whether a profile holds a span of a series.
const IN_SPANS: &str = "SELECT EXISTS (
    SELECT 1 FROM parts CROSS JOIN span_sums ON span_sums.part = parts.id
    WHERE parts.series = ?1 AND span_sums.span != 0)";

/// Which of a service's spans its samples are labelled with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Sampling {
    /// Each span, the innermost.
    Span,
    /// Only those that entered the service from outside; their children's CPU is in theirs.
    Root,
    /// Spans of samples of wall time alone: what they burnt is not known.
    Wall,
    /// None, as no profile holds a span of the service.
    #[default]
    None,
}

impl Store {
    /// Which spans of the service its samples are labelled with.
    pub(crate) fn sampling(&self, service: &str) -> Result<Sampling, StoreError> {
        Ok(self.sampling_of([service])?[0])
    }

    /// The same of each of many services.
    pub(crate) fn sampling_of<'a>(
        &self,
        services: impl IntoIterator<Item = &'a str> + Clone,
    ) -> Result<Vec<Sampling>, StoreError> {
        self.read(|connection| {
            let mut find = connection.prepare_cached("SELECT id FROM strings WHERE text = ?1")?;
            let mut ids: Vec<Option<i64>> = Vec::new();
            for service in services.clone() {
                ids.push(find.query_row(params![service], |row| row.get(0)).optional()?);
            }
            let known = of(connection, ids.iter().flatten().copied().collect())?;
            Ok(ids.into_iter().map(|id| id.and_then(|id| known.get(&id).copied()).unwrap_or_default()).collect())
        })
    }

    /// Whether samples of the service, of whatever profile type, are labelled with child spans; also where it has none.
    pub(crate) fn samples_child_spans(&self, service: &str) -> Result<bool, StoreError> {
        self.read(|connection| {
            let mut find = connection.prepare_cached("SELECT id FROM strings WHERE text = ?1")?;
            match find.query_row(params![service], |row| row.get(0)).optional()? {
                Some(id) => Ok(of_spans(connection, id)? == Sampling::Span),
                None => Ok(false),
            }
        })
    }
}

/// By the services' numbers; those of which no profile holds a span are left out.
pub(super) fn of(connection: &Connection, mut services: HashSet<i64>) -> rusqlite::Result<HashMap<i64, Sampling>> {
    let mut found = HashMap::default();
    let mut all = connection.prepare_cached(
        "SELECT series.service, series.id FROM kinds CROSS JOIN series ON series.kind = kinds.id WHERE kinds.name = ?1",
    )?;
    let mut in_spans = connection.prepare_cached(IN_SPANS)?;
    for name in [CPU, WALL] {
        // All series once, as they are not sorted by service.
        let mut rows = all.query([name])?;
        while !services.is_empty()
            && let Some(row) = rows.next()?
        {
            let service: i64 = row.get(0)?;
            if services.contains(&service) && in_spans.query_row(params![row.get::<_, i64>(1)?], |row| row.get(0))? {
                if work::is_over() {
                    return Err(interrupted());
                }
                services.remove(&service);
                found.insert(service, if name == CPU { of_spans(connection, service)? } else { Sampling::Wall });
            }
        }
    }
    Ok(found)
}

/// Judged by the spans of a service of which some are labelled.
fn of_spans(connection: &Connection, service: i64) -> rusqlite::Result<Sampling> {
    let (children, labelled): (i64, i64) = connection
        .prepare_cached(&format!(
            "SELECT count(*), coalesce(sum(profiled OR EXISTS (
                 SELECT 1 FROM span_sums WHERE span_sums.span != 0 AND span_sums.span = child.span)), 0)
             FROM (SELECT s.span, s.profiled FROM (
                     SELECT trace, span, root, parent, service, profiled FROM spans
                     WHERE service = ?1 ORDER BY start DESC LIMIT {LOOKED_AT}) AS s
                 WHERE {IS_CHILD} LIMIT {JUDGED}) AS child"
        ))?
        .query_row(params![service], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(if children > 0 && labelled == 0 { Sampling::Root } else { Sampling::Span })
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::super::rows::{Profile, Sample};
    use super::super::storage_limits::StorageLimits;
    use super::*;
    use crate::ids::SpanId;

    #[test]
    fn of_many_services_each_series_is_looked_at_once() {
        let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
        let profile = |number: usize| {
            let mut profile = Profile::of("work");
            profile.service = format!("service {number}").into();
            // Every other one is labelled.
            let span = SpanId::from_bytes(&[1; 8]).filter(|_| number.is_multiple_of(2));
            profile.parts[0].samples = vec![Sample { span, ..profile.parts[0].samples[0] }];
            profile
        };
        let profiles: Vec<_> = (0..100).map(profile).collect();
        store.insert_profiles(&profiles).unwrap();
        let found = store.sampling_of(profiles.iter().map(|profile| &*profile.service)).unwrap();
        assert!(found.chunks(2).all(|pair| pair == [Sampling::Span, Sampling::None]), "{found:?}");
        let inner = store.lock();
        let statement = inner.connection.prepare_cached(IN_SPANS).unwrap();
        assert_eq!(statement.get_status(StatementStatus::Run), 100);
        drop(statement);
        drop(inner);
        assert_eq!(store.sampling("service 2").unwrap(), Sampling::Span);
        assert_eq!(store.sampling("nobody").unwrap(), Sampling::None);
    }
}
