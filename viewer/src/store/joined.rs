//! Samples without a span that join one by time: the innermost that its process and thread had open when they were taken. Samples and
//! spans come in any order, so samples wait for spans for some minutes.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::connection::StoreError;
use super::database::Store;
use super::intern::Interned;
use super::known_names::SpanNames;
use super::rollup::Changes;
use super::rows::{Place, Span, TOLD, TimedSamples};
use super::sample_query::SampleQuery;
use super::schema::UNNAMED_ID;
use super::stack_blob::{self, Entry};
use crate::clock;
use crate::ids::{SpanId, TraceId};
use crate::selection::Selection;

/// How long samples wait for spans.
const PATIENCE: i64 = 15 * 60 * clock::SECOND;
/// Bytes of a sample that waits: time, stack, value, number of samples, and the span that it has with the start of that.
const RECORD: usize = 48;
/// Samples of a row, as each is read as a whole.
const AT_ONCE: usize = 4_096;
/// Rows that are found at a time.
const ROWS_AT_ONCE: i64 = 256;

/// A sample that waits.
#[derive(Clone, Copy)]
struct Waiting {
    time: i64,
    entry: Entry,
    /// 0 = none yet.
    span: i64,
    /// Start of the span.
    start: i64,
}

/// A span that its process and thread had open. The innermost of several is the one that began last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Open {
    start: i64,
    end: i64,
    span: SpanId,
    trace: TraceId,
}

/// The innermost span of each sample of a row. A thread may have had any number of spans open, and each is looked at once and not
/// kept: entry n + i is that of sample i of n, and entry i one that holds for all that are below its entries 2 i and 2 i + 1.
struct Innermost(Vec<Option<Open>>);

impl Innermost {
    fn of(samples: usize) -> Self {
        Self(vec![None; 2 * samples])
    }

    /// Adds a span that was open at the samples from the first one to before the second one.
    fn add(&mut self, (from, to): (usize, usize), span: Open) {
        let samples = self.0.len() / 2;
        let (mut from, mut to) = (from + samples, to + samples);
        while from < to {
            if from % 2 == 1 {
                self.0[from] = self.0[from].max(Some(span));
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                self.0[to] = self.0[to].max(Some(span));
            }
            (from, to) = (from / 2, to / 2);
        }
    }

    fn at(&self, sample: usize) -> Option<Open> {
        let entries = std::iter::successors(Some(sample + self.0.len() / 2), |entry| Some(entry / 2));
        entries.take_while(|entry| *entry > 0).filter_map(|entry| self.0[entry]).max()
    }
}

impl Store {
    /// Whether samples of a selection belong to their spans by time alone.
    pub(crate) fn has_joined(&self, selection: &Selection) -> Result<bool, StoreError> {
        self.read(|connection| {
            let none = "SELECT NOT EXISTS (SELECT 1 FROM span_sums WHERE joined)";
            if connection.prepare_cached(none)?.query_row([], |row| row.get(0))? {
                return Ok(false);
            }
            let mut query = SampleQuery::new(connection, selection)?;
            query.of_profiles();
            query.and("s.joined", []);
            let mut found = false;
            query.each(connection, "1", |_| {
                found = true;
                Ok(())
            })?;
            Ok(found)
        })
    }
}

/// Lets the samples of a part wait, and join what is there; `stacks` are the numbers of its stacks.
pub(super) fn add_samples(
    connection: &Connection,
    interned: &mut Interned,
    part: i64,
    timed: &[TimedSamples],
    stacks: &[i64],
    changes: &mut Changes,
) -> rusqlite::Result<()> {
    forget_old(connection)?;
    for TimedSamples { place, samples } in timed {
        let mut waiting: Vec<Waiting> = samples
            .iter()
            .map(|sample| Waiting {
                time: sample.time,
                entry: (stacks[sample.stack], sample.value, sample.count),
                span: 0,
                start: 0,
            })
            .collect();
        waiting.sort_unstable_by_key(|sample| (sample.time, sample.entry));
        for waiting in waiting.chunks(AT_ONCE) {
            let (Some(first), Some(last)) = (waiting.first(), waiting.last()) else { continue };
            connection
                .prepare_cached(
                    "INSERT INTO timed_samples (place, told, part, first, last, received, samples)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                )?
                .execute(params![
                    place.number,
                    place.told_bytes(),
                    part,
                    first.time,
                    last.time,
                    clock::now(),
                    pack(waiting)
                ])?;
            join(connection, interned, connection.last_insert_rowid(), changes)?;
        }
    }
    Ok(())
}

/// Lets samples join spans that came.
pub(super) fn add_spans(
    connection: &Connection,
    interned: &mut Interned,
    spans: &[&Span],
    changes: &mut Changes,
    go_on: impl Fn() -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let mut by_place: BTreeMap<i64, Vec<(i64, i64)>> = BTreeMap::new();
    for (span, place) in spans.iter().filter_map(|span| Some((span, span.place?))) {
        by_place.entry(place.number).or_default().push((span.start, span.start.saturating_add(span.duration)));
    }
    for (place, mut times) in by_place {
        times.sort_unstable();
        // Each end becomes the last one of all that began no later, so that one look tells whether any was open.
        let mut latest = i64::MIN;
        for (_, end) in &mut times {
            latest = latest.max(*end);
            *end = latest;
        }
        let is_in_one = |(first, last)| {
            let began = times.partition_point(|(start, _)| *start <= last);
            began > 0 && times[began - 1].1 >= first
        };
        let mut after = (times[0].0.saturating_sub(1), i64::MAX);
        loop {
            let rows = rows_after(connection, place, after, latest)?;
            let Some(((_, last), row)) = rows.last() else { break };
            after = (*last, *row);
            for (_, row) in rows.iter().filter(|(times, _)| is_in_one(*times)) {
                go_on()?;
                join(connection, interned, *row, changes)?;
                changes.write_if_many(connection)?;
            }
        }
    }
    Ok(())
}

/// Rows of a place that begin until a time, with the times of their samples: some that come after another one by their last sample.
fn rows_after(
    connection: &Connection,
    place: i64,
    (last, row): (i64, i64),
    until: i64,
) -> rusqlite::Result<Vec<((i64, i64), i64)>> {
    let mut statement = connection.prepare_cached(
        "SELECT first, last, id FROM timed_samples WHERE place = ?1 AND (last, id) > (?2, ?3) AND first <= ?4
         ORDER BY last, id LIMIT ?5",
    )?;
    let rows = statement.query_map(params![place, last, row, until, ROWS_AT_ONCE], |row| {
        Ok(((row.get(0)?, row.get(1)?), row.get(2)?))
    })?;
    rows.collect()
}

fn forget_old(connection: &Connection) -> rusqlite::Result<()> {
    let oldest = clock::now().saturating_sub(PATIENCE);
    connection.prepare_cached("DELETE FROM timed_samples WHERE received < ?1")?.execute(params![oldest]).map(drop)
}

/// Gives the samples of a row the innermost span that was open when they were taken.
fn join(connection: &Connection, interned: &mut Interned, row: i64, changes: &mut Changes) -> rusqlite::Result<()> {
    let (place, part, first, last, samples): (Place, i64, i64, i64, Vec<u8>) = connection
        .prepare_cached("SELECT place, told, part, first, last, samples FROM timed_samples WHERE id = ?1")?
        .query_row(params![row], |row| {
            let place = Place { number: row.get(0)?, told: told(row.get_ref(1)?.as_blob()?) };
            Ok((place, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
        })?;
    let mut waiting = unpack(&samples);
    let Some(spans) = innermost(connection, &place, (first, last), &waiting)? else { return Ok(()) };
    let mut moved: BTreeMap<i64, Vec<Entry>> = BTreeMap::new();
    let mut traces: BTreeMap<i64, Open> = BTreeMap::new();
    for (at, sample) in waiting.iter_mut().enumerate() {
        let Some(span) = spans.at(at) else { continue };
        let to = span.span.to_column();
        if to == sample.span || (sample.span != 0 && span.start <= sample.start) {
            continue;
        }
        let (stack, value, count) = sample.entry;
        moved.entry(sample.span).or_default().push((stack, -value, -count));
        moved.entry(to).or_default().push((stack, value, count));
        traces.insert(to, span);
        (sample.span, sample.start) = (to, span.start);
    }
    if moved.is_empty() {
        return Ok(());
    }
    connection
        .prepare_cached("UPDATE timed_samples SET samples = ?2 WHERE id = ?1")?
        .execute(params![row, pack(&waiting)])?;
    let known = connection
        .prepare_cached(
            "SELECT parts.series, parts.time, profiles.service FROM parts JOIN profiles ON profiles.id = parts.profile
             WHERE parts.id = ?1",
        )?
        .query_row(params![part], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?)))
        .optional()?;
    let Some((series, time, service)) = known else { return Ok(()) };
    let mut names = SpanNames::of(connection)?;
    for (span, mut entries) in moved {
        let stored: Option<(i64, Vec<u8>)> = connection
            .prepare_cached("SELECT name, stacks FROM span_sums WHERE part = ?1 AND span = ?2")?
            .query_row(params![part, span], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let name = match (&stored, traces.get(&span)) {
            (Some((name, _)), _) => *name,
            (None, Some(open)) => names.get(open.span, Some(open.trace), service)?.unwrap_or(UNNAMED_ID),
            // Samples that are outside of spans have a row.
            (None, None) => continue,
        };
        interned.refer(name, entries.iter().map(|(stack, ..)| *stack));
        changes.add(series, time, name).extend(&entries);
        if let Some((_, stored)) = &stored {
            stack_blob::unpack(stored, |entry| entries.push(entry))?;
        }
        stack_blob::merge(&mut entries);
        if entries.is_empty() {
            let mut delete = connection.prepare_cached("DELETE FROM span_sums WHERE part = ?1 AND span = ?2")?;
            delete.execute(params![part, span])?;
            continue;
        }
        let (value, count) = stack_blob::sum(&entries);
        connection
            .prepare_cached(
                "INSERT INTO span_sums (part, span, name, value, count, stacks, joined)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?2 != 0)
                 ON CONFLICT DO UPDATE SET value = excluded.value, count = excluded.count, stacks = excluded.stacks,
                                           joined = excluded.joined",
            )?
            .execute(params![part, span, name, value, count, stack_blob::pack(&entries)])?;
    }
    Ok(())
}

/// The innermost span of each of these samples of a place, which are in order of time; none where no span was open.
fn innermost(
    connection: &Connection,
    place: &Place,
    (first, last): (i64, i64),
    samples: &[Waiting],
) -> rusqlite::Result<Option<Innermost>> {
    let mut statement = connection.prepare_cached(
        "SELECT start, start + duration, span, trace, told FROM spans
         WHERE place IS NOT NULL AND place = ?1 AND start + duration >= ?2 AND start <= ?3",
    )?;
    let mut rows = statement.query(params![place.number, first, last])?;
    let mut found = None;
    while let Some(row) = rows.next()? {
        let (start, end) = (row.get(0)?, row.get(1)?);
        let ids = (SpanId::from_column(row.get(2)?), TraceId::from_bytes(row.get_ref(3)?.as_blob()?));
        if let (Some(span), Some(trace)) = ids
            && place.agrees_with(&told(row.get_ref(4)?.as_blob()?))
        {
            let from = samples.partition_point(|sample| sample.time < start);
            let to = samples.partition_point(|sample| sample.time <= end);
            let found = found.get_or_insert_with(|| Innermost::of(samples.len()));
            found.add((from, to), Open { start, end, span, trace });
        }
    }
    Ok(found)
}

/// What is said of a process, as it was stored.
fn told(bytes: &[u8]) -> [i64; TOLD] {
    let mut told = [0; TOLD];
    for (told, bytes) in told.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *told = i64::from_le_bytes(*bytes);
    }
    told
}

fn pack(waiting: &[Waiting]) -> Vec<u8> {
    let numbers = |sample: &Waiting| {
        let (stack, value, count) = sample.entry;
        [sample.time, stack, value, count, sample.span, sample.start]
    };
    waiting.iter().flat_map(numbers).flat_map(i64::to_le_bytes).collect()
}

fn unpack(bytes: &[u8]) -> Vec<Waiting> {
    let (records, _) = bytes.as_chunks::<RECORD>();
    let read = records.iter().map(|record| {
        let (numbers, _) = record.as_chunks::<8>();
        let number = |at: usize| i64::from_le_bytes(numbers[at]);
        Waiting { time: number(0), entry: (number(1), number(2), number(3)), span: number(4), start: number(5) }
    });
    read.collect()
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prop_assert_eq, proptest};

    use super::super::rows::{Profile, Sample, TimedSample};
    use super::super::storage_limits::StorageLimits;
    use super::*;
    use crate::selection::TimeRange;
    use crate::span_status::Status;

    /// Service, instance, container, host: what is said of the process.
    const SAID: [i64; TOLD] = [1, 0, 3, 0, 0];

    fn span(id: u8, thread: i64, told: [i64; TOLD], (start, end): (i64, i64)) -> Span {
        Span {
            trace: TraceId::from_bytes(&[9; 16]).unwrap(),
            span: SpanId::from_bytes(&[id; 8]).unwrap(),
            parent: None,
            service: "shop".into(),
            name: format!("span {id}"),
            start,
            duration: end - start,
            status: Status::Unset,
            root: None,
            profiled: false,
            attributes: "{}".into(),
            place: Some(Place::of(7, thread, told)),
        }
    }

    /// A sample of ten at each of these times.
    fn profile(thread: i64, told: [i64; TOLD], times: &[i64]) -> Profile {
        let mut profile = Profile::of("main");
        let count = i64::try_from(times.len()).unwrap();
        let part = &mut profile.parts[0];
        part.samples = vec![Sample { span: None, stack: 1, value: 10 * count, count }];
        let samples = times.iter().map(|time| TimedSample { time: *time, stack: 1, value: 10, count: 1 });
        part.timed = vec![TimedSamples { place: Place::of(7, thread, told), samples: samples.collect() }];
        profile
    }

    /// The values by span: of samples, and of the sums by name.
    fn values(store: &Store) -> [Vec<(String, i64, i64)>; 2] {
        let inner = store.lock();
        ["span_sums", "stack_sums"].map(|table| {
            let sql = format!(
                "SELECT coalesce(strings.text, ''), sum(value), sum(count) FROM {table}
                 LEFT JOIN strings ON strings.id = name GROUP BY name ORDER BY 1"
            );
            let mut statement = inner.connection.prepare(&sql).unwrap();
            let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
            rows.map(Result::unwrap).collect()
        })
    }

    fn store() -> std::sync::Arc<Store> {
        Store::open(None, &StorageLimits::new(u64::MAX)).unwrap()
    }

    #[test]
    fn samples_join_the_innermost_span_whatever_comes_first() {
        // 2 is within 1; 3 is of another thread, 4 of another process, and 5 over before.
        let spans = [
            span(1, 1, SAID, (100, 500)),
            span(2, 1, [1, 0, 3, 0, 5], (200, 300)),
            span(3, 2, SAID, (0, 900)),
            span(4, 1, [1, 0, 4, 0, 0], (0, 900)),
            span(5, 1, SAID, (10, 20)),
        ];
        let samples = || profile(1, SAID, &[50, 100, 250, 300, 301, 500, 501]);
        let of = |name: &str, count: i64| (name.to_owned(), 10 * count, count);
        let expected = vec![of("", 2), of("span 1", 3), of("span 2", 2)];
        type Step<'a> = &'a dyn Fn(&Store);
        let profile: Step<'_> = &|store| store.insert_profile(&samples()).unwrap();
        let all: Step<'_> = &|store| store.insert_spans(&spans).unwrap();
        let inner: Step<'_> = &|store| store.insert_spans(&spans[1..]).unwrap();
        let outer: Step<'_> = &|store| store.insert_spans(&spans[..1]).unwrap();
        for steps in [
            &[all, profile][..],
            &[profile, all],
            &[profile, inner, outer],
            &[profile, outer, inner],
            &[inner, profile, outer],
            &[outer, profile, inner, inner, outer],
        ] {
            let store = store();
            steps.iter().for_each(|step| step(&store));
            assert_eq!(values(&store), [expected.clone(), expected.clone()]);
            let selected = |id: u8| Selection::of_span(SpanId::from_bytes(&[id; 8]).unwrap());
            assert!(store.has_joined(&selected(2)).unwrap() && !store.has_joined(&selected(3)).unwrap());
            assert!(store.has_joined(&Selection::everything().time_range(TimeRange::Stored)).unwrap());
        }
    }

    proptest! {
        #[test]
        fn the_innermost_of_any_spans_is_the_one_that_began_last(
            mut times in collection::vec(0_i64..100, 1..40), spans in collection::vec((0_i64..100, 0_i64..60), 0..40),
        ) {
            times.sort_unstable();
            let trace = TraceId::from_bytes(&[9; 16]).unwrap();
            let spans: Vec<Open> = (1_u64..).zip(spans).map(|(id, (start, length))| {
                Open { start, end: start + length, span: SpanId::from_bytes(&id.to_be_bytes()).unwrap(), trace }
            }).collect();
            let mut innermost = Innermost::of(times.len());
            for span in &spans {
                let from = times.partition_point(|time| *time < span.start);
                innermost.add((from, times.partition_point(|time| *time <= span.end)), *span);
            }
            for (at, time) in times.iter().enumerate() {
                let open = spans.iter().filter(|span| span.start <= *time && *time <= span.end);
                prop_assert_eq!(innermost.at(at), open.max().copied());
            }
        }
    }

    #[test]
    fn all_rows_of_a_thread_are_found_and_those_between_spans_left_alone() {
        let store = store();
        let rows = 3 * ROWS_AT_ONCE;
        for time in 0..rows {
            store.insert_profile(&profile(1, SAID, &[10 * time])).unwrap();
        }
        let spans = [span(1, 1, SAID, (0, 10 * ROWS_AT_ONCE)), span(2, 1, SAID, (20 * ROWS_AT_ONCE + 1, 10 * rows))];
        store.insert_spans(&spans).unwrap();
        let of = |name: &str, count: i64| (name.to_owned(), 10 * count, count);
        let (first, second) = (ROWS_AT_ONCE + 1, ROWS_AT_ONCE - 1);
        let expected = vec![of("", rows - first - second), of("span 1", first), of("span 2", second)];
        assert_eq!(values(&store), [expected.clone(), expected]);
    }

    #[test]
    fn what_is_forgotten_waits_no_more() {
        let store = store();
        store.insert_profile(&profile(1, SAID, &[250])).unwrap();
        store.retain(i64::MAX).unwrap();
        store
            .insert_spans(&[Span { start: i64::MAX - 1, ..span(2, 1, SAID, (0, 1)) }, span(1, 1, SAID, (100, 500))])
            .unwrap();
        assert_eq!(values(&store), [vec![], vec![]]);
        let rows: i64 =
            store.lock().connection.query_row("SELECT count(*) FROM timed_samples", [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 0);
    }

    #[test]
    fn many_samples_are_in_many_rows() {
        let store = store();
        let times: Vec<i64> = (0..10_000).collect();
        store.insert_profile(&profile(1, SAID, &times)).unwrap();
        store.insert_spans(&[span(1, 1, SAID, (4_000, 8_999))]).unwrap();
        let expected = vec![(String::new(), 50_000, 5_000), ("span 1".to_owned(), 50_000, 5_000)];
        assert_eq!(values(&store), [expected.clone(), expected]);
        let rows: i64 =
            store.lock().connection.query_row("SELECT count(*) FROM timed_samples", [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 3);
    }

    #[test]
    fn a_process_is_told_by_what_both_say() {
        let place = |told| Place::of(1, 1, told);
        for (own, other, agrees) in [
            ([1, 0, 0, 0, 0], [1, 0, 0, 0, 0], true),
            ([1, 0, 0, 0, 5], [0, 0, 3, 0, 5], true),
            ([1, 0, 0, 0, 5], [1, 0, 3, 0, 0], false),
            ([1, 0, 0, 0, 0], [1, 0, 0, 0, 5], false),
            ([1, 0, 0, 0, 5], [1, 0, 0, 0, 6], false),
            ([1, 0, 0, 0, 0], [0, 0, 0, 0, 5], false),
            ([0; TOLD], [0; TOLD], false),
        ] {
            assert_eq!(place(own).agrees_with(&other), agrees, "{own:?} {other:?}");
            assert_eq!(told(&place(own).told_bytes()), own);
        }
        assert_ne!(place(SAID).number, Place::of(1, 2, SAID).number);
    }
}
