//! The functions of a selection, most own value first.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::Serialize;

use super::absence::Absence;
use super::error::ShowError;
use super::estimate::Sums;
use super::estimate::share;
use super::shown::Shown;
use super::stacks::{states, sums, unit};
use super::steps::Steps;
use crate::profile_types::NANOSECONDS;
use crate::selection::{Selection, Side, StackDisplay};
use crate::states::{StateTimes, TimeSpent};
use crate::store::{Function, StackFrame, Stacks, shared_text};

/// The functions of a selection.
#[derive(Debug, Serialize)]
pub(crate) struct Top {
    /// What it is about.
    pub(crate) sentence: String,
    #[serde(flatten)]
    pub(crate) sums: Sums,
    /// The value in each state; none where no sample says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) states: Option<StateTimes>,
    /// Of profiles of all time: of which spans of a name it is.
    #[serde(flatten)]
    pub(crate) spans: Option<Spans>,
    /// Unit of all values.
    pub(crate) unit: String,
    /// Most own first.
    pub(crate) functions: Vec<TopFunction>,
    /// Why there is no sample, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) absence: Option<Absence>,
}

impl Top {
    /// Where the time of spans went that have no sample themselves.
    pub(crate) fn unsampled(&self) -> Option<&TimeSpent> {
        let own = self.spans.as_ref()?.own.as_ref()?;
        (self.sums.samples == 0 && own.parts().next().is_some()).then_some(own)
    }
}

/// Spans of which traces were received.
#[derive(Debug, Serialize)]
pub(crate) struct Spans {
    /// How many.
    pub(crate) spans: i64,
    /// How long all together took.
    pub(crate) wall_ns: i64,
    /// Where that went, as far as it is known, where whole spans of a service are chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) own: Option<TimeSpent>,
}

/// A function, or a line of it.
#[derive(Debug, Serialize)]
pub(crate) struct TopFunction {
    /// Its name.
    #[serde(serialize_with = "shared_text")]
    pub(crate) function: Arc<str>,
    /// Its file.
    #[serde(serialize_with = "shared_text")]
    pub(crate) file: Arc<str>,
    /// Its line, if lines stand apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) line: Option<i64>,
    /// Value of samples that end in it.
    pub(crate) own: i64,
    /// Value of samples that have it anywhere.
    pub(crate) total: i64,
    /// `own` in each state, where any sample says it.
    #[serde(skip_serializing_if = "StateTimes::is_empty")]
    pub(crate) states: StateTimes,
    /// `own` of all.
    pub(crate) share: f64,
    /// Standard error of that share.
    pub(crate) error: f64,
    /// `total` of all.
    pub(crate) total_share: f64,
    /// Standard error of that share.
    pub(crate) total_error: f64,
}

impl Shown {
    /// The functions of a selection.
    pub(crate) fn top(&self, selection: &Selection, display: StackDisplay) -> Result<Top, ShowError> {
        let stacks = self.stacks(selection, display)?;
        let sums = sums(&stacks);
        // Where nothing was found, of what was asked for.
        let unit = unit(if stacks.sums.is_empty() { &selection.profile_type } else { &stacks.profile_type });
        let absence = if sums.samples == 0 { self.absence(selection)? } else { None };
        Ok(Top {
            sentence: selection.sentence(),
            sums,
            states: states(&stacks),
            spans: self.spans_of_name(selection, unit == NANOSECONDS)?,
            unit: unit.into(),
            functions: functions(&stacks, display.lines)?,
            absence,
        })
    }

    /// The spans whose time is to be explained; where that went only beside values that are times.
    fn spans_of_name(&self, selection: &Selection, of_time: bool) -> Result<Option<Spans>, ShowError> {
        if !selection.is_wall() || selection.name.is_none() || selection.side == Side::Outside {
            return Ok(None);
        }
        let (spans, wall_ns) = self.store.total_wall(&self.resolve(selection)?)?;
        if spans == 0 {
            return Ok(None);
        }
        Ok(Some(Spans { spans, wall_ns, own: if of_time { self.own(selection)? } else { None } }))
    }

    /// Not where the selection chooses among samples.
    fn own(&self, selection: &Selection) -> Result<Option<TimeSpent>, ShowError> {
        let (Some(service), None) = (&selection.service, selection.chooses_within()) else { return Ok(None) };
        let names = self.span_names(service, selection)?;
        let row = names.spans.into_iter().find(|row| Some(&row.name) == selection.name.as_ref());
        Ok(row.and_then(|row| row.time))
    }
}

/// Own and total value by function and line.
type Weights = HashMap<(i64, i64), (i64, i64)>;

/// Own and total value of each function, or of each line of it.
pub(super) fn weights(stacks: &Stacks, by_line: bool) -> Result<Weights, ShowError> {
    let mut sums = Weights::new();
    let (mut seen, mut steps) = (HashSet::new(), Steps::default());
    for &(stack, value, _) in &stacks.sums {
        seen.clear();
        for frame in stacks.frames(stack) {
            steps.step()?;
            let StackFrame { function, line, .. } = frame;
            let key = (function, if by_line { line } else { 0 });
            let (own, total) = sums.entry(key).or_default();
            if frame.stack == stack {
                *own = own.saturating_add(value);
            }
            // A function that calls itself counts once a sample.
            if seen.insert(key) {
                *total = total.saturating_add(value);
            }
        }
    }
    Ok(sums)
}

/// The states of what each function burnt or waited itself, where any sample says it.
fn own_states(stacks: &Stacks, by_line: bool) -> Result<HashMap<(i64, i64), StateTimes>, ShowError> {
    let (mut found, mut steps) = (HashMap::new(), Steps::default());
    if states(stacks).is_none() {
        return Ok(found);
    }
    for &(stack, state, value) in &stacks.states {
        steps.step()?;
        if let Some(StackFrame { function, line, .. }) = stacks.frames(stack).next() {
            let times: &mut StateTimes = found.entry((function, if by_line { line } else { 0 })).or_default();
            times.add(state, value);
        }
    }
    Ok(found)
}

fn functions(stacks: &Stacks, by_line: bool) -> Result<Vec<TopFunction>, ShowError> {
    let all = sums(stacks);
    let mut own_states = own_states(stacks, by_line)?;
    let named = weights(stacks, by_line)?.into_iter().filter_map(|((id, line), (own, total))| {
        let Function { name, file } = stacks.functions.get(&id)?;
        let (share, total_share) = (share(own, all.total), share(total, all.total));
        Some(TopFunction {
            function: Arc::clone(name),
            file: Arc::clone(file),
            line: by_line.then_some(line),
            own,
            total,
            states: own_states.remove(&(id, line)).unwrap_or_default(),
            share,
            error: all.error(share),
            total_share,
            total_error: all.error(total_share),
        })
    });
    let mut functions: Vec<_> = named.collect();
    functions.sort_by(|a, b| {
        (b.own, b.total)
            .cmp(&(a.own, a.total))
            .then_with(|| (&a.function, &a.file, a.line).cmp(&(&b.function, &b.file, b.line)))
    });
    Ok(functions)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::work::{self, Gone, Haste};

    fn stacks() -> Stacks {
        Stacks {
            nodes: HashMap::from([(1, (0, 7, 1)), (2, (1, 7, 5)), (3, (2, 8, 1))]),
            functions: HashMap::from([
                (7, Function { name: "walk".into(), file: "w.rb".into() }),
                (8, Function { name: "leaf".into(), file: "w.rb".into() }),
            ]),
            sums: vec![(2, 30, 3), (3, 10, 1)],
            ..Stacks::default()
        }
    }

    #[test]
    fn a_recursive_function_counts_once_a_sample() {
        let top = functions(&stacks(), false).unwrap();
        let rows: Vec<_> = top.iter().map(|row| (&*row.function, row.own, row.total, row.line)).collect();
        assert_eq!(rows, [("walk", 30, 40, None), ("leaf", 10, 10, None)]);
        assert!((top[0].share - 0.75).abs() < 1e-9 && (top[0].error - 0.2165).abs() < 1e-4);
        assert!((top[0].total_share - 1.0).abs() < 1e-9 && top[0].total_error == 0.0);
    }

    #[test]
    fn lines_stand_apart_where_it_is_asked_for() {
        let top = functions(&stacks(), true).unwrap();
        let rows: Vec<_> = top.iter().map(|row| (&*row.function, row.line, row.own, row.total)).collect();
        assert_eq!(rows, [("walk", Some(5), 30, 40), ("leaf", Some(1), 10, 10), ("walk", Some(1), 0, 40)]);
        assert!(Arc::ptr_eq(&top[0].function, &top[2].function), "a name stands once, however many lines it has");
        assert!(Arc::ptr_eq(&top[0].file, &top[2].file));
    }

    #[test]
    fn a_function_has_the_states_of_what_ends_in_it() {
        use crate::states::State::{Cpu, Io, NotTold};
        let of_states = Stacks { states: vec![(2, Cpu, 10), (2, Io, 20), (3, NotTold, 10)], ..stacks() };
        let states = |top: Vec<TopFunction>| -> Vec<_> {
            top.into_iter().map(|row| (row.line, row.states.iter().collect::<Vec<_>>())).collect()
        };
        let (walk, leaf) = (vec![(Cpu, 10), (Io, 20)], vec![(NotTold, 10)]);
        assert_eq!(states(functions(&of_states, false).unwrap()), [(None, walk.clone()), (None, leaf.clone())]);
        assert_eq!(states(functions(&of_states, true).unwrap()), [(Some(5), walk), (Some(1), leaf), (Some(1), vec![])]);
        // Where none is told there is nothing to say.
        let untold = Stacks { states: vec![(3, NotTold, 10)], ..stacks() };
        assert_eq!(states(functions(&untold, false).unwrap()), [(None, vec![]), (None, vec![])]);
    }

    #[test]
    fn it_ends_with_the_time_of_its_request() {
        let stacks = Stacks {
            nodes: HashMap::from([(1, (0, 1, 1))]),
            functions: HashMap::from([(1, Function { name: "f".into(), file: "".into() })]),
            sums: vec![(1, 1, 1); 10_000],
            ..Stacks::default()
        };
        let over = work::within(Duration::ZERO, Haste::Patient, Gone::default(), || functions(&stacks, false));
        assert!(matches!(over, Err(ShowError::Busy(_))));
    }
}
