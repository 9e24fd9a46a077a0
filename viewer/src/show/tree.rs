//! Stacks of one or more selections, merged into a tree of functions.

use std::collections::HashMap;

use serde::ser::{Serialize, SerializeTuple, Serializer};

use crate::store::{Function, StackFrame, Stacks};

/// A tree of functions, or of lines of them, in rows: parents before what they called. The first row is the total.
#[derive(Debug)]
pub(crate) struct Tree<const N: usize> {
    /// What the rows refer to; the first is named `total`.
    pub(crate) functions: Vec<Function>,
    /// The rows.
    pub(crate) frames: Vec<Frame<N>>,
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
    lines: Vec<(i64, i64)>,
    children: Vec<usize>,
}

impl<const N: usize> Node<N> {
    fn new(parent: usize, function: i64) -> Self {
        Self { parent, function, own: [0; N], total: [0; N], lines: Vec::new(), children: Vec::new() }
    }

    fn line(&self) -> i64 {
        self.lines.iter().max_by_key(|(line, value)| (*value, -line)).map_or(0, |(line, _)| *line)
    }
}

/// Merges the stacks of all sides, which must come from the same store.
pub(super) fn tree<const N: usize>(sides: [&Stacks; N], by_line: bool) -> Tree<N> {
    let mut nodes = vec![Node::new(0, 0)];
    let mut merged: HashMap<(usize, i64, i64), usize> = HashMap::new();
    for (side, stacks) in sides.iter().enumerate() {
        // Which node a stack of this side became; the empty stack is the root.
        let mut places: HashMap<i64, usize> = HashMap::from([(0, 0)]);
        for &(stack, value, _) in &stacks.sums {
            let path: Vec<_> = stacks.frames(stack).take_while(|frame| !places.contains_key(&frame.stack)).collect();
            let known = path.last().map_or(stack, |frame| frame.caller);
            let mut place = places.get(&known).copied().unwrap_or(0);
            for StackFrame { stack, function, line, .. } in path.into_iter().rev() {
                place = *merged.entry((place, function, if by_line { line } else { 0 })).or_insert_with(|| {
                    nodes.push(Node::new(place, function));
                    let new = nodes.len() - 1;
                    nodes[place].children.push(new);
                    new
                });
                places.insert(stack, place);
            }
            let own = &mut nodes[place].own[side];
            *own = own.saturating_add(value);
            weigh_lines(&mut nodes, &places, stacks, (stack, value));
        }
    }
    for index in (0..nodes.len()).rev() {
        let node = &mut nodes[index];
        let all: [i64; N] = std::array::from_fn(|side| node.own[side].saturating_add(node.total[side]));
        node.total = all;
        if index > 0 {
            let parent = node.parent;
            nodes[parent].total.iter_mut().zip(all).for_each(|(sum, value)| *sum = sum.saturating_add(value));
        }
    }
    rows(&nodes, &sides)
}

/// Adds a stack's value to the line of each of its frames.
fn weigh_lines<const N: usize>(
    nodes: &mut [Node<N>],
    places: &HashMap<i64, usize>,
    stacks: &Stacks,
    (stack, value): (i64, i64),
) {
    for StackFrame { stack, line, .. } in stacks.frames(stack) {
        if let Some(node) = places.get(&stack).and_then(|place| nodes.get_mut(*place)) {
            match node.lines.iter_mut().find(|(known, _)| *known == line) {
                Some((_, sum)) => *sum = sum.saturating_add(value),
                None => node.lines.push((line, value)),
            }
        }
    }
}

/// Writes the nodes as rows: depth first, what a function called by name.
fn rows<const N: usize>(nodes: &[Node<N>], sides: &[&Stacks; N]) -> Tree<N> {
    let unknown = Function { name: "".into(), file: "".into() };
    let find = |id: i64| sides.iter().find_map(|stacks| stacks.functions.get(&id)).unwrap_or(&unknown);
    let mut functions = vec![Function { name: "total".into(), file: "".into() }];
    let mut numbers: HashMap<i64, usize> = HashMap::new();
    let mut frames = Vec::with_capacity(nodes.len());
    let mut todo = vec![(0, 0)];
    while let Some((index, parent)) = todo.pop() {
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
        frames.push(Frame { parent, function, line: node.line(), total: node.total, own: node.own });
        let mut called = node.children.clone();
        called.sort_by_cached_key(|child| {
            let function = find(nodes[*child].function);
            (&*function.name, &*function.file, nodes[*child].line())
        });
        todo.extend(called.into_iter().rev().map(|child| (child, row)));
    }
    Tree { functions, frames }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(text(&tree([&stacks()], false)), rows);
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
        assert_eq!(text(&tree([&stacks()], true)), rows);
    }

    #[test]
    fn two_selections_share_a_tree() {
        let other = Stacks { sums: vec![(5, 7, 1)], ..stacks() };
        let rows =
            ["0<total:0 [0, 0]/[38, 7]", "0<main:2 [3, 0]/[38, 7]", "1<a:6 [30, 0]/[35, 7]", "2<main:9 [5, 7]/[5, 7]"];
        assert_eq!(text(&tree([&stacks(), &other], false)), rows);
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
        let tree = tree([&deep], true);
        assert_eq!(tree.frames.len(), 5_001);
        let json = serde_json::to_string(&tree.frames).unwrap();
        assert!(json.starts_with("[[0,0,0,1,0],[0,1,1,1,0],[1,1,2,1,0]") && json.ends_with("[4999,1,5000,1,1]]"));
    }
}
