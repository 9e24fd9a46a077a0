//! Two selections, compared by shares: what they burnt in all may differ by any factor.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;

use super::error::ShowError;
use super::estimate::{Change, Sums, change};
use super::shown::Shown;
use super::stacks::{state_times, states, sums, unit};
use super::top::weights;
use super::tree::{Frame, tree};
use crate::selection::{Pair, Selection, StackDisplay};
use crate::states::{State, StateTimes};
use crate::store::{Function, Stacks, shared_text};

/// Two selections.
#[derive(Debug, Serialize)]
pub(crate) struct Diff {
    /// What is compared.
    pub(crate) a: Side,
    /// With what.
    pub(crate) b: Side,
    /// Unit of all values.
    pub(crate) unit: String,
    /// Shares of the states that any side has, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) states: Vec<StateChange>,
    /// Functions, largest change of their own share first, those within their error last.
    pub(crate) changes: Vec<FunctionChange>,
    /// What `frames` refers to.
    pub(crate) functions: Vec<Function>,
    /// `[parent, function, line, total of a, own of a, total of b, own of b]`, callers first.
    pub(crate) frames: Vec<Frame<2>>,
    /// `[change, error, sure]` of the totals of each of `frames`, as in [`Change`].
    pub(crate) compared: Vec<(f64, f64, bool)>,
}

/// One side of a diff.
#[derive(Debug, Serialize)]
pub(crate) struct Side {
    /// What it is.
    pub(crate) sentence: String,
    #[serde(flatten)]
    pub(crate) sums: Sums,
    /// The value in each state; none where no sample says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) states: Option<StateTimes>,
}

/// A state on both sides.
#[derive(Debug, Serialize)]
pub(crate) struct StateChange {
    /// Which.
    pub(crate) state: State,
    #[serde(flatten)]
    pub(crate) change: Change,
}

/// A function on both sides.
#[derive(Debug, Serialize)]
pub(crate) struct FunctionChange {
    /// Its name.
    #[serde(serialize_with = "shared_text")]
    pub(crate) function: Arc<str>,
    /// Its file.
    #[serde(serialize_with = "shared_text")]
    pub(crate) file: Arc<str>,
    /// Its line, if lines stand apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) line: Option<i64>,
    /// Share of samples that end in it.
    pub(crate) own: Change,
    /// Share of samples that have it anywhere.
    pub(crate) total: Change,
}

impl Shown {
    /// Compares two selections.
    pub(crate) fn diff(&self, pair: &Pair, display: StackDisplay) -> Result<Diff, ShowError> {
        let a = self.stacks(&pair.a, display)?;
        let b = self.stacks(&pair.b, display)?;
        let side = |selection: &Selection, stacks: &Stacks| Side {
            sentence: selection.sentence(),
            sums: sums(stacks),
            states: states(stacks),
        };
        let profile_type = if a.profile_type.is_empty() { &b.profile_type } else { &a.profile_type };
        let tree = tree([&a, &b], display.lines)?;
        let all = [sums(&a), sums(&b)];
        let compared = tree.frames.iter().map(|frame| change(frame.total, all));
        Ok(Diff {
            compared: compared.map(|Change { change, error, sure, .. }| (change, error, sure)).collect(),
            a: side(&pair.a, &a),
            b: side(&pair.b, &b),
            unit: unit(profile_type).into(),
            states: state_changes([state_times(&a), state_times(&b)], all),
            changes: changes(&a, &b, all, display.lines)?,
            functions: tree.functions,
            frames: tree.frames,
        })
    }
}

/// How the shares of states differ, where any sample says its state.
fn state_changes(sides: [StateTimes; 2], all: [Sums; 2]) -> Vec<StateChange> {
    if !sides.iter().any(StateTimes::is_told) {
        return Vec::new();
    }
    let seen = State::ALL.into_iter().map(|state| (state, [0, 1].map(|side| sides[side].of(state))));
    let seen = seen.filter(|(_, values)| *values != [0, 0]);
    seen.map(|(state, values)| StateChange { state, change: change(values, all) }).collect()
}

fn changes(a: &Stacks, b: &Stacks, all: [Sums; 2], by_line: bool) -> Result<Vec<FunctionChange>, ShowError> {
    let compare = |a, b| change([a, b], all);
    let mut sides: HashMap<(i64, i64), [(i64, i64); 2]> = HashMap::new();
    for (side, stacks) in [a, b].into_iter().enumerate() {
        for (key, weight) in weights(stacks, by_line)? {
            sides.entry(key).or_default()[side] = weight;
        }
    }
    let named = sides.into_iter().filter_map(|((id, line), [in_a, in_b])| {
        let function = a.functions.get(&id).or_else(|| b.functions.get(&id))?;
        Some(FunctionChange {
            function: Arc::clone(&function.name),
            file: Arc::clone(&function.file),
            line: by_line.then_some(line),
            own: compare(in_a.0, in_b.0),
            total: compare(in_a.1, in_b.1),
        })
    });
    let mut changes: Vec<_> = named.collect();
    changes.sort_by(|a, b| {
        (b.own.sure, b.own.change.abs())
            .partial_cmp(&(a.own.sure, a.own.change.abs()))
            .unwrap_or(std::cmp::Ordering::Equal)
            .then_with(|| b.total.change.abs().total_cmp(&a.total.change.abs()))
            .then_with(|| (&a.function, &a.file, a.line).cmp(&(&b.function, &b.file, b.line)))
    });
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_compared_and_what_is_sure_comes_first() {
        let function = |name: &str| Function { name: name.into(), file: "".into() };
        let side = |sums: Vec<(i64, i64, i64)>| Stacks {
            nodes: HashMap::from([(1, (0, 1, 1)), (2, (1, 2, 1)), (3, (1, 3, 1)), (4, (1, 4, 1))]),
            functions: HashMap::from([
                (1, function("main")),
                (2, function("sql")),
                (3, function("json")),
                (4, function("log")),
            ]),
            sums,
            ..Stacks::default()
        };
        // Ten times the samples in b; sql goes from 50 % to 10 %, json from 45 % to 82 %, log from 5 % to 8 %.
        let a = side(vec![(2, 500, 50), (3, 450, 45), (4, 50, 5)]);
        let b = side(vec![(2, 1_000, 100), (3, 8_200, 820), (4, 800, 80)]);
        let rows: Vec<_> = changes(&a, &b, [sums(&a), sums(&b)], false)
            .unwrap()
            .into_iter()
            .map(|row| (row.function, (row.own.change * 100.0).round(), row.own.sure))
            .collect();
        let row = |name: &str, change: f64, sure| (name.into(), change, sure);
        assert_eq!(
            rows,
            [row("sql", -40.0, true), row("json", 37.0, true), row("log", 3.0, false), row("main", 0.0, false)]
        );
    }
    #[test]
    fn states_are_compared_where_any_side_tells_them() {
        let times = |times: &[(State, i64)]| {
            let mut all = StateTimes::default();
            times.iter().for_each(|(state, ns)| all.add(*state, *ns));
            all
        };
        let all = [100, 1_000].map(|total| Sums { total, samples: 100, equal_samples: 100.0, ..Sums::default() });
        let (cpu, untold) = (times(&[(State::Cpu, 60), (State::Io, 40)]), times(&[(State::NotTold, 1_000)]));
        let mixed = times(&[(State::Io, 100), (State::Lock, 900)]);
        let changes = |a: &StateTimes, b: &StateTimes| -> Vec<_> {
            let changes = state_changes([a.clone(), b.clone()], all);
            changes.into_iter().map(|row| (row.state, (row.change.change * 100.0).round(), row.change.sure)).collect()
        };
        assert_eq!(
            changes(&cpu, &mixed),
            [(State::Cpu, -60.0, true), (State::Lock, 90.0, true), (State::Io, -30.0, true)]
        );
        assert_eq!(changes(&cpu, &untold).last(), Some(&(State::NotTold, 100.0, true)));
        assert_eq!(changes(&untold, &untold), []);
    }
}
