//! Rows in: one transaction a profile, one a batch of spans.

use std::collections::BTreeMap;
use std::iter;
use std::sync::atomic::Ordering::Relaxed; // a flag that orders nothing

use ahash::{HashMap, HashSet};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::connection::{StoreError, interrupted, is_full, make_place};
use super::database::{Inner, Store};
use super::intern::{Interned, find_or_add};
use super::joined;
use super::known_names::SpanNames;
use super::numbered::{Ahead, Numbered};
use super::profile_traces;
use super::rollup::Changes;
use super::rows::{Part, Profile, Sample, Span};
use super::schema::UNNAMED_ID;
use super::stack_blob::{self, Entry};
use crate::clock;
use crate::ids::{SpanId, TraceId};
use crate::work;

/// The samples of a span that go by another name than the given one.
const MISNAMED: &str = "
    SELECT s.name, parts.series, parts.time, s.stacks, s.part, parts.profile, profiles.service
    FROM span_sums s JOIN parts ON parts.id = s.part JOIN profiles ON profiles.id = parts.profile
    WHERE s.span != 0 AND s.span = ?1 AND s.name != ?2";

/// The number of no name.
const NO_NAME: i64 = -1;

/// The same bytes without an id are one profile within this time, in which a sender tries again.
const SAME_BYTES: i64 = 60 * clock::SECOND;

impl Store {
    /// Adds a profile.
    #[cfg(test)]
    pub(crate) fn insert_profile(&self, profile: &Profile) -> Result<(), StoreError> {
        self.insert_profiles(std::slice::from_ref(profile))
    }

    /// Adds profiles, all of them or none; those that are there already are left out.
    pub(crate) fn insert_profiles(&self, profiles: &[Profile]) -> Result<(), StoreError> {
        self.insert_profiles_with(profiles, || {})
    }

    /// The same; `between` is called where the store is free for others meanwhile.
    pub(super) fn insert_profiles_with(&self, profiles: &[Profile], between: impl FnMut()) -> Result<(), StoreError> {
        let done = self.number_ahead(profiles, between).and_then(|ahead| self.insert_numbered(profiles, &ahead));
        let (added, samples) = match done {
            Ok(done) => done,
            Err(error) => {
                self.names_left.store(true, Relaxed);
                self.limits.enforce()?;
                return Err(error);
            }
        };
        self.inserted.add_profiles(profiles.len(), added, samples);
        Ok(())
    }

    /// How many profiles and samples were added.
    fn insert_numbered(&self, profiles: &[Profile], ahead: &Ahead) -> Result<(usize, usize), StoreError> {
        self.transaction(|connection, interned| {
            let (mut added, mut samples) = (0, 0);
            for (at, profile) in profiles.iter().enumerate() {
                let numbered = ahead.of(at, interned);
                if insert_profile(connection, interned, profile, numbered, || self.go_on())? {
                    added += 1;
                    samples += profile.parts.iter().map(|part| part.samples.len()).sum::<usize>();
                }
            }
            Ok((added, samples))
        })
    }

    /// Adds spans; one that is there already (a repeated export) is replaced.
    pub(crate) fn insert_spans(&self, spans: &[Span]) -> Result<(), StoreError> {
        let spans_added = last_of_each(spans);
        self.transaction(|connection, interned| {
            let mut new_names: HashMap<SpanId, NewName> = HashMap::default();
            for span in &spans_added {
                self.go_on()?;
                let name = insert_span(connection, interned, span)?;
                new_names.entry(span.span).and_modify(|known| known.add(name)).or_insert(NewName::One(name));
            }
            let mut changes = Changes::default();
            for (span, name) in new_names {
                rename(connection, interned, (span, name), &mut changes, || self.go_on())?;
            }
            joined::add_spans(connection, interned, &spans_added, &mut changes, || self.go_on())?;
            changes.write(connection)
        })?;
        self.inserted.add_spans(spans.len());
        Ok(())
    }

    /// Ends what is done at the connection where it must be given up: its time is over, or others wait.
    fn go_on(&self) -> rusqlite::Result<()> {
        if self.turns.is_over() { Err(interrupted()) } else { Ok(()) }
    }

    fn transaction<T>(
        &self,
        mut insert: impl FnMut(&Connection, &mut Interned) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let done = self.at_connection(|inner| self.write(inner, &mut insert))?;
        // It is stored, and what it takes must be made room for, whoever still waits.
        self.limits.enforce()?;
        Ok(done)
    }

    /// Writes in one transaction.
    pub(super) fn write<T>(
        &self,
        inner: &mut Inner,
        insert: impl FnOnce(&Connection, &mut Interned) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let Inner { connection, interned, .. } = &mut *inner;
        interned.bound(self.limits.remembered());
        let transaction = connection.transaction()?;
        let done = insert(&transaction, interned).and_then(|done| transaction.commit().map(|()| done));
        if let Err(error) = &done {
            interned.clear();
            if is_full(error) {
                // So that the next one finds place, if there is any.
                make_place(connection)?;
            }
        }
        let done = done?;
        self.turns.stay();
        work::to_the_end(|| self.measure(inner))?;
        Ok(done)
    }
}

/// What a request calls a span.
#[derive(Clone, Copy)]
enum NewName {
    One(i64),
    /// Different names, in traces or services of their own.
    Many,
}

impl NewName {
    fn add(&mut self, name: i64) {
        if !matches!(self, Self::One(known) if *known == name) {
            *self = Self::Many;
        }
    }
}

/// Of spans that are there more than once the last, which replaces the others.
fn last_of_each(spans: &[Span]) -> Vec<&Span> {
    let mut seen: HashSet<(SpanId, TraceId, &str)> = HashSet::default();
    let mut last: Vec<&Span> =
        spans.iter().rev().filter(|span| seen.insert((span.span, span.trace, &span.service))).collect();
    last.reverse();
    last
}

/// False if the profile is there already.
fn insert_profile(
    connection: &Connection,
    interned: &mut Interned,
    profile: &Profile,
    ahead: Option<&Numbered>,
    go_on: impl Fn() -> rusqlite::Result<()>,
) -> rusqlite::Result<bool> {
    let now = clock::now();
    if let Some(mark) = profile.mark {
        let since = if mark.has_id { i64::MIN } else { now.saturating_sub(SAME_BYTES) };
        let mut known = connection.prepare_cached("SELECT 1 FROM profiles WHERE mark = ?1 AND received >= ?2")?;
        if known.exists(params![mark.hash, since])? {
            return Ok(false);
        }
    }
    let own;
    let numbered = match ahead {
        Some(ahead) => ahead,
        None => {
            own = Numbered::of(connection, interned, profile)?;
            &own
        }
    };
    let service = interned.string(connection, &profile.service)?;
    connection
        .prepare_cached("INSERT INTO profiles (service, time, received, mark) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![service, profile.time, now, profile.mark.map(|mark| mark.hash)])?;
    let id = connection.last_insert_rowid();
    let mut changes = Changes::default();
    let mut traces: BTreeMap<i64, BTreeMap<SpanId, TraceId>> = BTreeMap::new();
    for part in &profile.parts {
        go_on()?;
        let label = match &part.span_name {
            Some(name) => interned.string(connection, name)?,
            None => 0,
        };
        insert_part(connection, interned, (id, service, profile.time), (part, label), numbered.stacks(), &mut changes)?;
        // Each type of a profile names the same spans.
        traces.entry(label).or_default().extend(part.traces.iter().copied());
    }
    for (name, traces) in traces.iter().filter(|(_, traces)| !traces.is_empty()) {
        connection
            .prepare_cached("INSERT INTO profile_traces (profile, name, spans) VALUES (?1, ?2, ?3)")?
            .execute(params![id, name, profile_traces::pack(traces)])?;
    }
    changes.write(connection)?;
    Ok(true)
}

fn insert_part(
    connection: &Connection,
    interned: &mut Interned,
    (profile, service, time): (i64, i64, i64),
    (part, label): (&Part, i64),
    stacks: &[i64],
    changes: &mut Changes,
) -> rusqlite::Result<()> {
    let profile_type = find_or_add(
        connection,
        "SELECT id FROM kinds WHERE text = ?1 AND name = ?2 AND unit = ?3 AND main = ?4",
        "INSERT INTO kinds (text, name, unit, main) VALUES (?1, ?2, ?3, ?4)",
        params![part.profile_type.text, part.profile_type.name, part.profile_type.unit, part.profile_type.main],
    )?;
    let series = find_or_add(
        connection,
        "SELECT id FROM series WHERE kind = ?1 AND period = ?2 AND labels = ?3 AND service = ?4 AND span_name = ?5",
        "INSERT INTO series (kind, period, labels, service, span_name) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![profile_type, part.period, part.labels, service, label],
    )?;
    connection.prepare_cached("INSERT INTO parts (profile, series, time, value) VALUES (?1, ?2, ?3, ?4)")?.execute(
        params![profile, series, time, part.samples.iter().map(|sample| sample.value).fold(0, i64::saturating_add)],
    )?;
    let id = connection.last_insert_rowid();

    let of_spans: HashMap<SpanId, TraceId> = part.traces.iter().copied().collect();
    let mut names = SpanNames::of(connection)?;
    let mut insert = connection.prepare_cached(
        "INSERT INTO span_sums (part, span, name, value, count, stacks) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    for (span, mut entries) in by_span(&part.samples, stacks) {
        let name = match span {
            None => label,
            Some(span) => {
                // Its trace knows its name best, its label is next.
                let final_name = names.get(span, of_spans.get(&span).copied(), service)?;
                final_name.iter().for_each(|name| interned.refer(*name, iter::empty()));
                final_name.unwrap_or(if label == 0 { UNNAMED_ID } else { label })
            }
        };
        stack_blob::merge(&mut entries);
        let (value, count) = stack_blob::sum(&entries);
        let span = span.map_or(0, SpanId::to_column);
        insert.execute(params![id, span, name, value, count, stack_blob::pack(&entries)])?;
        changes.add(series, time, name).append(&mut entries);
    }
    if part.timed.is_empty() {
        Ok(())
    } else {
        joined::add_samples(connection, interned, id, &part.timed, stacks, changes)
    }
}

/// The samples of each span, with the stacks' numbers in the store.
fn by_span(samples: &[Sample], stacks: &[i64]) -> BTreeMap<Option<SpanId>, Vec<Entry>> {
    let mut spans: BTreeMap<_, Vec<Entry>> = BTreeMap::new();
    for sample in samples {
        spans.entry(sample.span).or_default().push((stacks[sample.stack], sample.value, sample.count));
    }
    spans
}

/// Adds a span or replaces it; the number of its name.
fn insert_span(connection: &Connection, interned: &mut Interned, span: &Span) -> rusqlite::Result<i64> {
    let service = interned.string(connection, &span.service)?;
    let name = interned.string(connection, &span.name)?;
    // INSERT OR REPLACE would make SQLite keep a second copy of each page that it changes, to undo that one row.
    let known: Option<i64> = connection
        .prepare_cached("SELECT id FROM spans WHERE span = ?1 AND trace = ?2 AND service = ?3")?
        .query_row(params![span.span.to_column(), span.trace.to_column(), service], |row| row.get(0))
        .optional()?;
    if let Some(known) = known {
        connection.prepare_cached("DELETE FROM spans WHERE id = ?1")?.execute(params![known])?;
    }
    connection
        .prepare_cached(
            "INSERT INTO spans
             (trace, span, parent, service, name, start, duration, status, root, profiled, attributes, place, told)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
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
            span.place.map(|place| place.number),
            span.place.map(|place| place.told_bytes()),
        ])?;
    Ok(name)
}

/// Gives samples that came before their span's traces the name that these know: once for all spans of an id that came, as
/// each time moves all their stacks.
fn rename(
    connection: &Connection,
    interned: &mut Interned,
    (span, new): (SpanId, NewName),
    changes: &mut Changes,
    go_on: impl Fn() -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(MISNAMED)?;
    let right = match new {
        NewName::One(name) => name,
        NewName::Many => NO_NAME,
    };
    let mut rows = statement.query(params![span.to_column(), right])?;
    let mut names = None;
    let mut renamed: Vec<(i64, i64)> = Vec::new();
    while let Some(row) = rows.next()? {
        go_on()?;
        let trace = profile_traces::of_profile(connection, row.get(5)?, span)?;
        let names = match &mut names {
            Some(names) => names,
            none => none.insert(SpanNames::of(connection)?),
        };
        let before = row.get(0)?;
        let Some(name) = names.get(span, trace, row.get(6)?)?.filter(|name| *name != before) else {
            continue;
        };
        renamed.push((row.get(4)?, name));
        let (series, time) = (row.get(1)?, row.get(2)?);
        let mut entries = Vec::new();
        stack_blob::unpack(row.get_ref(3)?.as_blob().map_err(rusqlite::Error::from)?, |entry| entries.push(entry))?;
        interned.refer(name, entries.iter().map(|(stack, ..)| *stack));
        let taken = entries.iter().map(|(stack, value, count)| (*stack, -value, -count));
        changes.add(series, time, before).extend(taken);
        changes.add(series, time, name).append(&mut entries);
        changes.write_if_many(connection)?;
    }
    let mut update = connection.prepare_cached("UPDATE span_sums SET name = ?3 WHERE part = ?1 AND span = ?2")?;
    renamed.into_iter().try_for_each(|(part, name)| update.execute(params![part, span.to_column(), name]).map(drop))
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;
    use crate::selection::{Selection, TimeRange};
    use crate::span_status::Status;
    use crate::store::StorageLimits;

    fn span(number: u8) -> Span {
        Span {
            trace: TraceId::from_bytes(&[number; 16]).unwrap(),
            span: SpanId::from_bytes(&[number; 8]).unwrap(),
            parent: None,
            service: "shop".into(),
            name: "GET /cart".into(),
            start: i64::from(number),
            duration: 1,
            status: Status::Unset,
            root: Some(true),
            profiled: true,
            attributes: "{}".into(),
            place: None,
        }
    }

    /// The names whose spans burnt anything, with their CPU.
    fn names(store: &Store, service: &str) -> Vec<(String, i64)> {
        let sums = store.span_names(&everything().service(service), None, None, |_, _| 1).unwrap();
        assert!(sums.rest.is_none() && sums.outside.cpu.is_none());
        let mut names: Vec<_> =
            sums.names.into_iter().filter_map(|named| Some((named.name, named.sum.cpu?.0))).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_asked_for_each_span_is_prepared_once() {
        let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
        store.insert_spans(&(1..=20).map(span).collect::<Vec<_>>()).unwrap();
        let inner = store.lock();
        let statement = inner.connection.prepare_cached(MISNAMED).unwrap();
        assert_eq!(statement.get_status(StatementStatus::Run), 20);
        assert_eq!(statement.get_status(StatementStatus::RePrepare), 0);
    }

    #[test]
    fn samples_of_spans_that_come_again_and_again_are_renamed_once() {
        let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
        store.insert_profile(&profile("shop", "work", Some((1, 9)))).unwrap();
        // A hundred times the same one, and one of each of a hundred other traces, which these samples do not name.
        let spans: Vec<_> = (0..200)
            .map(|number| Span {
                trace: TraceId::from_bytes(&[if number < 100 { 1 } else { number }; 16]).unwrap(),
                name: format!("name {number}"),
                ..span(9)
            })
            .collect();
        store.insert_spans(&spans).unwrap();
        let inner = store.lock();
        let statement = inner.connection.prepare_cached(MISNAMED).unwrap();
        assert_eq!(statement.get_status(StatementStatus::Run), 1);
        drop(statement);
        drop(inner);
        assert_eq!(names(&store, "shop")[0].0, "name 99");
        assert_eq!(store.trace(TraceId::from_bytes(&[1; 16]).unwrap()).unwrap().len(), 1);
    }

    #[test]
    fn samples_without_a_trace_have_the_name_of_the_newest_span_of_their_id() {
        let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
        let mut of_no_trace = profile("shop", "work", Some((1, 9)));
        of_no_trace.parts[0].traces.clear();
        store.insert_profile(&of_no_trace).unwrap();
        let named = |trace: u8, name: &str| Span {
            trace: TraceId::from_bytes(&[trace; 16]).unwrap(),
            name: name.into(),
            ..span(9)
        };
        store.insert_spans(&[named(1, "first"), named(2, "second"), named(3, "second"), named(4, "third")]).unwrap();
        assert_eq!(names(&store, "shop"), [("third".to_owned(), 10)]);
    }

    #[test]
    fn a_trace_is_found_whose_span_ids_all_stand_in_another_one_too() {
        let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
        let traces = [1, 2].map(|trace| TraceId::from_bytes(&[trace; 16]).unwrap());
        let ids: Vec<_> = (1..=1_100_u64).map(|id| SpanId::from_bytes(&id.to_be_bytes()).unwrap()).collect();
        for trace in traces {
            let spans: Vec<_> = ids.iter().map(|id| Span { trace, span: *id, ..span(9) }).collect();
            store.insert_spans(&spans).unwrap();
        }
        let mut profile = profile("shop", "work", None);
        profile.parts[0].samples =
            ids.iter().map(|id| Sample { span: Some(*id), ..profile.parts[0].samples[0] }).collect();
        profile.parts[0].traces = ids.iter().map(|id| (*id, traces[1])).collect();
        store.insert_profile(&profile).unwrap();
        let samples = |trace| {
            let stacks = store.stacks(&Selection { trace: Some(trace), ..everything() }).unwrap();
            stacks.sums.iter().map(|sum| sum.2).sum::<i64>()
        };
        assert_eq!(traces.map(samples), [0, 1_100]);
    }

    fn everything() -> Selection {
        Selection { profile_type: "process_cpu".into(), ..Selection::everything() }.time_range(TimeRange::Stored)
    }

    fn profile(service: &str, function: &str, span: Option<(u8, u8)>) -> Profile {
        let mut profile = Profile { service: service.into(), ..Profile::of(function) };
        if let Some((trace, span)) = span {
            let ids = (SpanId::from_bytes(&[span; 8]).unwrap(), TraceId::from_bytes(&[trace; 16]).unwrap());
            profile.parts[0].samples[0].span = Some(ids.0);
            profile.parts[0].traces.push(ids);
        }
        profile
    }

    #[test]
    fn a_request_is_stored_whole_or_not_at_all() {
        let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
        let both = [profile("shop", "first", None), profile("shop", "second", None)];
        let second_fails = "CREATE TRIGGER broken BEFORE INSERT ON profiles WHEN (SELECT count(*) FROM profiles) = 1
                            BEGIN SELECT RAISE(ABORT, 'no'); END";
        store.lock().connection.execute_batch(second_fails).unwrap();
        assert!(store.insert_profiles(&both).unwrap_err().to_string().contains("no"));
        assert!(store.is_empty().unwrap());
        assert_eq!(store.inserted().profiles, 0);
        // Nor is anything remembered of what was not stored.
        store.lock().connection.execute_batch("DROP TRIGGER broken").unwrap();
        store.insert_profiles(&both).unwrap();
        let stacks = store.stacks(&everything()).unwrap();
        let mut names: Vec<_> = stacks.sums.iter().flat_map(|sum| stacks.names(sum.0)).collect();
        names.sort_unstable();
        assert_eq!(names, ["first", "second"]);
    }

    #[test]
    fn a_full_disk_heals() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(Some(&folder.path().join("spanprof.db")), &StorageLimits::new(u64::MAX)).unwrap();
        let pages: i64 = store.lock().connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        let limit = |pages: i64| {
            store.lock().connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(())).unwrap();
        };
        limit(pages + 10);
        let mut number = 0;
        let full = loop {
            number += 1;
            let name = format!("{number} {}", "n".repeat(2_000));
            if let Err(error) = store.insert_profile(&profile("shop", &name, None)) {
                break error;
            }
        };
        assert!(full.to_string().contains("full"), "{full}");
        // It forgets on a disk that is full, and takes what comes then.
        store.retain(3_600 * clock::SECOND).unwrap();
        assert_eq!(store.forgotten().profiles_by_age, number - 1);
        store.insert_profile(&profile("shop", "after", None)).unwrap();
        limit(1 << 20);
        store.insert_profile(&profile("shop", &"n".repeat(1 << 20), None)).unwrap();
    }

    #[test]
    fn spans_of_one_id_in_two_traces_are_kept_apart() {
        let named = |trace: u8, service: &str, name: &str| Span {
            trace: TraceId::from_bytes(&[trace; 16]).unwrap(),
            service: service.into(),
            name: name.into(),
            ..span(9)
        };
        let spans = [named(1, "shop", "GET /cart"), named(2, "search", "GET /find"), named(3, "shop", "GET /pay")];
        let profiles = [
            profile("shop", "a", Some((1, 9))),
            profile("search", "b", Some((2, 9))),
            profile("shop", "c", Some((3, 9))),
            profile("else", "d", Some((4, 9))),
        ];
        // In whatever order they come.
        for spans_first in [true, false] {
            let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
            if spans_first {
                store.insert_spans(&spans).unwrap();
            }
            store.insert_profiles(&profiles).unwrap();
            if !spans_first {
                store.insert_spans(&spans).unwrap();
            }
            let of = |service| names(&store, service);
            let row = |name: &str| (name.to_owned(), 10);
            assert_eq!(of("shop"), [row("GET /cart"), row("GET /pay")]);
            assert_eq!(of("search"), [row("GET /find")]);
            assert_eq!(of("else"), [row("(unnamed span)")], "its trace was not received");
            for trace in 1..=4 {
                let trace = TraceId::from_bytes(&[trace; 16]).unwrap();
                let id = SpanId::from_bytes(&[9; 8]).unwrap();
                assert_eq!(store.sums_of_spans(trace, &[id]).unwrap()[&id].cpu, Some((10, 1)));
                assert_eq!(store.trace(trace).unwrap().len(), 1);
                let selection = Selection { trace: Some(trace), ..everything() };
                assert_eq!(store.stacks(&selection).unwrap().sums.len(), 1);
            }
        }
    }
}
