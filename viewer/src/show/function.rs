//! One function of a selection: who calls it, what it calls, which of its lines burn.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::Serialize;

use super::error::ShowError;
use super::estimate::share;
use super::shown::Shown;
use super::stacks::{sums, unit};
use super::steps::Steps;
use crate::selection::Selection;
use crate::selection::StackDisplay;
use crate::store::{StackFrame, Stacks, shared_text};

/// A function with its neighbours.
#[derive(Debug, Serialize)]
pub(crate) struct FunctionView {
    /// Its name.
    pub(crate) function: String,
    /// The file that was asked for; none for functions of that name in all files.
    pub(crate) file: Option<String>,
    /// What it is looked at in.
    pub(crate) sentence: String,
    /// Unit of all values.
    pub(crate) unit: String,
    /// How many samples the selection has.
    pub(crate) samples: i64,
    /// Value of samples that end in it.
    pub(crate) own: Part,
    /// Value of samples that have it anywhere.
    pub(crate) total: Part,
    /// The functions that called it, by the value of samples in which they did.
    pub(crate) callers: Vec<Neighbour>,
    /// The functions that it called, by the value of samples in which it did.
    pub(crate) callees: Vec<Neighbour>,
    /// Its lines, most own value first.
    pub(crate) lines: Vec<HotLine>,
}

/// A part of a selection.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Part {
    /// Its value.
    pub(crate) value: i64,
    /// Of the whole selection.
    pub(crate) share: f64,
    /// Standard error of that share.
    pub(crate) error: f64,
}

/// A caller or a callee.
#[derive(Debug, Serialize)]
pub(crate) struct Neighbour {
    /// Its name.
    #[serde(serialize_with = "shared_text")]
    pub(crate) function: Arc<str>,
    /// Its file.
    #[serde(serialize_with = "shared_text")]
    pub(crate) file: Arc<str>,
    /// What it is part of.
    #[serde(flatten)]
    pub(crate) part: Part,
}

/// A line.
#[derive(Debug, Serialize)]
pub(crate) struct HotLine {
    /// Its file.
    #[serde(serialize_with = "shared_text")]
    pub(crate) file: Arc<str>,
    /// Its number, 0 if unknown.
    pub(crate) line: i64,
    /// Value of samples that end in it.
    pub(crate) own: Part,
    /// Value of samples that have it anywhere.
    pub(crate) total: Part,
}

/// What the samples with the function say, by numbers of functions.
#[derive(Default)]
struct Found {
    own: i64,
    total: i64,
    callers: HashMap<i64, i64>,
    callees: HashMap<i64, i64>,
    lines: HashMap<(i64, i64), (i64, i64)>,
}

impl Shown {
    /// A function of a selection, in all files or in one.
    pub(crate) fn function(
        &self,
        selection: &Selection,
        display: StackDisplay,
        name: &str,
        file: Option<&str>,
    ) -> Result<FunctionView, ShowError> {
        let stacks = self.stacks(selection, display)?;
        let wanted: HashSet<i64> = stacks
            .functions
            .iter()
            .filter(|(_, function)| *function.name == *name && file.is_none_or(|file| *function.file == *file))
            .map(|(id, _)| *id)
            .collect();
        if wanted.is_empty() {
            let sentence = selection.sentence();
            return Err(ShowError::NotFound(format!("There is no sample of a function {name:?} in {sentence}.")));
        }
        let found = find(&stacks, &wanted)?;
        let all = sums(&stacks);
        let part = |value| {
            let share = share(value, all.total);
            Part { value, share, error: all.error(share) }
        };
        let neighbours = |values: HashMap<i64, i64>| {
            let named = values.into_iter().filter_map(|(id, value)| {
                let function = stacks.functions.get(&id)?;
                Some(Neighbour {
                    function: Arc::clone(&function.name),
                    file: Arc::clone(&function.file),
                    part: part(value),
                })
            });
            let mut neighbours: Vec<_> = named.collect();
            neighbours.sort_by(|a, b| {
                b.part.value.cmp(&a.part.value).then_with(|| (&a.function, &a.file).cmp(&(&b.function, &b.file)))
            });
            neighbours
        };
        let mut lines: Vec<HotLine> = found
            .lines
            .into_iter()
            .map(|((function, line), (own, total))| HotLine {
                file: stacks.functions.get(&function).map_or_else(|| "".into(), |function| Arc::clone(&function.file)),
                line,
                own: part(own),
                total: part(total),
            })
            .collect();
        lines.sort_by_key(|line| std::cmp::Reverse((line.own.value, line.total.value, -line.line)));
        Ok(FunctionView {
            function: name.into(),
            file: file.map(str::to_owned),
            sentence: selection.sentence(),
            unit: unit(&stacks.profile_type).into(),
            samples: all.samples,
            own: part(found.own),
            total: part(found.total),
            callers: neighbours(found.callers),
            callees: neighbours(found.callees),
            lines,
        })
    }
}

/// Each sample counts once for the function, once for each of its callers and callees, however often they recur in it.
fn find(stacks: &Stacks, wanted: &HashSet<i64>) -> Result<Found, ShowError> {
    let (mut found, mut steps) = (Found::default(), Steps::default());
    let (mut callers, mut callees, mut lines) = (HashSet::new(), HashSet::new(), HashSet::new());
    for &(stack, value, _) in &stacks.sums {
        callers.clear();
        callees.clear();
        lines.clear();
        let (mut frames, mut callee) = (stacks.frames(stack).peekable(), None);
        while let Some(StackFrame { function, line, .. }) = frames.next() {
            steps.step()?;
            if wanted.contains(&function) {
                lines.insert((function, line));
                if callee.is_none() {
                    add(&mut found.own, value);
                    add(&mut found.lines.entry((function, line)).or_default().0, value);
                }
                // A call of itself is no other function's.
                callees.extend(callee.filter(|callee| !wanted.contains(callee)));
                let caller = frames.peek().map(|frame| frame.function);
                callers.extend(caller.filter(|caller| !wanted.contains(caller)));
            }
            callee = Some(function);
        }
        if !lines.is_empty() {
            add(&mut found.total, value);
        }
        callers.iter().for_each(|caller| add(found.callers.entry(*caller).or_default(), value));
        callees.iter().for_each(|callee| add(found.callees.entry(*callee).or_default(), value));
        lines.iter().for_each(|line| add(&mut found.lines.entry(*line).or_default().1, value));
    }
    Ok(found)
}

/// Values are anyone's to send; a sum of them stays a number.
fn add(sum: &mut i64, value: i64) {
    *sum = sum.saturating_add(value);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::work::{self, Gone, Haste};

    #[test]
    fn a_recursive_function_has_the_callers_of_its_outermost_and_the_callees_of_each_call() {
        let stacks = Stacks {
            // main > walk:2 > walk:3 > leaf, main > walk:2, other > walk:4 > leaf, other
            nodes: HashMap::from([
                (1, (0, 1, 1)),
                (2, (1, 7, 2)),
                (3, (2, 7, 3)),
                (4, (3, 8, 9)),
                (5, (0, 2, 1)),
                (6, (5, 7, 4)),
                (7, (6, 8, 9)),
            ]),
            sums: vec![(4, 10, 1), (2, 20, 2), (7, 40, 4), (5, 80, 8)],
            ..Stacks::default()
        };
        let found = find(&stacks, &HashSet::from([7])).unwrap();
        assert_eq!((found.own, found.total), (20, 70));
        assert_eq!(found.callers, HashMap::from([(1, 30), (2, 40)]));
        assert_eq!(found.callees, HashMap::from([(8, 50)]));
        assert_eq!(found.lines, HashMap::from([((7, 2), (20, 30)), ((7, 3), (0, 10)), ((7, 4), (0, 40))]));
    }

    #[test]
    fn it_ends_with_the_time_of_its_request() {
        let stacks =
            Stacks { nodes: HashMap::from([(1, (0, 1, 1))]), sums: vec![(1, 1, 1); 10_000], ..Stacks::default() };
        let over = work::within(Duration::ZERO, Haste::Patient, Gone::default(), || find(&stacks, &HashSet::from([1])));
        assert!(matches!(over, Err(ShowError::Busy(_))));
    }
}
