//! A flame graph: the stacks of a selection, merged into a tree of functions.

use std::collections::HashMap;

use serde::Serialize;

use super::{ShowError, Shown};
use crate::selection::Selection;
use crate::store::Stacks;

/// A flame graph.
#[derive(Debug, Serialize)]
pub(crate) struct Flame {
    /// What it shows.
    pub(crate) sentence: String,
    /// All five parts of the profile type; empty without samples.
    pub(crate) profile_type: String,
    /// Unit of all values.
    pub(crate) unit: String,
    /// Value of all samples.
    pub(crate) total_ns: i64,
    /// How many samples.
    pub(crate) samples: i64,
    /// Named `total`.
    pub(crate) root: Frame,
}

/// A function (or a line of it) under its callers.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Frame {
    /// The function.
    pub(crate) name: String,
    /// Its file.
    pub(crate) file: String,
    /// Its line; where lines are merged, the one with the most.
    pub(crate) line: i64,
    /// Value of all samples under it.
    pub(crate) total: i64,
    /// Value of samples that end in it.
    #[serde(rename = "self")]
    pub(crate) own: i64,
    /// What it called, by name.
    pub(crate) children: Vec<Frame>,
}

impl Shown {
    /// The flame graph of a selection, by function or by line.
    pub(crate) fn flame(&self, selection: &Selection, by_line: bool) -> Result<Flame, ShowError> {
        let stacks = self.stacks(selection)?;
        let total_ns = stacks.sums.iter().map(|(_, value, _)| value).sum();
        Ok(Flame {
            sentence: selection.sentence(),
            unit: unit(&stacks.kind).into(),
            profile_type: stacks.kind.clone(),
            total_ns,
            samples: stacks.sums.iter().map(|(.., count)| count).sum(),
            root: Frame { name: "total".into(), total: total_ns, ..tree(&stacks, by_line) },
        })
    }

    /// The stacks of a selection; a span or trace that nothing is known of is an error.
    pub(crate) fn stacks(&self, selection: &Selection) -> Result<Stacks, ShowError> {
        let stacks = self.store.stacks(selection)?;
        if stacks.sums.is_empty() {
            self.check_known(selection)?;
        }
        Ok(stacks)
    }
}

/// The unit in a profile type.
pub(super) fn unit(kind: &str) -> &str {
    kind.split(':').nth(2).unwrap_or("nanoseconds")
}

/// A node while the tree grows; nodes are made after their parent.
struct Node {
    parent: usize,
    function: i64,
    own: i64,
    lines: Vec<(i64, i64)>,
}

fn tree(stacks: &Stacks, by_line: bool) -> Frame {
    let mut nodes = vec![Node { parent: 0, function: 0, own: 0, lines: Vec::new() }];
    let mut merged: HashMap<(usize, i64, i64), usize> = HashMap::new();
    // Which node a stack of the store became; the empty stack is the root.
    let mut places: HashMap<i64, usize> = HashMap::from([(0, 0)]);
    for &(stack, value, _) in &stacks.sums {
        let mut path = Vec::new();
        let mut at = stack;
        while !places.contains_key(&at) {
            let Some(&(parent, function, line)) = stacks.nodes.get(&at) else {
                break;
            };
            path.push((at, function, line));
            at = parent;
        }
        let mut place = places.get(&at).copied().unwrap_or(0);
        for (at, function, line) in path.into_iter().rev() {
            place = *merged.entry((place, function, if by_line { line } else { 0 })).or_insert_with(|| {
                nodes.push(Node { parent: place, function, own: 0, lines: Vec::new() });
                nodes.len() - 1
            });
            places.insert(at, place);
        }
        nodes[place].own += value;
        weigh_lines(&mut nodes, &places, stacks, (stack, value));
    }
    frame(nodes, &stacks.functions.iter().map(|(id, f)| (*id, (f.name.as_str(), f.file.as_str()))).collect())
}

/// Adds a stack's value to the line of each of its frames.
fn weigh_lines(nodes: &mut [Node], places: &HashMap<i64, usize>, stacks: &Stacks, (stack, value): (i64, i64)) {
    let mut at = stack;
    while let Some(&(parent, _, line)) = stacks.nodes.get(&at) {
        if let Some(node) = places.get(&at).and_then(|place| nodes.get_mut(*place)) {
            match node.lines.iter_mut().find(|(known, _)| *known == line) {
                Some((_, sum)) => *sum += value,
                None => node.lines.push((line, value)),
            }
        }
        at = parent;
    }
}

/// Turns the nodes into a tree, children first.
fn frame(nodes: Vec<Node>, functions: &HashMap<i64, (&str, &str)>) -> Frame {
    let mut children: Vec<Vec<Frame>> = nodes.iter().map(|_| Vec::new()).collect();
    let mut below = vec![0; nodes.len()];
    for (index, node) in nodes.iter().enumerate().rev() {
        let mut called = std::mem::take(&mut children[index]);
        called.sort_by(|a, b| (&a.name, &a.file, a.line).cmp(&(&b.name, &b.file, b.line)));
        let (name, file) = functions.get(&node.function).copied().unwrap_or_default();
        let line = node.lines.iter().max_by_key(|(line, value)| (*value, -line)).map_or(0, |(line, _)| *line);
        let total = node.own + below[index];
        let frame = Frame { name: name.into(), file: file.into(), line, total, own: node.own, children: called };
        if index == 0 {
            return frame;
        }
        below[node.parent] += total;
        children[node.parent].push(frame);
    }
    Frame::default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Function;

    fn stacks() -> Stacks {
        let function = |name: &str| Function { name: name.into(), file: "f.py".into() };
        Stacks {
            // main:1 > a:5, main:2 > a:6, main:2 > a:6 > main:9
            nodes: HashMap::from([(1, (0, 10, 1)), (2, (1, 11, 5)), (3, (0, 10, 2)), (4, (3, 11, 6)), (5, (4, 10, 9))]),
            functions: HashMap::from([(10, function("main")), (11, function("a"))]),
            sums: vec![(2, 10, 1), (4, 20, 2), (5, 5, 1), (1, 3, 1)],
            kind: "process_cpu:cpu:nanoseconds:cpu:nanoseconds".into(),
            period: 10,
        }
    }

    fn text(frame: &Frame) -> String {
        let children: Vec<String> = frame.children.iter().map(text).collect();
        format!("{}:{} {}/{} [{}]", frame.name, frame.line, frame.own, frame.total, children.join(", "))
    }

    #[test]
    fn lines_of_a_function_merge_and_the_heaviest_is_named() {
        assert_eq!(text(&tree(&stacks(), false)), ":0 0/38 [main:2 3/38 [a:6 30/35 [main:9 5/5 []]]]");
    }

    #[test]
    fn by_line_they_stand_apart() {
        assert_eq!(
            text(&tree(&stacks(), true)),
            ":0 0/38 [main:1 3/13 [a:5 10/10 []], main:2 0/25 [a:6 20/25 [main:9 5/5 []]]]"
        );
    }
}
