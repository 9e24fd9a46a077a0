//! The samples of a selection with the spans that they are of, and when they were taken: what a pprof is made from.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use rusqlite::{Connection, Row};

use super::connection::{StoreError, too_many_spans};
use super::database::Store;
use super::sample_query::SampleQuery;
use super::samples::text;
use super::schema::UNNAMED_ID;
use super::snapshots::{Snapshots, Whole};
use super::stack_blob;
use crate::clock;
use crate::ids::{SpanId, TraceId};
use crate::selection::Selection;

/// Bytes that a stack of an origin takes while it is added up, and in the result.
const OF_ENTRY: usize = 256;

/// What samples say that they are of.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Origin {
    /// The name of their span, where it is known.
    pub(crate) name: Option<Arc<str>>,
    pub(crate) span: Option<SpanId>,
    pub(crate) trace: Option<TraceId>,
    /// Of profiles of all time, what was done in it: the label `state`.
    pub(crate) state: Option<Arc<str>>,
    /// Whether it is the span's own time, or beside it: the label `flow`.
    pub(crate) flow: Option<Arc<str>>,
}

/// The samples of a selection by what they are of.
#[derive(Debug, Default)]
pub(crate) struct Labelled {
    /// Origin, stack and value; each pair of origin and stack once.
    pub(crate) rows: Vec<(Origin, i64, i64)>,
    /// Start of the first profile, and what is between that and the end of the last.
    pub(crate) time: i64,
    pub(crate) duration: i64,
    /// Whether there are more than an answer may have; then there is none.
    pub(crate) is_cut: bool,
    /// Whether values are averaged over profiles, and so are of no single span.
    pub(crate) is_averaged: bool,
    /// Whether spans are told apart, or their names alone.
    pub(crate) has_spans: bool,
    /// Whether states and flows are.
    pub(crate) has_states: bool,
}

impl Labelled {
    /// Leaves the spans, of which their names stay.
    pub(crate) fn forget_spans(&mut self) {
        self.change(|origin| Origin { span: None, trace: None, ..origin });
        self.has_spans = false;
    }

    /// Leaves the states, of which names stay.
    pub(crate) fn forget_states(&mut self) {
        self.change(|origin| Origin { state: None, flow: None, ..origin });
        self.has_states = false;
    }

    /// Adds up what is of one origin then.
    fn change(&mut self, change: impl Fn(Origin) -> Origin) {
        let mut sums: BTreeMap<(Origin, i64), i64> = BTreeMap::new();
        for (origin, stack, value) in std::mem::take(&mut self.rows) {
            let sum = sums.entry((change(origin), stack)).or_default();
            *sum = sum.saturating_add(value);
        }
        self.rows = sums.into_iter().map(|((origin, stack), value)| (origin, stack, value)).collect();
    }
}

/// What samples of a stack say that they are of, before names are looked up.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Source {
    /// The number of the span's name.
    name: i64,
    span: Option<SpanId>,
    profile: i64,
    series: i64,
}

/// The labels `state` and `flow` of a series.
type OfSeries = [Option<Arc<str>>; 2];

/// What is read of a selection before names are looked up.
#[derive(Default)]
struct Read {
    /// By stack; in parts, where values are averaged.
    sums: HashMap<(Source, i64), i64>,
    /// Of profiles of all time, by the numbers of their series.
    states: HashMap<i64, OfSeries>,
    /// What values are averaged over, where they are not added.
    snapshots: Option<Snapshots>,
    first: i64,
    last: i64,
}

impl Store {
    /// The samples of a selection by span, by the name of their span alone where that would take more than an answer may, or where values
    /// are averaged over many; none at all where there are too many names.
    pub(crate) fn labelled(&self, selection: &Selection) -> Result<Labelled, StoreError> {
        let most = self.limits.answer() / OF_ENTRY;
        match self.read_by_span(selection, most) {
            Ok(read) if read.snapshots.is_none() => {
                let spans: Vec<(i64, SpanId)> =
                    read.sums.keys().filter_map(|(source, _)| Some((source.profile, source.span?))).collect();
                let traces = self.traces_of_spans(&spans)?;
                return self.with_names(
                    read,
                    |span, profile| (Some(span), traces.get(&(profile, span)).copied()),
                    true,
                );
            }
            Ok(_) => {}
            Err(error) if error.is_too_large() => {}
            Err(error) => return Err(error),
        }
        let (first, last) = self.time_of(selection)?;
        match self.read_by_name(selection, most) {
            Ok(read) => self.with_names(Read { first, last, ..read }, |_, _| (None, None), false),
            Err(error) if error.is_too_large() => Ok(Labelled {
                is_cut: true,
                time: first,
                duration: last.saturating_sub(first).max(0),
                ..Labelled::default()
            }),
            Err(error) => Err(error),
        }
    }

    /// From when to when what is stored of a selection may be.
    fn time_of(&self, selection: &Selection) -> Result<(i64, i64), StoreError> {
        let (from, to) = selection.time_range.bounds();
        let stored = self.profile_times()?.map_or(from, |(first, _)| first);
        Ok((from.max(stored), to.min(clock::now())))
    }

    fn read_by_span(&self, selection: &Selection, most: usize) -> Result<Read, StoreError> {
        self.read(|connection| {
            let mut read = Read { first: i64::MAX, ..Read::default() };
            let columns = "s.name, s.span, parts.profile, series.id, s.stacks, parts.time,
                           (SELECT received FROM profiles WHERE profiles.id = parts.profile)";
            let mut query = SampleQuery::new(connection, selection)?;
            read.snapshots = Snapshots::of(connection, &query)?;
            if read.snapshots.is_some() {
                // They are averaged over many spans.
                return Ok(read);
            }
            query.of_profiles();
            query.each(connection, columns, |row| {
                let span = SpanId::from_column(row.get(1)?);
                let source = Source { name: row.get(0)?, span, profile: row.get(2)?, series: row.get(3)? };
                read.add(source, row.get_ref(4)?.as_blob()?, most)?;
                read.first = read.first.min(row.get(5)?);
                read.last = read.last.max(row.get::<_, Option<i64>>(6)?.unwrap_or(0));
                Ok(())
            })?;
            read.find_states(connection, selection)?;
            Ok(read)
        })
    }

    fn read_by_name(&self, selection: &Selection, most: usize) -> Result<Read, StoreError> {
        self.read(|connection| {
            let query = SampleQuery::new(connection, selection)?;
            let mut read = Read { snapshots: Snapshots::of(connection, &query)?, ..Read::default() };
            query.each(connection, "s.name, series.id, s.stacks", |row| {
                let source = Source { name: row.get(0)?, span: None, profile: 0, series: row.get(1)? };
                read.add(source, row.get_ref(2)?.as_blob()?, most)
            })?;
            read.find_states(connection, selection)?;
            Ok(read)
        })
    }

    /// Adds up what is of one origin.
    fn with_names(
        &self,
        read: Read,
        ids: impl Fn(SpanId, i64) -> (Option<SpanId>, Option<TraceId>),
        has_spans: bool,
    ) -> Result<Labelled, StoreError> {
        let numbers: HashSet<i64> = read.sums.keys().map(|(source, _)| source.name).collect();
        let names: HashMap<i64, Arc<str>> = self.read(|connection| {
            let named = numbers.iter().filter(|name| **name != 0 && **name != UNNAMED_ID);
            named.map(|name| Ok((*name, text(connection, *name)?.into()))).collect()
        })?;
        let mut sums: BTreeMap<(Origin, i64), i64> = BTreeMap::new();
        for ((source, stack), value) in read.sums {
            let (span, trace) = source.span.map_or((None, None), |span| ids(span, source.profile));
            let [state, flow] = read.states.get(&source.series).cloned().unwrap_or_default();
            let origin = Origin { name: names.get(&source.name).cloned(), span, trace, state, flow };
            let sum = sums.entry((origin, stack)).or_default();
            *sum = sum.saturating_add(value);
        }
        let rows = sums.into_iter().map(|((origin, stack), value)| (origin, stack, value)).collect();
        let is_averaged = read.snapshots.is_some();
        Ok(Labelled {
            rows: if is_averaged { whole_rows(rows) } else { rows },
            time: if read.first == i64::MAX { 0 } else { read.first },
            duration: read.last.saturating_sub(read.first).max(0),
            is_cut: false,
            is_averaged,
            has_spans,
            has_states: !read.states.is_empty(),
        })
    }
}

impl Read {
    /// Adds the stacks of a row; refuses more than `most` in all.
    fn add(&mut self, source: Source, stacks: &[u8], most: usize) -> rusqlite::Result<()> {
        let mut is_cut = false;
        stack_blob::unpack(stacks, |(stack, value, _)| {
            let value = self.snapshots.as_ref().map_or(value, |snapshots| snapshots.parts(source.series, value));
            if self.sums.len() < most || self.sums.contains_key(&(source, stack)) {
                let sum = self.sums.entry((source, stack)).or_default();
                *sum = sum.saturating_add(value);
            } else {
                is_cut = true;
            }
        })?;
        if is_cut { Err(too_many_spans(most)) } else { Ok(()) }
    }

    /// Asks what series of all time say of their samples, while they are the same that were read.
    fn find_states(&mut self, connection: &Connection, selection: &Selection) -> rusqlite::Result<()> {
        if !selection.is_wall() {
            return Ok(());
        }
        let mut find =
            connection.prepare_cached("SELECT labels ->> '$.state', labels ->> '$.flow' FROM series WHERE id = ?")?;
        let numbers: HashSet<i64> = self.sums.keys().map(|(source, _)| source.series).collect();
        // Each text once.
        let mut texts: HashSet<Arc<str>> = HashSet::new();
        let mut label = |row: &Row<'_>, column| -> rusqlite::Result<Option<Arc<str>>> {
            let Some(text) = row.get::<_, Option<String>>(column)? else { return Ok(None) };
            let text = texts.get(text.as_str()).cloned().unwrap_or_else(|| text.into());
            texts.insert(Arc::clone(&text));
            Ok(Some(text))
        };
        for number in numbers {
            let of = find.query_row([number], |row| Ok([label(row, 0)?, label(row, 1)?]))?;
            self.states.insert(number, of);
        }
        Ok(())
    }
}

/// The whole of parts, stack by stack as those of a page, so that the rows of a stack are together what it is there; those of which nothing
/// is left are left out.
fn whole_rows(mut rows: Vec<(Origin, i64, i64)>) -> Vec<(Origin, i64, i64)> {
    rows.sort_by_key(|(_, stack, _)| *stack);
    let mut whole = Whole::default();
    rows.iter_mut().for_each(|(.., value)| *value = whole.of(*value));
    rows.retain(|(.., value)| *value > 0);
    rows
}

#[cfg(test)]
mod tests {
    use super::super::rows::{Profile, Sample};
    use super::super::storage_limits::StorageLimits;
    use super::*;
    use crate::selection::{CPU, TimeRange};

    #[test]
    fn what_is_too_much_by_span_is_added_up_by_name_before_that_is_too_much() {
        // Ten profiles of twenty spans each, whose names are not known.
        for (room, rows, has_spans, is_cut) in [(200, 200, true, false), (199, 1, false, false), (0, 0, false, true)] {
            let store = Store::open(None, &StorageLimits::with(u64::MAX, 1 << 20, room * OF_ENTRY)).unwrap();
            for first in (0..200).step_by(20) {
                let mut profile = Profile::of("work");
                let span = |number: u64| SpanId::from_bytes(&number.to_be_bytes());
                let sample = |number| Sample { span: span(number), stack: 1, value: 3, count: 1 };
                profile.parts[0].samples = (first + 1..=first + 20).map(sample).collect();
                store.insert_profile(&profile).unwrap();
            }
            let selection = Selection::everything().service("shop").profile_type(CPU).time_range(TimeRange::Stored);
            let found = store.labelled(&selection).unwrap();
            assert_eq!((found.rows.len(), found.has_spans, found.is_cut), (rows, has_spans, is_cut), "{room}");
            assert_eq!(found.rows.iter().map(|(.., value)| value).sum::<i64>(), if is_cut { 0 } else { 600 });
        }
    }
}
