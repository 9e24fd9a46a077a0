//! Rows in: one transaction a profile, one a batch of spans.

use rusqlite::{Connection, params};

use super::intern::{Interned, find_or_add};
use super::rows::{Part, Profile, Span};
use super::{Inner, Store, StoreError};
use crate::clock;
use crate::ids::SpanId;

impl Store {
    /// Adds a profile.
    pub(crate) fn insert_profile(&self, profile: &Profile) -> Result<(), StoreError> {
        self.transaction(|connection, interned| insert_profile(connection, interned, profile))
    }

    /// Adds spans; one that is there already (a repeated export) is replaced.
    pub(crate) fn insert_spans(&self, spans: &[Span]) -> Result<(), StoreError> {
        self.transaction(|connection, interned| {
            spans.iter().try_for_each(|span| insert_span(connection, interned, span))
        })
    }

    fn transaction(
        &self,
        insert: impl FnOnce(&Connection, &mut Interned) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        let mut inner = self.lock();
        let Inner { connection, interned, .. } = &mut *inner;
        interned.trim();
        let transaction = connection.transaction()?;
        let done = insert(&transaction, interned).and_then(|()| transaction.commit());
        if done.is_err() {
            interned.clear();
        }
        Ok(done?)
    }
}

fn insert_profile(connection: &Connection, interned: &mut Interned, profile: &Profile) -> rusqlite::Result<()> {
    let functions = profile
        .functions
        .iter()
        .map(|function| interned.function(connection, function))
        .collect::<rusqlite::Result<Vec<_>>>()?;
    // Entry 0 is the empty stack, as in the profile's own numbering.
    let mut stacks = Vec::with_capacity(profile.stacks.len() + 1);
    stacks.push(0);
    for node in &profile.stacks {
        stacks.push(interned.stack(connection, stacks[node.parent], functions[node.function], node.line)?);
    }
    let service = interned.string(connection, &profile.service)?;
    connection
        .prepare_cached("INSERT INTO profiles (service, time, received) VALUES (?1, ?2, ?3)")?
        .execute(params![service, profile.time, clock::now()])?;
    let id = connection.last_insert_rowid();
    for part in &profile.parts {
        insert_part(connection, interned, (id, service, profile.time), part, &stacks)?;
    }
    Ok(())
}

fn insert_part(
    connection: &Connection,
    interned: &mut Interned,
    (profile, service, time): (i64, i64, i64),
    part: &Part,
    stacks: &[i64],
) -> rusqlite::Result<()> {
    let name = match &part.span_name {
        Some(name) => interned.string(connection, name)?,
        None => 0,
    };
    let kind = find_or_add(
        connection,
        "SELECT id FROM kinds WHERE text = ?1 AND name = ?2 AND unit = ?3 AND main = ?4",
        "INSERT INTO kinds (text, name, unit, main) VALUES (?1, ?2, ?3, ?4)",
        params![part.kind.text, part.kind.name, part.kind.unit, part.kind.main],
    )?;
    let series = find_or_add(
        connection,
        "SELECT id FROM series WHERE kind = ?1 AND period = ?2 AND labels = ?3 AND service = ?4 AND span_name = ?5",
        "INSERT INTO series (kind, period, labels, service, span_name) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![kind, part.period, part.labels, service, name],
    )?;
    connection
        .prepare_cached("INSERT INTO parts (profile, series, time) VALUES (?1, ?2, ?3)")?
        .execute(params![profile, series, time])?;
    let id = connection.last_insert_rowid();

    let mut insert_sample = connection
        .prepare_cached("INSERT INTO samples (part, span, stack, value, count) VALUES (?1, ?2, ?3, ?4, ?5)")?;
    let mut add_to_sum = connection.prepare_cached(
        "INSERT INTO span_sums (part, span, value, count) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT DO UPDATE SET value = value + excluded.value, count = count + excluded.count",
    )?;
    for sample in &part.samples {
        let span = sample.span.map_or(0, SpanId::to_column);
        insert_sample.execute(params![id, span, stacks[sample.stack], sample.value, sample.count])?;
        add_to_sum.execute(params![id, span, sample.value, sample.count])?;
    }
    let mut name_span = connection.prepare_cached(
        "INSERT INTO sampled_spans (span, trace, service, name, time) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT DO UPDATE SET name = max(name, excluded.name), time = max(time, excluded.time)",
    )?;
    for (span, trace) in &part.traces {
        name_span.execute(params![span.to_column(), trace.to_column(), service, name, time])?;
    }
    Ok(())
}

fn insert_span(connection: &Connection, interned: &mut Interned, span: &Span) -> rusqlite::Result<()> {
    let service = interned.string(connection, &span.service)?;
    let name = interned.string(connection, &span.name)?;
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO spans
             (trace, span, parent, service, name, start, duration, status, root, profiled, attributes)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        )?
        .execute(params![
            span.trace.to_column(),
            span.span.to_column(),
            span.parent.map_or(0, SpanId::to_column),
            service,
            name,
            span.start,
            span.duration,
            span.status.to_column(),
            span.root,
            span.profiled,
            span.attributes,
        ])?;
    Ok(())
}
