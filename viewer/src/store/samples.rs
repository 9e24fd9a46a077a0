//! Samples out: the stacks of a selection, and sums by service and by span name.

use std::collections::{BTreeSet, HashMap};
use std::sync::{MutexGuard, PoisonError};

use rusqlite::{Connection, params};

use super::filter::Filter;
use super::rows::Function;
use super::trie::{self, Trie};
use super::{Store, StoreError, packed};
use crate::ids::SpanId;
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
        let name =
            |frame: StackFrame| self.functions.get(&frame.function).map_or("", |function| function.name.as_str());
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

/// Stacks of many rows, added up.
#[derive(Default)]
pub(super) struct Gathered {
    stacks: ahash::HashMap<i64, (i64, i64)>,
    series: BTreeSet<i64>,
}

impl Gathered {
    /// Adds the packed stacks of a series.
    pub(super) fn add(&mut self, series: i64, stacks: &[u8]) -> rusqlite::Result<()> {
        self.series.insert(series);
        packed::unpack(stacks, |(stack, value, count)| {
            let sum = self.stacks.entry(stack).or_default();
            *sum = (sum.0.saturating_add(value), sum.1.saturating_add(count));
        })
    }

    /// Names them.
    pub(super) fn finish(self, store: &Store, connection: &Connection) -> rusqlite::Result<Stacks> {
        let mut found = Stacks {
            sums: self.stacks.into_iter().map(|(stack, (value, count))| (stack, value, count)).collect(),
            ..Stacks::default()
        };
        found.sums.sort_unstable();
        let mut kind = connection.prepare_cached(
            "SELECT kinds.text, series.period FROM series JOIN kinds ON kinds.id = series.kind WHERE series.id = ?1",
        )?;
        for series in self.series {
            let (text, period): (String, i64) =
                kind.query_row(params![series], |row| Ok((row.get(0)?, row.get(1)?)))?;
            found.kind = found.kind.max(text);
            found.period = found.period.max(period);
        }
        store.trie().resolve(connection, &mut found, store.room.part_of(trie::MOST))?;
        Ok(found)
    }
}

impl Store {
    /// The samples of a selection, by stack.
    pub(crate) fn stacks(&self, selection: &Selection) -> Result<Stacks, StoreError> {
        self.read(|connection| {
            let mut gathered = Gathered::default();
            Filter::new(connection, selection)?
                .each(connection, "series.id, s.stacks", |row| gathered.add(row.get(0)?, row.get_ref(1)?.as_blob()?))?;
            gathered.finish(self, connection)
        })
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
                sum.cpu += value;
                sum.cpu_in_spans += if row.get::<_, i64>(1)? == 0 { 0 } else { value };
                sum.samples += row.get::<_, i64>(3)?;
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
                *sum = (sum.0 + row.get::<_, i64>(1)?, sum.1 + row.get::<_, i64>(2)?);
                Ok(())
            })?;
            let named = |(name, (cpu, samples))| Ok(NameSum { owner: owner(connection, name)?, cpu, samples });
            sums.into_iter().map(named).collect()
        })
    }

    /// The function with the most own CPU of each span name.
    pub(crate) fn hottest_by_name(&self, selection: &Selection) -> Result<HashMap<Owner, (Function, i64)>, StoreError> {
        self.read(|connection| {
            let mut by_name: HashMap<i64, ahash::HashMap<i64, i64>> = HashMap::new();
            Filter::new(connection, selection)?.each(connection, "s.name, s.stacks", |row| {
                let stacks = by_name.entry(row.get(0)?).or_default();
                packed::unpack(row.get_ref(1)?.as_blob()?, |(stack, value, _)| {
                    *stacks.entry(stack).or_default() += value
                })
            })?;
            let mut trie = self.trie();
            let mut hottest = HashMap::new();
            for (name, stacks) in by_name {
                let mut functions = ahash::HashMap::<i64, i64>::default();
                for (stack, value) in stacks {
                    *functions.entry(trie.leaf(connection, stack)?).or_default() += value;
                }
                // Of equal ones the first that was stored, so that answers repeat.
                let most = functions.into_iter().max_by_key(|(function, value)| (*value, -function));
                if let Some((function, value)) = most.filter(|(function, _)| *function != 0) {
                    let function = trie.function(connection, function)?.clone();
                    hottest.insert(owner(connection, name)?, (function, value));
                }
            }
            Ok(hottest)
        })
    }

    /// Whether any sample of any type is labelled with the span.
    pub(crate) fn is_sampled(&self, span: SpanId) -> Result<bool, StoreError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM span_sums WHERE span != 0 AND span = ?1)";
        self.read(|connection| connection.prepare_cached(sql)?.query_row(params![span.to_column()], |row| row.get(0)))
    }

    /// What each of the spans burnt itself: value and samples of CPU. Spans without samples are left out.
    pub(crate) fn cpu_of_spans(&self, spans: &[SpanId]) -> Result<HashMap<SpanId, (i64, i64)>, StoreError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT sum(s.value), sum(s.count) FROM span_sums s JOIN parts ON parts.id = s.part
                 JOIN series ON series.id = parts.series JOIN kinds ON kinds.id = series.kind
                 WHERE s.span != 0 AND s.span = ?1 AND kinds.name = '{CPU}' AND kinds.main"
            ))?;
            let mut found = HashMap::new();
            for span in spans {
                let sums: (Option<i64>, Option<i64>) =
                    statement.query_row(params![span.to_column()], |row| Ok((row.get(0)?, row.get(1)?)))?;
                if let (Some(value), Some(count)) = sums {
                    found.insert(*span, (value, count));
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
