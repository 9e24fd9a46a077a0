//! Stacks of one or more selections, merged into a tree of functions.

use std::collections::HashMap;
use std::mem;

use serde::ser::{Serialize, SerializeTuple, Serializer};

use super::error::ShowError;
use super::steps::Steps;
use crate::states::StateTimes;
use crate::store::{Function, StackFrame, Stacks};

/// A tree of functions, or of lines of them, in rows: parents before what they called. The first row is the total.
#[derive(Debug)]
pub(crate) struct Tree<const N: usize> {
    /// What the rows refer to; the first is named `total`.
    pub(crate) functions: Vec<Function>,
    /// The rows.
    pub(crate) frames: Vec<Frame<N>>,
    /// The total of each row by state; none of two selections, whose colours say what changed.
    pub(crate) states: Vec<StateTimes>,
}

/// A function (or a line of it) under its callers, with values of N selections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<const N: usize> {
    /// The row of its caller; the total is its own.
    pub(crate) parent: usize,
    /// Which of the functions it is.
    pub(crate) function: usize,
    /// Its line; where lines are merged, the one with the most.
    pub(crate) line: i64,
    /// Value of all samples under it, of each selection.
    pub(crate) total: [i64; N],
    /// Value of samples that end in it, of each selection.
    pub(crate) own: [i64; N],
}

/// `[parent, function, line, total, own]`, with a total and an own value for each selection: deep stacks make no deep
/// JSON, and a frame takes some twenty bytes.
impl<const N: usize> Serialize for Frame<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_tuple(3 + 2 * N)?;
        row.serialize_element(&self.parent)?;
        row.serialize_element(&self.function)?;
        row.serialize_element(&self.line)?;
        for side in 0..N {
            row.serialize_element(&self.total[side])?;
            row.serialize_element(&self.own[side])?;
        }
        row.end()
    }
}

/// A node while the tree grows; nodes are made after their parent.
struct Node<const N: usize> {
    parent: usize,
    function: i64,
    own: [i64; N],
    total: [i64; N],
    /// The heaviest of its lines.
    line: i64,
    /// Own values by state; when all are added up the total.
    states: StateTimes,
    children: Vec<usize>,
}

impl<const N: usize> Node<N> {
    fn new(parent: usize, function: i64) -> Self {
        let (states, children) = Default::default();
        Self { parent, function, own: [0; N], total: [0; N], line: 0, states, children }
    }
}

/// A stack of one side: where it stands in the tree, and the value of all stacks that go on from it.
struct Met {
    /// Which was met before it; the empty stack is its own.
    caller: usize,
    place: usize,
    line: i64,
    value: i64,
}

/// Merges the stacks of all sides, which must come from the same store.
pub(super) fn tree<const N: usize>(sides: [&Stacks; N], by_line: bool) -> Result<Tree<N>, ShowError> {
    let mut nodes = vec![Node::new(0, 0)];
    let mut merged: HashMap<(usize, i64, i64), usize> = HashMap::new();
    let mut lines = Vec::new();
    let mut steps = Steps::default();
    for (side, stacks) in sides.iter().enumerate() {
        // Each stack of this side after its caller; the empty stack is the root.
        let mut met = Vec::with_capacity(stacks.nodes.len() + 1);
        met.push(Met { caller: 0, place: 0, line: 0, value: 0 });
        let mut numbers: HashMap<i64, usize> = HashMap::from([(0, 0)]);
        for &(stack, value, _) in &stacks.sums {
            let path: Vec<_> = stacks.frames(stack).take_while(|frame| !numbers.contains_key(&frame.stack)).collect();
            let known = path.last().map_or(stack, |frame| frame.caller);
            let mut at = numbers.get(&known).copied().unwrap_or(0);
            for StackFrame { stack, function, line, .. } in path.into_iter().rev() {
                steps.step()?;
                let caller = met[at].place;
                let place = *merged.entry((caller, function, if by_line { line } else { 0 })).or_insert_with(|| {
                    nodes.push(Node::new(caller, function));
                    let new = nodes.len() - 1;
                    nodes[caller].children.push(new);
                    new
                });
                met.push(Met { caller: at, place, line, value: 0 });
                at = met.len() - 1;
                numbers.insert(stack, at);
            }
            steps.step()?;
            let own = &mut nodes[met[at].place].own[side];
            *own = own.saturating_add(value);
            met[at].value = met[at].value.saturating_add(value);
        }
        for &(stack, state, value) in stacks.states.iter().filter(|_| N == 1) {
            steps.step()?;
            if let Some(at) = numbers.get(&stack) {
                nodes[met[*at].place].states.add(state, value);
            }
        }
        lines.reserve_exact(met.len());
        for index in (1..met.len()).rev() {
            steps.step()?;
            let Met { caller, place, line, value } = met[index];
            met[caller].value = met[caller].value.saturating_add(value);
            lines.push((place, line, value));
        }
    }
    name_lines(&mut nodes, lines, &mut steps)?;
    for index in (0..nodes.len()).rev() {
        steps.step()?;
        let node = &mut nodes[index];
        let all: [i64; N] = std::array::from_fn(|side| node.own[side].saturating_add(node.total[side]));
        node.total = all;
        if index > 0 {
            let parent = node.parent;
            nodes[parent].total.iter_mut().zip(all).for_each(|(sum, value)| *sum = sum.saturating_add(value));
            let states = mem::take(&mut nodes[index].states);
            nodes[parent].states.merge(&states);
            nodes[index].states = states;
        }
    }
    rows(nodes, &sides, &mut steps)
}

/// Gives each node the line with the most, the first of equal ones. `lines` are places, lines and values in any order; a
/// node may have as many of them as there are stacks.
fn name_lines<const N: usize>(
    nodes: &mut [Node<N>],
    mut lines: Vec<(usize, i64, i64)>,
    steps: &mut Steps,
) -> Result<(), ShowError> {
    lines.sort_unstable_by_key(|(place, line, _)| (*place, *line));
    let mut heaviest = (0, 0);
    for same in lines.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        steps.step()?;
        let (place, line, _) = same[0];
        let value = same.iter().fold(0_i64, |sum, (_, _, value)| sum.saturating_add(*value));
        if heaviest.0 != place || value > heaviest.1 {
            heaviest = (place, value);
            nodes[place].line = line;
        }
    }
    Ok(())
}

/// Writes the nodes as rows: depth first, what a function called by name.
fn rows<const N: usize>(
    mut nodes: Vec<Node<N>>,
    sides: &[&Stacks; N],
    steps: &mut Steps,
) -> Result<Tree<N>, ShowError> {
    let unknown = Function { name: "".into(), file: "".into() };
    let find = |id: i64| sides.iter().find_map(|stacks| stacks.functions.get(&id)).unwrap_or(&unknown);
    let mut functions = vec![Function { name: "total".into(), file: "".into() }];
    let mut numbers: HashMap<i64, usize> = HashMap::new();
    let mut frames = Vec::with_capacity(nodes.len());
    let mut states = Vec::with_capacity(if N == 1 { nodes.len() } else { 0 });
    let mut todo = vec![(0, 0)];
    while let Some((index, parent)) = todo.pop() {
        steps.step()?;
        let node = &mut nodes[index];
        if N == 1 {
            states.push(mem::take(&mut node.states));
        }
        let mut called = mem::take(&mut node.children);
        let node = &nodes[index];
        let function = if index == 0 {
            0
        } else {
            *numbers.entry(node.function).or_insert_with(|| {
                functions.push(find(node.function).clone());
                functions.len() - 1
            })
        };
        let row = frames.len();
        frames.push(Frame { parent, function, line: node.line, total: node.total, own: node.own });
        called.sort_by_cached_key(|child| {
            let function = find(nodes[*child].function);
            (&*function.name, &*function.file, nodes[*child].line)
        });
        todo.extend(called.into_iter().rev().map(|child| (child, row)));
    }
    Ok(Tree { functions, frames, states })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::work::{self, Gone, Haste};

    fn stacks() -> Stacks {
        let function = |name: &str| Function { name: name.into(), file: "f.py".into() };
        Stacks {
            // main:1 > a:5, main:2 > a:6, main:2 > a:6 > main:9
            nodes: HashMap::from([(1, (0, 10, 1)), (2, (1, 11, 5)), (3, (0, 10, 2)), (4, (3, 11, 6)), (5, (4, 10, 9))]),
            functions: HashMap::from([(10, function("main")), (11, function("a"))]),
            sums: vec![(2, 10, 1), (4, 20, 2), (5, 5, 1), (1, 3, 1)],
            ..Stacks::default()
        }
    }

    fn text<const N: usize>(tree: &Tree<N>) -> Vec<String> {
        let row = |frame: &Frame<N>| {
            let name = &tree.functions[frame.function].name;
            format!("{}<{name}:{} {:?}/{:?}", frame.parent, frame.line, frame.own, frame.total)
        };
        tree.frames.iter().map(row).collect()
    }

    #[test]
    fn lines_of_a_function_merge_and_the_heaviest_is_named() {
        let rows = ["0<total:0 [0]/[38]", "0<main:2 [3]/[38]", "1<a:6 [30]/[35]", "2<main:9 [5]/[5]"];
        assert_eq!(text(&tree([&stacks()], false).unwrap()), rows);
    }

    #[test]
    fn by_line_they_stand_apart() {
        let rows = [
            "0<total:0 [0]/[38]",
            "0<main:1 [3]/[13]",
            "1<a:5 [10]/[10]",
            "0<main:2 [0]/[25]",
            "3<a:6 [20]/[25]",
            "4<main:9 [5]/[5]",
        ];
        assert_eq!(text(&tree([&stacks()], true).unwrap()), rows);
    }

    #[test]
    fn two_selections_share_a_tree() {
        let other = Stacks { sums: vec![(5, 7, 1)], ..stacks() };
        let rows =
            ["0<total:0 [0, 0]/[38, 7]", "0<main:2 [3, 0]/[38, 7]", "1<a:6 [30, 0]/[35, 7]", "2<main:9 [5, 7]/[5, 7]"];
        assert_eq!(text(&tree([&stacks(), &other], false).unwrap()), rows);
    }

    #[test]
    fn each_row_has_its_states_and_those_below_it() {
        use crate::states::State::{Cpu, Io, Lock};
        let of_states =
            Stacks { states: vec![(1, Cpu, 3), (2, Cpu, 10), (4, Io, 15), (4, Lock, 5), (5, Io, 5)], ..stacks() };
        let tree = tree([&of_states], false).unwrap();
        let rows: Vec<_> = tree.states.iter().map(|states| states.iter().collect::<Vec<_>>()).collect();
        let all = vec![(Cpu, 13), (Lock, 5), (Io, 20)];
        assert_eq!(rows, [all.clone(), all, vec![(Cpu, 10), (Lock, 5), (Io, 20)], vec![(Io, 5)]]);
        for (frame, states) in tree.frames.iter().zip(&tree.states) {
            assert_eq!(states.sum(), frame.total[0]);
        }
        assert!(super::tree([&of_states, &of_states], false).unwrap().states.is_empty());
    }

    #[test]
    fn a_deep_stack_is_a_long_list() {
        let depth = 5_000;
        let deep = Stacks {
            nodes: (1..=depth).map(|n| (n, (n - 1, 1, n))).collect(),
            functions: HashMap::from([(1, Function { name: "f".into(), file: "".into() })]),
            sums: vec![(depth, 1, 1)],
            ..Stacks::default()
        };
        let tree = tree([&deep], true).unwrap();
        assert_eq!(tree.frames.len(), 5_001);
        let json = serde_json::to_string(&tree.frames).unwrap();
        assert!(json.starts_with("[[0,0,0,1,0],[0,1,1,1,0],[1,1,2,1,0]") && json.ends_with("[4999,1,5000,1,1]]"));
    }

    /// `many` stacks of one frame, each of another line of one function; the last but one has the most.
    fn lines_of_one(many: i64) -> Stacks {
        Stacks {
            nodes: (1..=many).map(|n| (n, (0, 1, n))).collect(),
            functions: HashMap::from([(1, Function { name: "f".into(), file: "".into() })]),
            sums: (1..=many).map(|n| (n, if n == many - 1 { 3 } else { 2 }, 1)).collect(),
            ..Stacks::default()
        }
    }

    #[test]
    fn a_function_may_have_as_many_lines_as_there_are_stacks() {
        // Looked for one by one among those before it, each of them would be some ten billion steps.
        let many = 200_000;
        let tree = tree([&lines_of_one(many)], false).unwrap();
        assert_eq!(text(&tree)[1..], [format!("0<f:{} [{}]/[{}]", many - 1, 2 * many + 1, 2 * many + 1)]);
    }

    #[test]
    fn of_equal_lines_the_first_is_named() {
        let stacks = Stacks { sums: vec![(1, 10, 1), (3, 10, 1)], ..stacks() };
        assert_eq!(text(&tree([&stacks], false).unwrap())[1], "0<main:1 [20]/[20]");
    }

    #[test]
    fn it_ends_with_the_time_of_its_request() {
        let stacks = lines_of_one(10_000);
        let over = work::within(Duration::ZERO, Haste::Patient, Gone::default(), || tree([&stacks], true));
        assert!(matches!(over, Err(ShowError::Busy(_))));
    }
}
