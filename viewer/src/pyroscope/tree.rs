//! Stacks merged by function name, and the three ways in which Pyroscope's clients read them: levels of bars, levels of
//! pairs of bars, and a tree in bytes.

use std::collections::{HashMap, VecDeque};

use super::error::QueryError;
use super::labels::too_large;
use super::messages::{FlameGraph, FlameGraphDiff, Level};
use crate::show::Steps;
use crate::store::{StackFrame, Stacks};

/// What bars are called that were left out because of the bound on their number.
const OTHER: &str = "other";
/// And the root.
const TOTAL: &str = "total";
/// The node that is none, as the root is nobody's child; and the root.
const NONE: usize = 0;

/// Functions under their callers, with what their stacks weigh on each of two sides; a single graph has a left side only. Callers
/// come before what they called; the root is the first.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    nodes: Vec<Node>,
    /// By caller and name.
    children: ahash::HashMap<(usize, usize), usize>,
    /// What nodes are called, each name once.
    names: Vec<&'a str>,
    numbers: ahash::HashMap<&'a str, usize>,
    steps: Steps,
}

#[derive(Debug, Default)]
struct Node {
    caller: usize,
    name: usize,
    total: [i64; 2],
    own: [i64; 2],
    first_child: usize,
    next: usize,
}

impl Node {
    /// What it weighs on the side where it weighs more.
    fn weight(&self) -> i64 {
        self.total[0].max(self.total[1])
    }
}

impl Default for Tree<'_> {
    fn default() -> Self {
        let (children, numbers, steps) = Default::default();
        let mut tree = Self { nodes: vec![Node::default()], children, names: Vec::new(), numbers, steps };
        tree.name(TOTAL);
        tree
    }
}

impl<'a> Tree<'a> {
    /// Adds stacks to side 0 or 1; of those, the ones that begin with the call site.
    pub(super) fn add(&mut self, stacks: &'a Stacks, side: usize, call_site: &[String]) -> Result<(), QueryError> {
        // Where each stack ends, and the number of each function's name.
        let mut ends: ahash::HashMap<i64, usize> = ahash::HashMap::default();
        let mut names: ahash::HashMap<i64, usize> = ahash::HashMap::default();
        ends.insert(0, 0);
        for &(stack, value, _) in &stacks.sums {
            self.steps.step()?;
            if !begins_with(stacks, stack, call_site, &mut self.steps)? {
                continue;
            }
            let path: Vec<StackFrame> =
                stacks.frames(stack).take_while(|frame| !ends.contains_key(&frame.stack)).collect();
            let known = path.last().map_or(stack, |frame| frame.caller);
            let mut at = ends.get(&known).copied().unwrap_or(0);
            for StackFrame { stack, function, .. } in path.into_iter().rev() {
                self.steps.step()?;
                let name = *names.entry(function).or_insert_with(|| {
                    self.name(stacks.functions.get(&function).map_or("", |function| &*function.name))
                });
                at = self.child(at, name);
                ends.insert(stack, at);
            }
            add(&mut self.nodes[at].own[side], value);
        }
        for at in (0..self.nodes.len()).rev() {
            self.steps.step()?;
            let node = &mut self.nodes[at];
            let (caller, total) = (node.caller, node.total[side].saturating_add(node.own[side]));
            node.total[side] = total;
            if at > 0 {
                add(&mut self.nodes[caller].total[side], total);
            }
        }
        Ok(())
    }

    /// The number of a name.
    fn name(&mut self, name: &'a str) -> usize {
        *self.numbers.entry(name).or_insert_with(|| {
            self.names.push(name);
            self.names.len() - 1
        })
    }

    /// The function of that name that a node called.
    fn child(&mut self, caller: usize, name: usize) -> usize {
        *self.children.entry((caller, name)).or_insert_with(|| {
            let new = self.nodes.len();
            self.nodes.push(Node { caller, name, next: self.nodes[caller].first_child, ..Node::default() });
            self.nodes[caller].first_child = new;
            new
        })
    }

    /// Merges everything that is smaller than the `most` largest nodes into nodes called `other`.
    pub(super) fn prune(&mut self, most: usize) -> Result<(), QueryError> {
        if self.nodes.len() <= most || most == 0 {
            return Ok(());
        }
        let mut weights: Vec<i64> = self.nodes.iter().map(Node::weight).collect();
        let least = *weights.select_nth_unstable_by(most - 1, |a, b| b.cmp(a)).1;
        let other = self.name(OTHER);
        let mut left = vec![0];
        while let Some(at) = left.pop() {
            let (mut child, mut rest) = (std::mem::take(&mut self.nodes[at].first_child), [0; 2]);
            while child != NONE {
                self.steps.step()?;
                let Node { next, total, name, .. } = self.nodes[child];
                if self.nodes[child].weight() >= least {
                    self.nodes[child].next = std::mem::replace(&mut self.nodes[at].first_child, child);
                    left.push(child);
                } else {
                    self.children.remove(&(at, name));
                    add(&mut rest[0], total[0]);
                    add(&mut rest[1], total[1]);
                }
                child = next;
            }
            if rest != [0, 0] {
                let other = self.child(at, other);
                let Node { total, own, .. } = &mut self.nodes[other];
                for (side, value) in rest.into_iter().enumerate() {
                    add(&mut total[side], value);
                    add(&mut own[side], value);
                }
            }
        }
        Ok(())
    }

    /// Levels from the root, bars from the left: offset from the end of the bar before, total, self, name.
    pub(super) fn flame_graph(mut self) -> Result<FlameGraph, QueryError> {
        let drawn = self.draw(&[0])?;
        let total = self.nodes[0].total[0];
        Ok(FlameGraph { names: drawn.names, levels: drawn.levels, total, max_self: drawn.max_self })
    }

    /// The same of both sides: three values of the left, three of the right, name.
    pub(super) fn flame_graph_diff(mut self) -> Result<FlameGraphDiff, QueryError> {
        let drawn = self.draw(&[0, 1])?;
        let [left, right] = self.nodes[0].total;
        Ok(FlameGraphDiff {
            names: drawn.names,
            levels: drawn.levels,
            total: left.saturating_add(right),
            max_self: drawn.max_self,
            left_ticks: left,
            right_ticks: right,
        })
    }

    /// What a node called, by name.
    fn called(&self, at: usize, ranks: &[usize]) -> Vec<usize> {
        let next = |child: usize| Some(child).filter(|child| *child != NONE);
        let first = next(self.nodes[at].first_child);
        let mut called: Vec<usize> = std::iter::successors(first, |child| next(self.nodes[*child].next)).collect();
        called.sort_unstable_by_key(|child| ranks[self.nodes[*child].name]);
        called
    }

    /// The place of each name in their order.
    fn ranks(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.names.len()).collect();
        order.sort_unstable_by_key(|name| self.names[*name]);
        let mut ranks = vec![0; order.len()];
        order.into_iter().enumerate().for_each(|(rank, name)| ranks[name] = rank);
        ranks
    }

    fn draw(&mut self, sides: &[usize]) -> Result<Drawn, QueryError> {
        // The map is not looked into any more.
        self.children = ahash::HashMap::default();
        let ranks = self.ranks();
        let mut drawn = Drawn { names: Vec::new(), levels: Vec::new(), max_self: 0 };
        let mut numbers: HashMap<usize, i64> = HashMap::new();
        // Where the last bar of each level ends.
        let mut ends: Vec<[i64; 2]> = Vec::new();
        let mut left = vec![(0, 0_usize, [0_i64; 2])];
        while let Some((at, level, starts)) = left.pop() {
            self.steps.step()?;
            let node = &self.nodes[at];
            if level == ends.len() {
                ends.push([0; 2]);
                drawn.levels.push(Level::default());
            }
            let values = &mut drawn.levels[level].values;
            for &side in sides {
                values.extend([starts[side].saturating_sub(ends[level][side]), node.total[side], node.own[side]]);
                ends[level][side] = starts[side].saturating_add(node.total[side]);
                drawn.max_self = drawn.max_self.max(node.own[side]);
            }
            values.push(*numbers.entry(node.name).or_insert_with(|| {
                drawn.names.push(self.names[node.name].into());
                i64::try_from(drawn.names.len() - 1).unwrap_or(i64::MAX)
            }));
            let mut start = [starts[0].saturating_add(node.own[0]), starts[1].saturating_add(node.own[1])];
            let first = left.len();
            for child in self.called(at, &ranks) {
                left.push((child, level + 1, start));
                add(&mut start[0], self.nodes[child].total[0]);
                add(&mut start[1], self.nodes[child].total[1]);
            }
            // The leftmost is drawn next.
            left[first..].reverse();
        }
        Ok(drawn)
    }

    /// Pyroscope's own bytes: of each node its name, self and number of children, the last child first. At most so many, as a name
    /// stands in each node.
    pub(super) fn bytes(mut self, most: usize) -> Result<Vec<u8>, QueryError> {
        let mut bytes = Vec::new();
        if self.nodes[0].first_child == NONE {
            return Ok(bytes);
        }
        let ranks = self.ranks();
        let mut left = vec![0];
        while let Some(at) = left.pop() {
            self.steps.step()?;
            let (node, called) = (&self.nodes[at], self.called(at, &ranks));
            let name = if at == 0 { "" } else { self.names[node.name] };
            put(&mut bytes, name.len());
            bytes.extend_from_slice(name.as_bytes());
            put(&mut bytes, usize::try_from(node.own[0]).unwrap_or(0));
            put(&mut bytes, called.len());
            left.extend(called);
            if bytes.len() > most {
                return Err(too_large(most));
            }
        }
        Ok(bytes)
    }
}

/// Values are anyone's to send; a sum of them stays a number.
fn add(sum: &mut i64, value: i64) {
    *sum = sum.saturating_add(value);
}

struct Drawn {
    names: Vec<String>,
    levels: Vec<Level>,
    max_self: i64,
}

fn put(bytes: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// Whether a stack begins with these functions, callers first.
pub(super) fn begins_with(
    stacks: &Stacks,
    stack: i64,
    call_site: &[String],
    steps: &mut Steps,
) -> Result<bool, QueryError> {
    if call_site.is_empty() {
        return Ok(true);
    }
    // The last ones that come are the first ones called.
    let mut outermost = VecDeque::with_capacity(call_site.len());
    for frame in stacks.frames(stack) {
        steps.step()?;
        if outermost.len() == call_site.len() {
            outermost.pop_front();
        }
        outermost.push_back(frame.function);
    }
    let name = |function: &i64| stacks.functions.get(function).map_or("", |function| &*function.name);
    Ok(outermost.len() == call_site.len() && outermost.iter().rev().map(name).eq(call_site))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::Function;
    use crate::work::{self, Gone, Haste};

    fn stacks(sums: &[(i64, i64)]) -> Stacks {
        let function = |name: &str| Function { name: name.into(), file: "".into() };
        Stacks {
            // main > a, main > b > c
            nodes: HashMap::from([(1, (0, 10, 1)), (2, (1, 11, 1)), (3, (1, 12, 1)), (4, (3, 13, 1))]),
            functions: ["main", "a", "b", "c"].into_iter().zip(10..).map(|(name, id)| (id, function(name))).collect(),
            sums: sums.iter().map(|(stack, value)| (*stack, *value, 1)).collect(),
            ..Stacks::default()
        }
    }

    fn levels(levels: &[Level]) -> Vec<Vec<i64>> {
        levels.iter().map(|level| level.values.clone()).collect()
    }

    #[test]
    fn levels_are_offsets_totals_selfs_and_names() {
        let stacks = stacks(&[(1, 5), (2, 10), (4, 20)]);
        let mut tree = Tree::default();
        tree.add(&stacks, 0, &[]).unwrap();
        let graph = tree.flame_graph().unwrap();
        assert_eq!(graph.names, ["total", "main", "a", "b", "c"]);
        assert_eq!((graph.total, graph.max_self), (35, 20));
        assert_eq!(
            levels(&graph.levels),
            [vec![0, 35, 0, 0], vec![0, 35, 5, 1], vec![5, 10, 10, 2, 0, 20, 0, 3], vec![15, 20, 20, 4]]
        );
    }

    #[test]
    fn nothing_is_a_total_of_nothing() {
        let graph = Tree::default().flame_graph().unwrap();
        assert_eq!((graph.names, levels(&graph.levels)), (vec!["total".to_owned()], vec![vec![0, 0, 0, 0]]));
        assert!(Tree::default().bytes(9).unwrap().is_empty());
    }

    #[test]
    fn two_sides_have_seven_values() {
        let (left, right) = (stacks(&[(2, 10)]), stacks(&[(4, 4)]));
        let mut tree = Tree::default();
        tree.add(&left, 0, &[]).unwrap();
        tree.add(&right, 1, &[]).unwrap();
        let graph = tree.flame_graph_diff().unwrap();
        assert_eq!((graph.total, graph.left_ticks, graph.right_ticks), (14, 10, 4));
        assert_eq!(levels(&graph.levels)[2], [0, 10, 10, 0, 0, 0, 2, 0, 0, 0, 0, 4, 0, 3]);
    }

    #[test]
    fn small_nodes_become_other() {
        let stacks = stacks(&[(1, 50), (2, 3), (4, 20)]);
        let mut tree = Tree::default();
        tree.add(&stacks, 0, &[]).unwrap();
        tree.prune(4).unwrap();
        let graph = tree.flame_graph().unwrap();
        assert_eq!((graph.total, graph.names), (73, ["total", "main", "b", "c", "other"].map(String::from).to_vec()));
    }

    #[test]
    fn a_call_site_chooses_stacks_that_begin_with_it() {
        let stacks = stacks(&[(1, 5), (2, 10), (4, 20)]);
        let mut tree = Tree::default();
        tree.add(&stacks, 0, &["main".into(), "b".into()]).unwrap();
        assert_eq!(tree.flame_graph().unwrap().total, 20);
    }

    #[test]
    fn bytes_are_name_self_and_children() {
        let stacks = stacks(&[(1, 5), (2, 300)]);
        let mut tree = Tree::default();
        tree.add(&stacks, 0, &[]).unwrap();
        assert_eq!(tree.bytes(99).unwrap(), [b"\x00\x00\x01\x04main\x05\x01\x01a".as_slice(), &[0xac, 2, 0]].concat());
    }

    #[test]
    fn nodes_are_merged_by_name_whatever_stack_they_come_by() {
        let function = |name: &str| Function { name: name.into(), file: "".into() };
        // Two functions called a, one of them on two lines, each with b below it; and one called other.
        let stacks = Stacks {
            nodes: HashMap::from([
                (1, (0, 10, 1)),
                (2, (1, 12, 1)),
                (3, (0, 11, 1)),
                (4, (3, 12, 1)),
                (5, (0, 10, 2)),
                (6, (5, 12, 1)),
                (7, (0, 13, 1)),
            ]),
            functions: HashMap::from([
                (10, function("a")),
                (11, function("a")),
                (12, function("b")),
                (13, function(OTHER)),
            ]),
            sums: vec![(2, 1, 1), (4, 20, 1), (6, 300, 1), (7, 5, 1)],
            ..Stacks::default()
        };
        let tree = |most| {
            let mut tree = Tree::default();
            tree.add(&stacks, 0, &[]).unwrap();
            tree.prune(most).unwrap();
            let graph = tree.flame_graph().unwrap();
            (graph.names, levels(&graph.levels))
        };
        let names = ["total", "a", "b", "other"].map(String::from).to_vec();
        assert_eq!(
            tree(9),
            (names.clone(), vec![vec![0, 326, 0, 0], vec![0, 321, 0, 1, 0, 5, 5, 3], vec![0, 321, 321, 2]])
        );
        // What is left out is added to the one that has the name already, or to a new one.
        assert_eq!(tree(3).1, tree(9).1);
        let mut small = stacks;
        small.sums[3].1 = 400;
        small.sums[1].1 = 0;
        let mut tree = Tree::default();
        tree.add(&small, 0, &[]).unwrap();
        tree.prune(2).unwrap();
        assert_eq!(levels(&tree.flame_graph().unwrap().levels)[1], [0, 701, 701, 1]);
    }

    #[test]
    fn each_loop_ends_with_the_time_of_its_request() {
        // A chain, so that each node is a step of its own.
        let deep = Stacks {
            nodes: (1..=10_000).map(|n| (n, (n - 1, n, 1))).collect(),
            functions: (1..=10_000).map(|n| (n, Function { name: n.to_string().into(), file: "".into() })).collect(),
            sums: vec![(10_000, 1, 1)],
            ..Stacks::default()
        };
        let full = || {
            let mut tree = Tree::default();
            tree.add(&deep, 0, &[]).unwrap();
            tree
        };
        let over = |work: &mut dyn FnMut() -> bool| {
            work::within(Duration::ZERO, Haste::Patient, Gone::default(), || assert!(work()));
        };
        over(&mut || Tree::default().add(&deep, 0, &[]).is_err());
        let (mut pruned, drawn, diff, bytes) = (full(), full(), full(), full());
        let site = vec!["1".to_owned(); 2];
        over(&mut || begins_with(&deep, 10_000, &site, &mut Steps::default()).is_err());
        over(&mut || pruned.prune(5_000).is_err());
        let mut trees = vec![drawn, diff, bytes].into_iter();
        over(&mut || trees.next().unwrap().flame_graph().is_err());
        over(&mut || trees.next().unwrap().flame_graph_diff().is_err());
        over(&mut || trees.next().unwrap().bytes(usize::MAX).is_err());
    }

    #[test]
    fn a_name_that_stands_in_many_nodes_may_be_too_much() {
        let name = "n".repeat(1_000);
        let deep = Stacks {
            nodes: (1..=100).map(|n| (n, (n - 1, 1, 1))).collect(),
            functions: HashMap::from([(1, Function { name: name.as_str().into(), file: "".into() })]),
            sums: vec![(100, 1, 1)],
            ..Stacks::default()
        };
        let tree = || {
            let mut tree = Tree::default();
            tree.add(&deep, 0, &[]).unwrap();
            tree
        };
        assert_eq!(tree().bytes(1 << 20).unwrap().len(), 3 + 100 * 1_004);
        assert!(tree().bytes(50_000).unwrap_err().to_string().contains("more than 50000 bytes"));
    }
}
