//! The samples of a selection with the spans that they are of, and when they were taken: what a pprof is made from.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use rusqlite::{Connection, Row};

use super::connection::{StoreError, too_many_spans};
use super::database::Store;
use super::sample_query::SampleQuery;
use super::samples::text;
use super::schema::UNNAMED_ID;
use super::snapshots::{Snapshots, whole};
use super::stack_blob::{self, Entry};
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

/// What samples of a stack say that they are of.
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
    stacks: Vec<(Source, Vec<Entry>)>,
    /// Of profiles of all time, by the numbers of their series.
    states: HashMap<i64, OfSeries>,
    /// What values are averaged over, where they are not added.
    snapshots: Option<Snapshots>,
    entries: usize,
    first: i64,
    last: i64,
}

impl Store {
    /// The samples of a selection by span, or by the name of their span alone where that would take more than an answer may.
    pub(crate) fn labelled(&self, selection: &Selection) -> Result<Labelled, StoreError> {
        let most = self.limits.answer() / OF_ENTRY;
        match self.read_by_span(selection, most) {
            Ok(read) => {
                let spans: Vec<(i64, SpanId)> =
                    read.stacks.iter().filter_map(|(source, _)| Some((source.profile, source.span?))).collect();
                let traces = self.traces_of_spans(&spans)?;
                self.with_names(read, |span, profile| (Some(span), traces.get(&(profile, span)).copied()), true)
            }
            Err(error) if error.is_too_large() => {
                let read = self.read_by_name(selection, most)?;
                self.with_names(read, |_, _| (None, None), false)
            }
            Err(error) => Err(error),
        }
    }

    fn read_by_span(&self, selection: &Selection, most: usize) -> Result<Read, StoreError> {
        self.read(|connection| {
            let mut read = Read { first: i64::MAX, ..Read::default() };
            let columns = "s.name, s.span, parts.profile, series.id, s.stacks, parts.time,
                           (SELECT received FROM profiles WHERE profiles.id = parts.profile)";
            let mut query = SampleQuery::new(connection, selection)?;
            read.snapshots = Snapshots::of(connection, &query)?;
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
        let (from, to) = selection.time_range.bounds();
        let stored = self.profile_times()?.map_or(from, |(first, _)| first);
        self.read(|connection| {
            let mut read = Read { first: from.max(stored), last: to.min(clock::now()), ..Read::default() };
            let query = SampleQuery::new(connection, selection)?;
            read.snapshots = Snapshots::of(connection, &query)?;
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
        let numbers: HashSet<i64> = read.stacks.iter().map(|(source, _)| source.name).collect();
        let names: HashMap<i64, Arc<str>> = self.read(|connection| {
            let named = numbers.iter().filter(|name| **name != 0 && **name != UNNAMED_ID);
            named.map(|name| Ok((*name, text(connection, *name)?.into()))).collect()
        })?;
        let mut sums: BTreeMap<(Origin, i64), i64> = BTreeMap::new();
        for (source, entries) in read.stacks {
            let (span, trace) = source.span.map_or((None, None), |span| ids(span, source.profile));
            let [state, flow] = read.states.get(&source.series).cloned().unwrap_or_default();
            let origin = Origin { name: names.get(&source.name).cloned(), span, trace, state, flow };
            for (stack, value, _) in entries {
                let sum = sums.entry((origin.clone(), stack)).or_default();
                let parts = read.snapshots.as_ref().map(|snapshots| snapshots.parts(source.series, value));
                *sum = sum.saturating_add(parts.unwrap_or(value));
            }
        }
        let of_sum = |sum: i64| if read.snapshots.is_some() { whole(sum) } else { sum };
        Ok(Labelled {
            rows: sums.into_iter().map(|((origin, stack), value)| (origin, stack, of_sum(value))).collect(),
            time: if read.first == i64::MAX { 0 } else { read.first },
            duration: read.last.saturating_sub(read.first).max(0),
            has_spans,
            has_states: !read.states.is_empty(),
        })
    }
}

impl Read {
    /// Asks what series of all time say of their samples, while they are the same that were read.
    fn find_states(&mut self, connection: &Connection, selection: &Selection) -> rusqlite::Result<()> {
        if !selection.is_wall() {
            return Ok(());
        }
        let mut find =
            connection.prepare_cached("SELECT labels ->> '$.state', labels ->> '$.flow' FROM series WHERE id = ?")?;
        let label = |row: &Row<'_>, column| row.get::<_, Option<String>>(column).map(|text| text.map(Arc::from));
        let numbers: HashSet<i64> = self.stacks.iter().map(|(source, _)| source.series).collect();
        for number in numbers {
            let of = find.query_row([number], |row| Ok([label(row, 0)?, label(row, 1)?]))?;
            self.states.insert(number, of);
        }
        Ok(())
    }

    fn add(&mut self, origin: Source, stacks: &[u8], most: usize) -> rusqlite::Result<()> {
        let mut entries = Vec::new();
        stack_blob::unpack(stacks, |entry| entries.push(entry))?;
        self.entries += entries.len();
        if self.entries > most {
            return Err(too_many_spans(most));
        }
        self.stacks.push((origin, entries));
        Ok(())
    }
}
