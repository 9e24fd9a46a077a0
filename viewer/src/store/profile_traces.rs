//! The traces of spans that samples name: per profile and span name one blob of records, each a span id (8 bytes) and its
//! trace id (16), sorted by span. A trace is looked for by reading all of them, 24 bytes a span, which takes milliseconds;
//! an index would take that long for each profile that comes in.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, params};

use crate::ids::{SpanId, TraceId};

const RECORD: usize = 24;
/// So many spans that have no room are counted for each that has.
const COUNTED: usize = 16;

/// A span whose samples name its trace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub(super) trace: TraceId,
    pub(super) span: SpanId,
    /// Service and name, as numbers of strings; name 0 = not known.
    pub(super) service: i64,
    pub(super) name: i64,
}

/// Packs spans and their traces.
pub(super) fn pack(traces: &BTreeMap<SpanId, TraceId>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(traces.len() * RECORD);
    for (span, trace) in traces {
        bytes.extend_from_slice(&span.to_bytes());
        bytes.extend_from_slice(&trace.to_column());
    }
    bytes
}

fn records(bytes: &[u8]) -> impl Iterator<Item = (SpanId, TraceId)> {
    bytes.as_chunks::<RECORD>().0.iter().filter_map(|record| {
        let (span, trace) = record.split_at_checked(8)?;
        Some((SpanId::from_bytes(span)?, TraceId::from_bytes(trace)?))
    })
}

/// The trace that the samples of a span in a profile name.
pub(super) fn of_profile(connection: &Connection, profile: i64, span: SpanId) -> rusqlite::Result<Option<TraceId>> {
    let mut statement = connection.prepare_cached("SELECT spans FROM profile_traces WHERE profile = ?1")?;
    let mut rows = statement.query(params![profile])?;
    while let Some(row) = rows.next()? {
        if let Some((_, trace)) = records(row.get_ref(0)?.as_blob()?).find(|(id, _)| *id == span) {
            return Ok(Some(trace));
        }
    }
    Ok(None)
}

/// Looks at each span whose samples in a profile name its trace.
pub(super) fn each_of_profile(
    connection: &Connection,
    profile: i64,
    mut each: impl FnMut(SpanId, TraceId),
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached("SELECT spans FROM profile_traces WHERE profile = ?1")?;
    let mut rows = statement.query(params![profile])?;
    while let Some(row) = rows.next()? {
        records(row.get_ref(0)?.as_blob()?).for_each(|(span, trace)| each(span, trace));
    }
    Ok(())
}

/// The profiles whose samples of a span are of another trace, where several traces have a span of that id.
pub(super) fn of_others(connection: &Connection, span: SpanId, trace: TraceId) -> rusqlite::Result<Vec<i64>> {
    let mut several =
        connection.prepare_cached("SELECT EXISTS (SELECT 1 FROM spans WHERE span = ?1 AND trace != ?2)")?;
    if !several.query_row(params![span.to_column(), trace.to_column()], |row| row.get(0))? {
        return Ok(Vec::new());
    }
    let mut statement = connection.prepare_cached(
        "SELECT DISTINCT parts.profile FROM span_sums s JOIN parts ON parts.id = s.part WHERE s.span != 0 AND s.span = ?1",
    )?;
    let profiles = statement.query_map(params![span.to_column()], |row| row.get(0))?;
    let profiles = profiles.collect::<rusqlite::Result<Vec<i64>>>()?;
    let mut found = Vec::new();
    for profile in profiles {
        if of_profile(connection, profile, span)?.is_some_and(|other| other != trace) {
            found.push(profile);
        }
    }
    Ok(found)
}

/// The spans of a trace that samples name and that were not received, each once, as far as there is room; and how many more there
/// are, at least.
pub(super) fn spans_of(connection: &Connection, trace: TraceId, most: usize) -> rusqlite::Result<(Vec<Named>, usize)> {
    let mut found: BTreeMap<SpanId, Named> = BTreeMap::new();
    let mut more: BTreeSet<SpanId> = BTreeSet::new();
    let mut received = connection.prepare_cached("SELECT 1 FROM spans WHERE span = ?1 AND trace = ?2")?;
    each_record(connection, trace, |span, service, name| {
        if let Some(known) = found.get_mut(&span) {
            known.name = known.name.max(name);
        } else if more.len() < (most + 1).saturating_mul(COUNTED)
            && !more.contains(&span)
            && !received.exists(params![span.to_column(), trace.to_column()])?
        {
            if found.len() < most {
                found.insert(span, Named { trace, span, service, name });
            } else {
                more.insert(span);
            }
        }
        Ok(())
    })?;
    Ok((found.into_values().collect(), more.len()))
}

/// Looks at each span of a trace that samples name, with service and name, as often as they do.
pub(super) fn each_record(
    connection: &Connection,
    trace: TraceId,
    mut each: impl FnMut(SpanId, i64, i64) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(
        "SELECT t.spans, profiles.service, t.name FROM profile_traces t JOIN profiles ON profiles.id = t.profile",
    )?;
    let mut rows = statement.query([])?;
    let wanted = trace.to_column();
    while let Some(row) = rows.next()? {
        let (records, _) = row.get_ref(0)?.as_blob()?.as_chunks::<RECORD>();
        for record in records.iter().filter(|record| record[8..] == wanted) {
            if let Some(span) = SpanId::from_bytes(&record[..8]) {
                each(span, row.get(1)?, row.get(2)?)?;
            }
        }
    }
    Ok(())
}

/// The trace of a span that its samples name.
pub(super) fn of_span(connection: &Connection, span: SpanId) -> rusqlite::Result<Option<Named>> {
    let mut statement = connection.prepare_cached(
        "SELECT t.spans, profiles.service, t.name FROM span_sums s
         JOIN parts ON parts.id = s.part JOIN profiles ON profiles.id = parts.profile
         JOIN profile_traces t ON t.profile = parts.profile WHERE s.span != 0 AND s.span = ?1 ORDER BY t.name DESC",
    )?;
    let mut rows = statement.query(params![span.to_column()])?;
    while let Some(row) = rows.next()? {
        if let Some((_, trace)) = records(row.get_ref(0)?.as_blob()?).find(|(id, _)| *id == span) {
            return Ok(Some(Named { trace, span, service: row.get(1)?, name: row.get(2)? }));
        }
    }
    Ok(None)
}

/// The traces that samples of a service name, of all spans or those of one name.
pub(super) fn traces_of(
    connection: &Connection,
    service: Option<&str>,
    name: Option<&str>,
    (from, to): (i64, i64),
) -> rusqlite::Result<BTreeSet<TraceId>> {
    let mut statement = connection.prepare_cached(
        "SELECT t.spans FROM profiles JOIN profile_traces t ON t.profile = profiles.id
         WHERE profiles.service = (SELECT id FROM strings WHERE text = ?1) AND profiles.time BETWEEN ?3 AND ?4
           AND (?2 IS NULL OR t.name = (SELECT id FROM strings WHERE text = ?2))",
    )?;
    let mut rows = statement.query(params![service, name, from, to])?;
    let mut found = BTreeSet::new();
    while let Some(row) = rows.next()? {
        found.extend(records(row.get_ref(0)?.as_blob()?).map(|(_, trace)| trace));
    }
    Ok(found)
}
