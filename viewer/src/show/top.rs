//! The functions of a selection, most own value first.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::error::ShowError;
use super::estimate::Sums;
use super::estimate::share;
use super::shown::Shown;
use super::stacks::{sums, unit};
use super::steps::Steps;
use crate::selection::Look;
use crate::selection::Selection;
use crate::store::{Function, StackFrame, Stacks};

/// The functions of a selection.
#[derive(Debug, Serialize)]
pub(crate) struct Top {
    /// What it is about.
    pub(crate) sentence: String,
    #[serde(flatten)]
    pub(crate) sums: Sums,
    /// Unit of all values.
    pub(crate) unit: String,
    /// Most own first.
    pub(crate) functions: Vec<TopFunction>,
}

/// A function, or a line of it.
#[derive(Debug, Serialize)]
pub(crate) struct TopFunction {
    /// Its name.
    pub(crate) function: String,
    /// Its file.
    pub(crate) file: String,
    /// Its line, if lines stand apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) line: Option<i64>,
    /// Value of samples that end in it.
    pub(crate) own: i64,
    /// Value of samples that have it anywhere.
    pub(crate) total: i64,
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
    pub(crate) fn top(&self, selection: &Selection, look: Look) -> Result<Top, ShowError> {
        let stacks = self.stacks(selection, look)?;
        Ok(Top {
            sentence: selection.sentence(),
            sums: sums(&stacks),
            unit: unit(&stacks.profile_type).into(),
            functions: functions(&stacks, look.lines)?,
        })
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

fn functions(stacks: &Stacks, by_line: bool) -> Result<Vec<TopFunction>, ShowError> {
    let all = sums(stacks);
    let named = weights(stacks, by_line)?.into_iter().filter_map(|((id, line), (own, total))| {
        let Function { name, file } = stacks.functions.get(&id)?;
        let (share, total_share) = (share(own, all.total), share(total, all.total));
        Some(TopFunction {
            function: name.to_string(),
            file: file.to_string(),
            line: by_line.then_some(line),
            own,
            total,
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
        let rows: Vec<_> = top.iter().map(|row| (row.function.as_str(), row.own, row.total, row.line)).collect();
        assert_eq!(rows, [("walk", 30, 40, None), ("leaf", 10, 10, None)]);
        assert!((top[0].share - 0.75).abs() < 1e-9 && (top[0].error - 0.2165).abs() < 1e-4);
        assert!((top[0].total_share - 1.0).abs() < 1e-9 && top[0].total_error == 0.0);
    }

    #[test]
    fn lines_stand_apart_where_it_is_asked_for() {
        let top = functions(&stacks(), true).unwrap();
        let rows: Vec<_> = top.iter().map(|row| (row.function.as_str(), row.line, row.own, row.total)).collect();
        assert_eq!(rows, [("walk", Some(5), 30, 40), ("leaf", Some(1), 10, 10), ("walk", Some(1), 0, 40)]);
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
