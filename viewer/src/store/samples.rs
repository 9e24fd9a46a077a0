//! Samples out: the stacks of a selection, and sums by service and by span name.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::{MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension as _, params};

use super::filter::Filter;
use super::rows::Function;
use super::trie::Trie;
use super::{Store, StoreError, packed, traced};
use crate::ids::{SpanId, TraceId};
use crate::selection::{CPU, Selection, Window};

/// The samples of a selection, by stack.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    /// Each stack with its value and its number of samples.
    pub(crate) sums: Vec<(i64, i64, i64)>,
    /// The trie that the stacks are numbers of: parent (0 = empty stack), function, line.
    pub(crate) nodes: HashMap<i64, (i64, i64, i64)>,
    /// The functions that the trie refers to.
    pub(crate) functions: HashMap<i64, Function>,
    /// All five parts of the profile type; empty if there is no sample.
    pub(crate) kind: String,
    /// The largest period that occurs.
    pub(crate) period: i64,
}

/// A frame of a stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackFrame {
    /// The stack of which this is the leaf.
    pub(crate) stack: i64,
    /// The stack of its caller, 0 without one.
    pub(crate) caller: i64,
    pub(crate) function: i64,
    pub(crate) line: i64,
}

impl Stacks {
    /// The frames of a stack, leaf first.
    pub(crate) fn frames(&self, stack: i64) -> impl Iterator<Item = StackFrame> {
        let mut next = stack;
        std::iter::from_fn(move || {
            let stack = next;
            let &(caller, function, line) = self.nodes.get(&stack)?;
            next = caller;
            Some(StackFrame { stack, caller, function, line })
        })
    }

    /// The names of a stack's functions, callers first.
    pub(crate) fn names(&self, stack: i64) -> Vec<&str> {
        let name = |frame: StackFrame| self.functions.get(&frame.function).map_or("", |function| &*function.name);
        let mut names: Vec<&str> = self.frames(stack).map(name).collect();
        names.reverse();
        names
    }
}

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
    fn hear(&mut self, first: i64, last: i64) {
        self.heard = Some(self.heard.map_or((first, last), |(a, b)| (a.min(first), b.max(last))));
    }
}

/// Whom samples belong to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// Spans of a name.
    Name(String),
    /// No span.
    Outside,
}

/// What the spans of a name burnt.
#[derive(Debug)]
pub(crate) struct NameSum {
    /// The spans.
    pub(crate) owner: Owner,
    /// CPU.
    pub(crate) cpu: i64,
    /// Samples of CPU.
    pub(crate) samples: i64,
}

/// What the stacks are called that had no place in an answer; the smallest of it.
pub(crate) const REST: &str = "(too small to be shown)";
/// Its number, as a stack and as a function; the store's are positive, and show's own is −1.
const REST_ID: i64 = -2;
/// Bytes that a stack takes while it is added up, and that a node and a function take in an answer.
const SUM: usize = 64;
const NODE: usize = 400;
const FUNCTION: usize = 200;
/// Nodes that are looked up while others wait for the store.
const AT_ONCE: usize = 2_000;

/// Stacks of many rows, added up.
pub(super) struct Gathered {
    stacks: ahash::HashMap<i64, (i64, i64)>,
    series: BTreeSet<i64>,
    most: usize,
    /// Of the stacks that were left out.
    rest: (i64, i64),
}

impl Gathered {
    /// Nothing yet.
    pub(super) fn new(store: &Store) -> Self {
        let most = (store.room.answer() / SUM).max(2);
        Self { stacks: ahash::HashMap::default(), series: BTreeSet::new(), most, rest: (0, 0) }
    }

    /// Adds the packed stacks of a series.
    pub(super) fn add(&mut self, series: i64, stacks: &[u8]) -> rusqlite::Result<()> {
        self.series.insert(series);
        packed::unpack(stacks, |(stack, value, count)| {
            let sum = self.stacks.entry(stack).or_default();
            *sum = (sum.0.saturating_add(value), sum.1.saturating_add(count));
        })?;
        if self.stacks.len() > self.most {
            self.leave_out_the_smallest();
        }
        Ok(())
    }

    fn leave_out_the_smallest(&mut self) {
        let mut values: Vec<i64> = self.stacks.values().map(|sum| sum.0).collect();
        let middle = values.len() / 2;
        let bound = *values.select_nth_unstable(middle).1;
        let (mut kept, rest) = (0, &mut self.rest);
        self.stacks.retain(|_, sum| {
            let stays = sum.0 >= bound && kept < middle;
            kept += usize::from(stays);
            if !stays {
                *rest = (rest.0.saturating_add(sum.0), rest.1.saturating_add(sum.1));
            }
            stays
        });
    }

    /// Names them, the largest first, as long as there is room; the store is free for others in between.
    pub(super) fn finish(self, store: &Store) -> Result<Stacks, StoreError> {
        let mut found = Stacks::default();
        store.read(|connection| {
            let mut kind = connection.prepare_cached(
                "SELECT kinds.text, series.period FROM series JOIN kinds ON kinds.id = series.kind WHERE series.id = ?1",
            )?;
            for series in &self.series {
                let known: Option<(String, i64)> =
                    kind.query_row(params![series], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
                if let Some((text, period)) = known {
                    if text > found.kind {
                        found.kind = text;
                    }
                    found.period = found.period.max(period);
                }
            }
            Ok(())
        })?;
        let mut sums: Vec<(i64, i64, i64)> =
            self.stacks.into_iter().map(|(stack, (value, count))| (stack, value, count)).collect();
        sums.sort_unstable_by_key(|&(stack, value, _)| (Reverse(value), stack));
        let mut left = store.room.answer();
        let mut sums = sums.into_iter();
        while left > 0 && !sums.as_slice().is_empty() {
            store.read(|connection| {
                let trie = &mut *store.trie();
                trie.bound(store.room.remembered());
                let enough = found.nodes.len() + AT_ONCE;
                while left > 0
                    && found.nodes.len() < enough
                    && let Some(sum) = sums.as_slice().first().copied()
                {
                    if resolve(connection, trie, &mut found, sum.0, &mut left)? {
                        found.sums.push(sum);
                    }
                    sums.next();
                    left = left.saturating_sub(SUM);
                }
                Ok(())
            })?;
        }
        let rest = sums.fold(self.rest, |rest, sum| (rest.0.saturating_add(sum.1), rest.1.saturating_add(sum.2)));
        if rest != (0, 0) {
            found.nodes.insert(REST_ID, (0, REST_ID, 0));
            found.functions.insert(REST_ID, Function { name: REST.into(), file: "".into() });
            found.sums.push((REST_ID, rest.0, rest.1));
        }
        found.sums.sort_unstable();
        Ok(found)
    }
}

/// Fills in the nodes from a stack down to the root, all of them or none, and the functions in them. False if any was
/// forgotten meanwhile.
fn resolve(
    connection: &Connection,
    trie: &mut Trie,
    found: &mut Stacks,
    stack: i64,
    left: &mut usize,
) -> rusqlite::Result<bool> {
    let (mut at, mut path) = (stack, Vec::new());
    while at != 0 && !found.nodes.contains_key(&at) {
        let Some(node) = trie.node(connection, at)? else { return Ok(false) };
        if let Entry::Vacant(free) = found.functions.entry(node.1) {
            let Some(function) = trie.function(connection, node.1)? else { return Ok(false) };
            // In an answer a character may take more than one.
            *left = left.saturating_sub(FUNCTION + 3 * (function.name.len() + function.file.len()));
            free.insert(function);
        }
        path.push((at, node));
        *left = left.saturating_sub(NODE);
        at = node.0;
    }
    found.nodes.extend(path);
    Ok(true)
}

impl Store {
    /// The samples of a selection, by stack.
    pub(crate) fn stacks(&self, selection: &Selection) -> Result<Stacks, StoreError> {
        let gathered = self.read(|connection| {
            let mut gathered = Gathered::new(self);
            Filter::new(connection, selection)?
                .each(connection, "series.id, s.stacks", |row| gathered.add(row.get(0)?, row.get_ref(1)?.as_blob()?))?;
            Ok(gathered)
        })?;
        gathered.finish(self)
    }

    /// Every service that sent anything in the window, most CPU first. A profile is stamped with its start;
    /// `longest_profile` bounds its end.
    pub(crate) fn services(&self, window: Window, longest_profile: i64) -> Result<Vec<ServiceSum>, StoreError> {
        self.read(|connection| {
            let mut found: HashMap<i64, ServiceSum> = HashMap::new();
            let (from, to) = window.bounds();
            let mut statement = connection.prepare_cached(
                "SELECT service, count(*), max(received), min(time), max(min(max(received, time), time + ?3))
                 FROM profiles WHERE time BETWEEN ?1 AND ?2 GROUP BY service",
            )?;
            let mut rows = statement.query(params![from, to, longest_profile])?;
            while let Some(row) = rows.next()? {
                let sum = found.entry(row.get(0)?).or_default();
                (sum.profiles, sum.last_received) = (row.get(1)?, row.get(2)?);
                sum.hear(row.get(3)?, row.get(4)?);
            }
            let mut statement = connection.prepare_cached(
                "SELECT service, count(*), min(start), max(start + duration)
                 FROM spans WHERE start + duration >= ?1 AND start <= ?2 GROUP BY service",
            )?;
            let mut rows = statement.query(params![from, to])?;
            while let Some(row) = rows.next()? {
                let sum = found.entry(row.get(0)?).or_default();
                sum.spans = row.get(1)?;
                sum.hear(row.get(2)?, row.get(3)?);
            }
            let cpu =
                Filter::new(connection, &Selection { kind: CPU.into(), ..Selection::everything() }.window(window))?;
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

    /// What spans burnt, by name, and what was burnt outside of them.
    pub(crate) fn cpu_by_name(&self, selection: &Selection) -> Result<Vec<NameSum>, StoreError> {
        self.read(|connection| {
            let mut sums: HashMap<i64, (i64, i64)> = HashMap::new();
            Filter::new(connection, selection)?.each(connection, "s.name, s.value, s.count", |row| {
                let sum = sums.entry(row.get(0)?).or_default();
                *sum = (sum.0.saturating_add(row.get(1)?), sum.1.saturating_add(row.get(2)?));
                Ok(())
            })?;
            let named = |(name, (cpu, samples))| Ok(NameSum { owner: owner(connection, name)?, cpu, samples });
            sums.into_iter().map(named).collect()
        })
    }

    /// The function with the most own CPU of each span name.
    pub(crate) fn hottest_by_name(&self, selection: &Selection) -> Result<HashMap<Owner, (Function, i64)>, StoreError> {
        let most = (self.room.answer() / SUM).max(2);
        let stacks = self.read(|connection| {
            let mut stacks: ahash::HashMap<(i64, i64), i64> = ahash::HashMap::default();
            Filter::new(connection, selection)?.each(connection, "s.name, s.stacks", |row| {
                let name: i64 = row.get(0)?;
                packed::unpack(row.get_ref(1)?.as_blob()?, |(stack, value, _)| {
                    // What has no room any more is none of the hottest by then.
                    if stacks.len() < most || stacks.contains_key(&(name, stack)) {
                        let sum = stacks.entry((name, stack)).or_default();
                        *sum = sum.saturating_add(value);
                    }
                })
            })?;
            Ok(stacks)
        })?;
        let mut functions: HashMap<i64, ahash::HashMap<i64, i64>> = HashMap::new();
        let stacks: Vec<_> = stacks.into_iter().collect();
        // The store is free for others in between.
        for some in stacks.chunks(AT_ONCE) {
            let leaves = self.read(|connection| {
                let trie = &mut *self.trie();
                trie.bound(self.room.remembered());
                some.iter().map(|((_, stack), _)| trie.leaf(connection, *stack)).collect::<rusqlite::Result<Vec<_>>>()
            })?;
            for (((name, _), value), leaf) in some.iter().zip(leaves) {
                let sum = functions.entry(*name).or_default().entry(leaf).or_default();
                *sum = sum.saturating_add(*value);
            }
        }
        // Of equal ones the first that was stored, so that answers repeat.
        let most_of = |functions: ahash::HashMap<i64, i64>| functions.into_iter().max_by_key(|(id, sum)| (*sum, -id));
        let hottest: Vec<_> = functions
            .into_iter()
            .filter_map(|(name, functions)| Some((name, most_of(functions).filter(|(function, _)| *function != 0)?)))
            .collect();
        let mut found = HashMap::new();
        for some in hottest.chunks(AT_ONCE) {
            let named = self.read(|connection| {
                let trie = &mut *self.trie();
                let mut named = Vec::with_capacity(some.len());
                for (name, (function, value)) in some {
                    if let Some(function) = trie.function(connection, *function)?
                        && let Some(owner) = owner(connection, *name).optional()?
                    {
                        named.push((owner, (function, *value)));
                    }
                }
                Ok(named)
            })?;
            found.extend(named);
        }
        Ok(found)
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
                let others = traced::of_others(connection, *span, trace)?;
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

    /// What numbers of stacks mean.
    pub(super) fn trie(&self) -> MutexGuard<'_, Trie> {
        self.trie.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn owner(connection: &Connection, name: i64) -> rusqlite::Result<Owner> {
    Ok(if name == 0 { Owner::Outside } else { Owner::Name(text(connection, name)?) })
}

/// A string by its number.
pub(super) fn text(connection: &Connection, id: i64) -> rusqlite::Result<String> {
    connection.prepare_cached("SELECT text FROM strings WHERE id = ?1")?.query_row(params![id], |row| row.get(0))
}
