//! The stacks of many rows, added up within what an answer may take.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::collections::hash_map::Entry;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::connection::{StoreError, interrupted};
use super::database::Store;
use super::rows::Function;
use super::snapshots::{Snapshots, Whole};
use super::stack_blob;
use super::stacks::Stacks;
use super::trie::Trie;
use crate::selection::Selection;
use crate::states::{State, StateTimes};
use crate::work;

/// What the stacks or names are called that had no place in an answer; the smallest of it.
pub(crate) const REST: &str = "(too small to be shown)";
/// Its number, as a stack and as a function; the store's are positive, and show's own is −1.
pub(crate) const REST_ID: i64 = -2;
/// Bytes that a stack takes while it is added up, and the same in a state; and that a node and a function take in an answer, and
/// the states of a node.
pub(super) const SUM: usize = 64;
const STATE_SUM: usize = 96;
const NODE: usize = 400;
const NODE_STATES: usize = 400;
const FUNCTION: usize = 200;
/// Nodes, or stacks whose nodes are known, that are looked up while others wait for the store, and until the clock is.
pub(super) const AT_ONCE: usize = 2_000;

/// Stacks of many rows, added up.
pub(super) struct Gathered {
    stacks: ahash::HashMap<i64, (i64, i64)>,
    /// Their values by state, where that is asked for.
    states: Option<ahash::HashMap<(i64, State), i64>>,
    series: BTreeSet<i64>,
    most: usize,
    /// Of the stacks that were left out.
    rest: (i64, i64),
    /// What values are averaged over, where they are not added.
    snapshots: Option<Snapshots>,
    rest_states: StateTimes,
}

impl Gathered {
    /// Nothing yet.
    pub(super) fn new(store: &Store) -> Self {
        let most = (store.limits.answer() / SUM).max(2);
        let (stacks, series) = Default::default();
        let rest_states = StateTimes::default();
        Self { stacks, states: None, series, most, rest: (0, 0), snapshots: None, rest_states }
    }

    /// Nothing yet, of a selection whose samples may say their state.
    pub(super) fn of(store: &Store, selection: &Selection) -> Self {
        if !selection.is_wall() {
            return Self::new(store);
        }
        let most = (store.limits.answer() / (SUM + STATE_SUM)).max(2 * State::ALL.len());
        Self { states: Some(Default::default()), most, ..Self::new(store) }
    }

    /// The same, of values that are averaged where there are `snapshots`.
    pub(super) fn averaged(self, snapshots: Option<Snapshots>) -> Self {
        Self { snapshots, ..self }
    }

    /// Adds the packed stacks of a series, whose label says their state.
    pub(super) fn add(&mut self, series: i64, label: Option<&str>, stacks: &[u8]) -> rusqlite::Result<()> {
        self.series.insert(series);
        let state = State::of_label(label);
        stack_blob::unpack(stacks, |(stack, value, count)| {
            let part = |value| self.snapshots.as_ref().map_or(value, |snapshots| snapshots.parts(series, value));
            let (value, count) = (part(value), part(count));
            let sum = self.stacks.entry(stack).or_default();
            *sum = (sum.0.saturating_add(value), sum.1.saturating_add(count));
            if let Some(states) = &mut self.states {
                let sum = states.entry((stack, state)).or_default();
                *sum = sum.saturating_add(value);
            }
        })?;
        if self.stacks.len() > self.most || self.states.as_ref().is_some_and(|states| states.len() > self.most) {
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
        if let Some(states) = &mut self.states {
            for ((_, state), value) in states.extract_if(|(stack, _), _| !self.stacks.contains_key(stack)) {
                self.rest_states.add(state, value);
            }
        }
    }

    /// Names them, the largest first, as long as there is room; the store is free for others in between.
    pub(super) fn finish(mut self, store: &Store) -> Result<Stacks, StoreError> {
        let mut found = Stacks::default();
        let of_states = if self.states.is_some() { NODE_STATES } else { 0 };
        let mut sums: Vec<(i64, i64, i64)> =
            self.stacks.into_iter().map(|(stack, (value, count))| (stack, value, count)).collect();
        let mut states: Vec<((i64, State), i64)> = self.states.into_iter().flatten().collect();
        if let Some(snapshots) = &self.snapshots {
            found.averaged_over = Some(snapshots.number());
            // In one order, so that a stack is what its states are.
            sums.sort_unstable();
            states.sort_unstable();
            let (mut values, mut counts, mut of_state) = (Whole::default(), Whole::default(), Whole::default());
            let mut is_first = true;
            for (value, count) in
                sums.iter_mut().map(|sum| (&mut sum.1, &mut sum.2)).chain([(&mut self.rest.0, &mut self.rest.1)])
            {
                *value = values.of(*value);
                counts.add(*count);
                // Where there is a value there is a sample.
                *count = if *value > 0 { counts.take(i64::from(std::mem::take(&mut is_first))) } else { 0 };
            }
            states.iter_mut().for_each(|(_, value)| *value = of_state.of(*value));
            self.rest_states = self.rest_states.map(|value| of_state.of(value));
            sums.retain(|sum| sum.1 > 0);
            states.retain(|(_, value)| *value > 0);
        }
        store.read(|connection| {
            let mut find = connection.prepare_cached(
                "SELECT kinds.text, series.period FROM series JOIN kinds ON kinds.id = series.kind WHERE series.id = ?1",
            )?;
            for series in &self.series {
                let known: Option<(String, i64)> =
                    find.query_row(params![series], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
                if let Some((text, period)) = known {
                    if text > found.profile_type {
                        found.profile_type = text;
                    }
                    found.period = found.period.max(period);
                }
            }
            Ok(())
        })?;
        sums.sort_unstable_by_key(|&(stack, value, _)| (Reverse(value), stack));
        let mut left = store.limits.answer();
        let mut sums = sums.into_iter();
        while left > 0 && !sums.as_slice().is_empty() {
            store.read(|connection| {
                let trie = &mut *store.trie();
                trie.bound(store.limits.remembered());
                let enough = found.nodes.len() + AT_ONCE;
                let least = sums.len().saturating_sub(AT_ONCE);
                if work::is_over() {
                    return Err(interrupted());
                }
                while left > 0
                    && found.nodes.len() < enough
                    && sums.len() > least
                    && let Some(sum) = sums.as_slice().first().copied()
                {
                    if resolve(connection, trie, &mut found, sum.0, NODE + of_states, &mut left)? {
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
        let mut rest_states = self.rest_states;
        for ((stack, state), value) in states {
            if found.sums.binary_search_by_key(&stack, |sum| sum.0).is_ok() {
                found.states.push((stack, state, value));
            } else {
                rest_states.add(state, value);
            }
        }
        found.states.extend(rest_states.iter().map(|(state, value)| (REST_ID, state, value)));
        found.states.sort_unstable();
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
    of_node: usize,
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
        *left = left.saturating_sub(of_node);
        at = node.0;
    }
    found.nodes.extend(path);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::rows::Profile;
    use super::super::storage_limits::StorageLimits;
    use super::*;
    use crate::work::{Gone, Haste};

    #[test]
    fn naming_stacks_ends_with_the_time_of_its_request() {
        let store = Store::open(None, &StorageLimits::new(u64::MAX)).unwrap();
        store.insert_profile(&Profile::of("main")).unwrap();
        let gather = || {
            let mut gathered = Gathered::new(&store);
            gathered.add(1, None, &stack_blob::pack(&[(1, 10, 1)])).unwrap();
            gathered.finish(&store)
        };
        assert_eq!(gather().unwrap().sums, [(1, 10, 1)]);
        let over = work::within(Duration::ZERO, Haste::Patient, Gone::default(), gather);
        assert!(over.unwrap_err().is_over());
    }

    #[test]
    fn states_of_what_there_was_at_an_instant_are_averages_as_the_stacks_are() {
        // Room for both stacks, and for one.
        for answer in [1 << 20, 2] {
            let store = Store::open(None, &StorageLimits::with(u64::MAX, 1 << 20, answer)).unwrap();
            for name in ["f1", "f2"] {
                store.insert_profile(&Profile::of(name)).unwrap();
            }
            let wall = Selection::everything().profile_type("wall");
            let mut gathered = Gathered::of(&store, &wall).averaged(Some(Snapshots::of_profiles(1, 2)));
            for label in ["io", "cpu"] {
                gathered.add(1, Some(label), &stack_blob::pack(&[(1, 600, 1), (2, 400, 1)])).unwrap();
            }
            let found = gathered.finish(&store).unwrap();
            assert_eq!(found.sums.iter().map(|sum| sum.1).sum::<i64>(), 1_000);
            for state in [State::Io, State::Cpu] {
                assert_eq!(found.states.iter().filter(|row| row.1 == state).map(|row| row.2).sum::<i64>(), 500);
            }
        }
    }

    #[test]
    fn states_add_up_to_the_stacks_also_where_not_all_have_room() {
        // Rooms for all stacks, and for none but a few.
        for (answer, kept) in [(1 << 20, 300), (16 << 10, 20)] {
            let store = Store::open(None, &StorageLimits::with(u64::MAX, 1 << 20, answer)).unwrap();
            for number in 0..300 {
                store.insert_profile(&Profile::of(&format!("f{number}"))).unwrap();
            }
            let wall = Selection::everything().profile_type("wall");
            let mut gathered = Gathered::of(&store, &wall);
            let stacks: Vec<_> = (1..=300).map(|stack| (stack, 10 * stack, 1)).collect();
            for (series, label) in [(1, Some("io")), (1, Some("cpu")), (1, None)] {
                for some in stacks.chunks(7) {
                    gathered.add(series, label, &stack_blob::pack(some)).unwrap();
                }
            }
            let found = gathered.finish(&store).unwrap();
            assert!(found.sums.len() <= kept + 1 && found.sums.len() > kept / 10, "{}", found.sums.len());
            let all: i64 = 10 * 300 * 301 / 2;
            assert_eq!(found.sums.iter().map(|sum| sum.1).sum::<i64>(), 3 * all);
            for state in [State::Io, State::Cpu, State::NotTold] {
                assert_eq!(found.states.iter().filter(|row| row.1 == state).map(|row| row.2).sum::<i64>(), all);
            }
            for (stack, value, _) in found.sums {
                let of_states: i64 = found.states.iter().filter(|row| row.0 == stack).map(|row| row.2).sum();
                assert_eq!(of_states, value, "{stack}");
            }
        }
    }
}
