//! What the spans of each name took and burnt, added up within what an answer may take.

use std::cmp::Reverse;

use ahash::HashMap;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension as _, params, params_from_iter};

use super::connection::{StoreError, interrupted};
use super::database::Store;
use super::gather::{AT_ONCE, SUM};
use super::largest::{Largest, Sum};
use super::rows::Function;
use super::sample_query::SampleQuery;
use super::snapshots::{Snapshots, Whole};
use super::span_predicate::{self, IS_OWN, STATE};
use super::spans::IS_CHILD;
use super::stack_blob;
use crate::selection::{Selection, Side};
use crate::span_status::Status;
use crate::states::{State, StateTimes};
use crate::work;

/// As many names are added up as an answer has room for at this many bytes each; so they take a fourth of it.
const NAME: usize = 1_024;

/// What the spans of a name took and burnt.
#[derive(Debug, Default)]
pub(crate) struct NameSum {
    /// Their wall times, sorted.
    pub(crate) walls: Vec<i64>,
    /// How many ended with an error.
    pub(crate) errors: i64,
    /// Whether any of them entered the service from outside.
    pub(crate) entries: bool,
    /// Whether of some of them the sender did not say.
    unsaid: bool,
    /// CPU and samples of it; none if no sample is labelled with one of them.
    pub(crate) cpu: Option<(i64, i64)>,
    /// Value of what was asked for beside CPU.
    pub(crate) beside: i64,
    /// What samples of all time say.
    pub(crate) states: StateTimes,
    /// Beside it: what other threads or tasks spent in them meanwhile.
    pub(crate) concurrent: i64,
    /// How long child spans of the same service took together, each as long as its parent at most.
    pub(crate) child_spans: i64,
}

/// The samples of all time, which say in which state it went by.
#[derive(Debug)]
pub(crate) struct OfStates {
    /// Those of the same spans.
    pub(crate) selection: Selection,
    /// Whether child spans have samples of their own.
    pub(crate) by_span: bool,
}

impl NameSum {
    fn burn(&mut self, cpu: i64, samples: i64) {
        let sum = self.cpu.get_or_insert_default();
        *sum = (sum.0.saturating_add(cpu), sum.1.saturating_add(samples));
    }
}

impl Sum for NameSum {
    type Weight = (i64, usize, i64);

    fn weight(&self) -> Self::Weight {
        (self.cpu.map_or(0, |sum| sum.0), self.walls.len(), self.beside)
    }

    fn add(&mut self, other: Self) {
        self.walls.extend(other.walls);
        self.errors += other.errors;
        self.entries |= other.entries;
        self.unsaid |= other.unsaid;
        self.beside = self.beside.saturating_add(other.beside);
        self.states.merge(&other.states);
        self.concurrent = self.concurrent.saturating_add(other.concurrent);
        self.child_spans = self.child_spans.saturating_add(other.child_spans);
        if let Some((cpu, samples)) = other.cpu {
            self.burn(cpu, samples);
        }
    }
}

/// A name that has room.
#[derive(Debug)]
pub(crate) struct Named {
    /// The name.
    pub(crate) name: String,
    /// What its spans took and burnt.
    pub(crate) sum: NameSum,
    /// The function with the most own CPU, and how much that is.
    pub(crate) hottest: Option<(Function, i64)>,
}

/// What the spans of each name took and burnt.
#[derive(Debug, Default)]
pub(crate) struct NameSums {
    /// Most CPU first.
    pub(crate) names: Vec<Named>,
    /// The smallest together, where they had no room.
    pub(crate) rest: Option<NameSum>,
    /// What was burnt outside of spans.
    pub(crate) outside: NameSum,
}

/// Names by their numbers, while they are added up.
struct Gathered<'a> {
    names: &'a mut Largest<NameSum>,
    outside: NameSum,
}

impl Gathered<'_> {
    fn of(&mut self, name: i64) -> &mut NameSum {
        if name == 0 { &mut self.outside } else { self.names.of(name) }
    }

    fn add_up(
        &mut self,
        connection: &Connection,
        selection: &Selection,
        beside: Option<&Selection>,
        states: Option<&OfStates>,
    ) -> rusqlite::Result<()> {
        SampleQuery::new(connection, selection)?.each(connection, "s.name, s.value, s.count", |row| {
            self.of(row.get(0)?).burn(row.get(1)?, row.get(2)?);
            Ok(())
        })?;
        // Spans have no side; what is outside of them has no wall time.
        if selection.side != Side::Outside {
            self.read_walls(connection, selection)?;
        }
        if let Some(beside) = beside {
            let query = SampleQuery::new(connection, beside)?;
            let snapshots = Snapshots::of(connection, &query)?;
            query.each(connection, "s.name, s.value, series.id", |row| {
                let (value, series) = (row.get(1)?, row.get(2)?);
                let value = snapshots.as_ref().map_or(value, |snapshots| snapshots.parts(series, value));
                let sum = self.of(row.get(0)?);
                sum.beside = sum.beside.saturating_add(value);
                Ok(())
            })?;
            if snapshots.is_some() {
                let mut named: Vec<_> = self.names.sums.iter_mut().collect();
                named.sort_unstable_by_key(|(name, _)| **name);
                let mut whole = Whole::default();
                let sums = named.into_iter().map(|(_, sum)| sum).chain(&mut self.names.rest).chain([&mut self.outside]);
                sums.for_each(|sum| sum.beside = whole.of(sum.beside));
            }
        }
        if let Some(OfStates { selection, by_span }) = states {
            let columns = format!("s.name, s.value, {STATE}, {IS_OWN}");
            SampleQuery::new(connection, selection)?.each(connection, &columns, |row| {
                let state = State::of_label(row.get_ref(2)?.as_str_or_null()?);
                let (sum, value) = (self.of(row.get(0)?), row.get(1)?);
                if row.get(3)? {
                    sum.states.add(state, value);
                } else {
                    sum.concurrent = sum.concurrent.saturating_add(value);
                }
                Ok(())
            })?;
            if *by_span {
                self.read_child_spans(connection, selection)?;
            }
        }
        Ok(())
    }

    /// How long the child spans of each name's spans took. The parent of each span of the service is looked up: to look for the
    /// children of each would go through all spans of its trace.
    fn read_child_spans(&mut self, connection: &Connection, selection: &Selection) -> rusqlite::Result<()> {
        let predicate = span_predicate::spans_in_time(selection, "s");
        let sql = format!(
            "SELECT s.name, min(c.duration, s.duration) FROM spans c CROSS JOIN spans s
                 ON s.span = c.parent AND s.trace = c.trace AND s.service = c.service
             WHERE c.service = (SELECT id FROM strings WHERE text = ?) AND c.parent != 0 AND c.start <= ? AND {}",
            predicate.sql
        );
        let mut statement = connection.prepare_cached(&sql)?;
        let own: [Value; 2] = [selection.service.clone().into(), selection.time_range.bounds().1.into()];
        let mut rows = statement.query(params_from_iter(own.iter().chain(&predicate.values)))?;
        while let Some(row) = rows.next()? {
            let sum = self.of(row.get(0)?);
            sum.child_spans = sum.child_spans.saturating_add(row.get(1)?);
        }
        Ok(())
    }

    fn read_walls(&mut self, connection: &Connection, selection: &Selection) -> rusqlite::Result<()> {
        let predicate = span_predicate::spans_in_time(selection, "s");
        let sql = format!("SELECT s.name, s.duration, s.status, s.root FROM spans s WHERE {}", predicate.sql);
        let mut statement = connection.prepare_cached(&sql)?;
        let mut rows = statement.query(params_from_iter(&predicate.values))?;
        while let Some(row) = rows.next()? {
            let sum = self.of(row.get(0)?);
            sum.walls.push(row.get(1)?);
            sum.errors += i64::from(row.get::<_, i64>(2)? == Status::Error.to_column());
            match row.get::<_, Option<bool>>(3)? {
                Some(root) => sum.entries |= root,
                None => sum.unsaid = true,
            }
        }
        self.find_entries(connection, selection.service.as_deref())
    }

    /// Asks of which names, whose senders do not say, any span entered the service from outside.
    fn find_entries(&mut self, connection: &Connection, service: Option<&str>) -> rusqlite::Result<()> {
        let mut left = self.names.sums.values().filter(|sum| sum.unsaid && !sum.entries).count();
        let mut statement = connection.prepare_cached(&format!(
            "SELECT s.name FROM spans s WHERE s.service = (SELECT id FROM strings WHERE text = ?1) AND NOT {IS_CHILD}"
        ))?;
        let mut rows = statement.query(params![service])?;
        while left > 0
            && let Some(row) = rows.next()?
        {
            if let Some(sum) = self.names.sums.get_mut(&row.get(0)?).filter(|sum| sum.unsaid && !sum.entries) {
                sum.entries = true;
                left -= 1;
            }
        }
        Ok(())
    }
}

impl Store {
    /// What the spans of each name took and burnt, of a selection of CPU, the same of another profile type, and of all time.
    /// `weigh` says how many bytes of an answer a name takes with its function.
    pub(crate) fn span_names(
        &self,
        selection: &Selection,
        beside: Option<&Selection>,
        states: Option<&OfStates>,
        weigh: impl Fn(&str, Option<&Function>) -> usize,
    ) -> Result<NameSums, StoreError> {
        let answer = self.limits.answer();
        let (names, outside) = self.read(|connection| {
            let mut outside = NameSum::default();
            let names = Largest::read(answer / NAME, |names| {
                let mut gathered = Gathered { names, outside: NameSum::default() };
                gathered.add_up(connection, selection, beside, states)?;
                outside = gathered.outside;
                Ok(())
            })?;
            Ok((names, outside))
        })?;
        let hottest = self.hottest(selection, &names.sums)?;
        let (names, rest) = names.sorted();
        let mut names = names.into_iter();
        let mut found = NameSums { names: Vec::new(), rest, outside };
        let mut left = answer / 4 * 3;
        // The store is free for others in between.
        while left > 0 && !names.as_slice().is_empty() {
            let some = &names.as_slice()[..names.len().min(AT_ONCE)];
            let texts = self.read(|connection| self.texts(connection, some, &hottest, &mut left.clone(), &weigh))?;
            let (room, all) = (texts.len(), some.len());
            for ((name, function), (id, mut sum)) in texts.into_iter().zip(names.by_ref().take(room)) {
                left = left.saturating_sub(weigh(&name, function.as_ref()));
                sum.walls.sort_unstable();
                let own = hottest.get(&id).map_or(0, |(_, own)| *own);
                found.names.push(Named { name, sum, hottest: function.map(|function| (function, own)) });
            }
            if room < all {
                break;
            }
        }
        for (_, sum) in names {
            found.rest.get_or_insert_default().add(sum);
        }
        if let Some(rest) = &mut found.rest {
            rest.walls.sort_unstable();
        }
        Ok(found)
    }

    /// The texts of names and of their functions, as long as there is room.
    fn texts(
        &self,
        connection: &Connection,
        names: &[(i64, NameSum)],
        hottest: &HashMap<i64, (i64, i64)>,
        left: &mut usize,
        weigh: impl Fn(&str, Option<&Function>) -> usize,
    ) -> rusqlite::Result<Vec<(String, Option<Function>)>> {
        let trie = &mut *self.trie();
        trie.bound(self.limits.remembered());
        let mut texts = Vec::new();
        for (name, _) in names {
            if work::is_over() {
                return Err(interrupted());
            }
            let text = super::samples::text(connection, *name).optional()?.unwrap_or_default();
            let function = match hottest.get(name) {
                Some((function, _)) => trie.function(connection, *function)?,
                None => None,
            };
            let weight = weigh(&text, function.as_ref());
            if weight > *left {
                break;
            }
            *left -= weight;
            texts.push((text, function));
        }
        Ok(texts)
    }

    /// The function with the most own CPU of each of the names, and how much that is.
    fn hottest(
        &self,
        selection: &Selection,
        names: &HashMap<i64, NameSum>,
    ) -> Result<HashMap<i64, (i64, i64)>, StoreError> {
        let most = (self.limits.answer() / 2 / SUM).max(2);
        let stacks = self.read(|connection| {
            let mut stacks: HashMap<(i64, i64), i64> = HashMap::default();
            SampleQuery::new(connection, selection)?.each(connection, "s.name, s.stacks", |row| {
                let name: i64 = row.get(0)?;
                if !names.contains_key(&name) {
                    return Ok(());
                }
                stack_blob::unpack(row.get_ref(1)?.as_blob()?, |(stack, value, _)| {
                    // What has no room any more is none of the hottest by then.
                    if stacks.len() < most || stacks.contains_key(&(name, stack)) {
                        let sum = stacks.entry((name, stack)).or_default();
                        *sum = sum.saturating_add(value);
                    }
                })
            })?;
            Ok(stacks)
        })?;
        let mut functions: HashMap<(i64, i64), i64> = HashMap::default();
        let stacks: Vec<_> = stacks.into_iter().collect();
        for some in stacks.chunks(AT_ONCE) {
            let leaves = self.read(|connection| {
                if work::is_over() {
                    return Err(interrupted());
                }
                let trie = &mut *self.trie();
                trie.bound(self.limits.remembered());
                some.iter().map(|((_, stack), _)| trie.leaf(connection, *stack)).collect::<rusqlite::Result<Vec<_>>>()
            })?;
            for (((name, _), value), leaf) in some.iter().zip(leaves) {
                let sum = functions.entry((*name, leaf)).or_default();
                *sum = sum.saturating_add(*value);
            }
        }
        let mut hottest: HashMap<i64, (i64, i64)> = HashMap::default();
        for ((name, function), sum) in functions {
            let most = hottest.entry(name).or_insert((function, sum));
            // Of equal ones the first that was stored, so that answers repeat.
            if (sum, Reverse(function)) > (most.1, Reverse(most.0)) {
                *most = (function, sum);
            }
        }
        hottest.retain(|_, (function, _)| *function != 0);
        Ok(hottest)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::rows::{Profile, Sample, Span};
    use super::super::storage_limits::StorageLimits;
    use super::*;
    use crate::ids::{SpanId, TraceId};
    use crate::selection::{CPU, TimeRange};
    use crate::work::{Gone, Haste};

    /// Names 1, 2, ... with a span each, which burnt as much as its number, and 5 outside of spans.
    fn store_of(names: u64, answer: usize) -> (std::sync::Arc<Store>, Selection) {
        let store = Store::open(None, &StorageLimits::with(u64::MAX, 1 << 20, answer)).unwrap();
        let id = |number: u64| SpanId::from_bytes(&number.to_be_bytes()).unwrap();
        let span = |number: u64| Span {
            trace: TraceId::from_bytes(&[1; 16]).unwrap(),
            span: id(number),
            parent: None,
            service: "shop".into(),
            name: format!("name {number}"),
            start: 0,
            duration: 7,
            status: Status::Error,
            root: None,
            profiled: true,
            attributes: "{}".into(),
            place: None,
        };
        store.insert_spans(&(1..=names).map(span).collect::<Vec<_>>()).unwrap();
        let mut profile = Profile::of("work");
        let sample =
            |span, value: u64| Sample { span, stack: 1, value: value.cast_signed(), count: value.cast_signed() };
        profile.parts[0].samples = (1..=names).map(|number| sample(Some(id(number)), number)).collect();
        profile.parts[0].samples.push(sample(None, 5));
        store.insert_profile(&profile).unwrap();
        let selection = Selection::everything().service("shop").profile_type(CPU).time_range(TimeRange::Stored);
        (store, selection)
    }

    #[test]
    fn what_has_no_room_is_the_smallest_and_is_added_up() {
        // Room for 16 names while they are added up, and for all of them, for three, or for one.
        for (answer, row, least) in [(1 << 20, 1, 100), (16 << 10, 1, 8), (16 << 10, 4_000, 3), (16 << 10, 9_000, 1)] {
            let (store, selection) = store_of(100, answer);
            let found = store.span_names(&selection, Some(&selection), None, |_, _| row).unwrap();
            let shown: Vec<_> = found.names.iter().map(|named| named.name.clone()).collect();
            let expected: Vec<_> = (1..=100).rev().map(|number| format!("name {number}")).take(shown.len()).collect();
            assert!(shown.len() >= least && shown.len() <= least.max(16), "{shown:?}");
            assert_eq!(shown, expected);
            assert_eq!(found.rest.is_none(), shown.len() == 100);
            assert!(found.names.iter().all(|named| named.sum.entries && named.hottest.as_ref().unwrap().1 > 0));
            let all = || found.names.iter().map(|named| &named.sum).chain(&found.rest);
            let cpu = all().filter_map(|sum| sum.cpu).fold((0, 0), |all, sum| (all.0 + sum.0, all.1 + sum.1));
            assert_eq!((cpu, all().map(|sum| sum.beside).sum::<i64>()), ((5_050, 5_050), 5_050));
            assert_eq!(
                (all().map(|sum| sum.walls.len()).sum::<usize>(), all().map(|sum| sum.errors).sum()),
                (100, 100)
            );
            assert_eq!((found.outside.cpu, found.outside.beside), (Some((5, 5)), 5));
        }
    }

    #[test]
    fn it_ends_with_the_time_of_its_request() {
        let (store, selection) = store_of(2, 1 << 20);
        let over = work::within(Duration::ZERO, Haste::Patient, Gone::default(), || {
            store.span_names(&selection, None, None, |_, _| 1)
        });
        assert!(over.unwrap_err().is_over());
    }
}
