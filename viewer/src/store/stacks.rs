//! The samples of a selection, by stack.

use std::collections::HashMap;

use super::rows::Function;
use crate::states::State;

/// The samples of a selection, by stack.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    /// Each stack with its value and its number of samples.
    pub(crate) sums: Vec<(i64, i64, i64)>,
    /// What the values of stacks are made of, by state: stack, state, value. Only of profile types whose samples may say it.
    pub(crate) states: Vec<(i64, State, i64)>,
    /// The trie that the stacks are numbers of: parent (0 = empty stack), function, line.
    pub(crate) nodes: HashMap<i64, (i64, i64, i64)>,
    /// The functions that the trie refers to.
    pub(crate) functions: HashMap<i64, Function>,
    /// All five parts of the profile type; empty if there is no sample.
    pub(crate) profile_type: String,
    /// The largest period that occurs.
    pub(crate) period: i64,
    /// So many profiles say each what there was at an instant, and all values are averages of theirs. None: they are sums.
    pub(crate) averaged_over: Option<i64>,
    /// How much of all values is beside the wall time of their spans: what other threads or tasks spent in these meanwhile. Only of profile
    /// types whose samples may say it, and of sums.
    pub(crate) concurrent: i64,
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
