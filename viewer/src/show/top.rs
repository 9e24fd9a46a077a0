//! The functions of a selection, most own CPU first.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::{ShowError, Shown, share, share_error};
use crate::selection::Selection;
use crate::store::Stacks;

/// The functions of a selection.
#[derive(Debug, Serialize)]
pub(crate) struct Top {
    /// Value of all samples.
    pub(crate) total_ns: i64,
    /// How many samples.
    pub(crate) samples: i64,
    /// Unit of all values.
    pub(crate) unit: String,
    /// Most own first.
    pub(crate) functions: Vec<TopFunction>,
}

/// A function.
#[derive(Debug, Serialize)]
pub(crate) struct TopFunction {
    /// Its name.
    pub(crate) function: String,
    /// Its file.
    pub(crate) file: String,
    /// Value of samples that end in it.
    pub(crate) own_ns: i64,
    /// Value of samples that have it anywhere.
    pub(crate) total_ns: i64,
    /// `own_ns` of all.
    pub(crate) share: f64,
    /// Standard error of that share.
    pub(crate) error: f64,
}

impl Shown {
    /// The functions of a selection.
    pub(crate) fn top(&self, selection: &Selection) -> Result<Top, ShowError> {
        let stacks = self.stacks(selection)?;
        let total_ns = stacks.sums.iter().map(|(_, value, _)| value).sum();
        let samples = stacks.sums.iter().map(|(.., count)| count).sum();
        Ok(Top {
            total_ns,
            samples,
            unit: super::flame::unit(&stacks.kind).into(),
            functions: functions(&stacks, total_ns, samples),
        })
    }
}

fn functions(stacks: &Stacks, all: i64, samples: i64) -> Vec<TopFunction> {
    let mut sums: HashMap<i64, (i64, i64)> = HashMap::new();
    let mut seen = HashSet::new();
    for &(stack, value, _) in &stacks.sums {
        seen.clear();
        let mut at = stack;
        while let Some(&(parent, function, _)) = stacks.nodes.get(&at) {
            let (own, total) = sums.entry(function).or_default();
            if at == stack {
                *own += value;
            }
            // A function that calls itself counts once a sample.
            if seen.insert(function) {
                *total += value;
            }
            at = parent;
        }
    }
    let named = sums.into_iter().filter_map(|(id, (own_ns, total_ns))| {
        let function = stacks.functions.get(&id)?;
        let share = share(own_ns, all);
        let error = share_error(share, samples);
        Some(TopFunction {
            function: function.name.clone(),
            file: function.file.clone(),
            own_ns,
            total_ns,
            share,
            error,
        })
    });
    let mut functions: Vec<_> = named.collect();
    functions.sort_by(|a, b| {
        (b.own_ns, b.total_ns)
            .cmp(&(a.own_ns, a.total_ns))
            .then_with(|| (&a.function, &a.file).cmp(&(&b.function, &b.file)))
    });
    functions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Function;

    #[test]
    fn a_recursive_function_counts_once_a_sample() {
        let stacks = Stacks {
            nodes: HashMap::from([(1, (0, 7, 1)), (2, (1, 7, 1)), (3, (2, 8, 1))]),
            functions: HashMap::from([
                (7, Function { name: "walk".into(), file: "w.rb".into() }),
                (8, Function { name: "leaf".into(), file: "w.rb".into() }),
            ]),
            sums: vec![(2, 30, 3), (3, 10, 1)],
            ..Stacks::default()
        };
        let top = functions(&stacks, 40, 4);
        let rows: Vec<_> = top.iter().map(|row| (row.function.as_str(), row.own_ns, row.total_ns)).collect();
        assert_eq!(rows, [("walk", 30, 40), ("leaf", 10, 10)]);
        assert!((top[0].share - 0.75).abs() < 1e-9 && (top[0].error - 0.2165).abs() < 1e-4);
    }
}
