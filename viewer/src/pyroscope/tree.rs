//! Stacks merged by function name, and the three ways in which Pyroscope's clients read them: levels of bars, levels of
//! pairs of bars, and a tree in bytes.

use std::collections::{BTreeMap, HashMap};

use super::messages::{FlameGraph, FlameGraphDiff, Level};
use crate::store::Stacks;

/// What bars are called that were left out because of the bound on their number.
const OTHER: &str = "other";

/// A function under its callers, with what its stacks weigh on each of two sides; a single graph has a left side only.
#[derive(Debug, Default)]
pub(super) struct Tree<'a> {
    total: [i64; 2],
    own: [i64; 2],
    children: BTreeMap<&'a str, Tree<'a>>,
}

impl<'a> Tree<'a> {
    /// Adds stacks to side 0 or 1; of those, the ones that begin with the call site.
    pub(super) fn add(&mut self, stacks: &'a Stacks, side: usize, call_site: &[String]) {
        for &(stack, value, _) in &stacks.sums {
            let names = stacks.names(stack);
            if !begins_with(&names, call_site) {
                continue;
            }
            let mut node = &mut *self;
            add(&mut node.total[side], value);
            for name in names {
                node = node.children.entry(name).or_default();
                add(&mut node.total[side], value);
            }
            add(&mut node.own[side], value);
        }
    }

    /// Merges everything that is smaller than the `most` largest nodes into nodes called `other`.
    pub(super) fn cut(&mut self, most: usize) {
        let mut totals = Vec::new();
        self.each(&mut |node| totals.push(node.total[0].max(node.total[1])));
        if totals.len() <= most || most == 0 {
            return;
        }
        totals.sort_unstable_by(|a, b| b.cmp(a));
        self.drop_below(totals[most - 1]);
    }

    fn each(&self, visit: &mut impl FnMut(&Self)) {
        let mut left = vec![self];
        while let Some(node) = left.pop() {
            visit(node);
            left.extend(node.children.values());
        }
    }

    fn drop_below(&mut self, least: i64) {
        let mut left = vec![self];
        while let Some(node) = left.pop() {
            let mut other = [0; 2];
            node.children.retain(|_, child| {
                let stays = child.total[0].max(child.total[1]) >= least;
                if !stays {
                    add(&mut other[0], child.total[0]);
                    add(&mut other[1], child.total[1]);
                }
                stays
            });
            if other != [0, 0] {
                let rest = node.children.entry(OTHER).or_default();
                for (side, value) in other.into_iter().enumerate() {
                    add(&mut rest.total[side], value);
                    add(&mut rest.own[side], value);
                }
            }
            left.extend(node.children.values_mut());
        }
    }

    /// Levels from the root, bars from the left: offset from the end of the bar before, total, self, name.
    pub(super) fn flame_graph(&self) -> FlameGraph {
        let drawn = self.draw(&[0]);
        FlameGraph { names: drawn.names, levels: drawn.levels, total: self.total[0], max_self: drawn.max_self }
    }

    /// The same of both sides: three values of the left, three of the right, name.
    pub(super) fn flame_graph_diff(&self) -> FlameGraphDiff {
        let drawn = self.draw(&[0, 1]);
        FlameGraphDiff {
            names: drawn.names,
            levels: drawn.levels,
            total: self.total[0].saturating_add(self.total[1]),
            max_self: drawn.max_self,
            left_ticks: self.total[0],
            right_ticks: self.total[1],
        }
    }

    fn draw(&self, sides: &[usize]) -> Drawn {
        let mut drawn = Drawn { names: Vec::new(), levels: Vec::new(), max_self: 0 };
        let mut numbers: HashMap<&str, i64> = HashMap::new();
        // Where the last bar of each level ends.
        let mut ends: Vec<[i64; 2]> = Vec::new();
        let mut left = vec![(self, "total", 0_usize, [0_i64; 2])];
        while let Some((node, name, level, starts)) = left.pop() {
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
            values.push(*numbers.entry(name).or_insert_with(|| {
                drawn.names.push(name.into());
                i64::try_from(drawn.names.len() - 1).unwrap_or(i64::MAX)
            }));
            let mut at = [starts[0].saturating_add(node.own[0]), starts[1].saturating_add(node.own[1])];
            let first = left.len();
            for (name, child) in &node.children {
                left.push((child, name, level + 1, at));
                add(&mut at[0], child.total[0]);
                add(&mut at[1], child.total[1]);
            }
            // The leftmost is drawn next.
            left[first..].reverse();
        }
        drawn
    }

    /// Pyroscope's own bytes: of each node its name, self and number of children, the last child first.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.children.is_empty() {
            return bytes;
        }
        let mut left = vec![("", self)];
        while let Some((name, node)) = left.pop() {
            put(&mut bytes, name.len());
            bytes.extend_from_slice(name.as_bytes());
            put(&mut bytes, usize::try_from(node.own[0]).unwrap_or(0));
            put(&mut bytes, node.children.len());
            left.extend(node.children.iter().map(|(name, child)| (*name, child)));
        }
        bytes
    }
}

/// A deep tree is taken apart level by level, as dropping it as it is would follow it down the stack.
impl Drop for Tree<'_> {
    fn drop(&mut self) {
        let mut left: Vec<Tree<'_>> = std::mem::take(&mut self.children).into_values().collect();
        while let Some(mut node) = left.pop() {
            left.extend(std::mem::take(&mut node.children).into_values());
        }
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

/// Whether a stack, callers first, begins with these functions.
pub(super) fn begins_with(names: &[&str], call_site: &[String]) -> bool {
    names.len() >= call_site.len() && names.iter().zip(call_site).all(|(name, site)| name == site)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Function;

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
        tree.add(&stacks, 0, &[]);
        let graph = tree.flame_graph();
        assert_eq!(graph.names, ["total", "main", "a", "b", "c"]);
        assert_eq!((graph.total, graph.max_self), (35, 20));
        assert_eq!(
            levels(&graph.levels),
            [vec![0, 35, 0, 0], vec![0, 35, 5, 1], vec![5, 10, 10, 2, 0, 20, 0, 3], vec![15, 20, 20, 4]]
        );
    }

    #[test]
    fn nothing_is_a_total_of_nothing() {
        let graph = Tree::default().flame_graph();
        assert_eq!((graph.names, levels(&graph.levels)), (vec!["total".to_owned()], vec![vec![0, 0, 0, 0]]));
        assert!(Tree::default().bytes().is_empty());
    }

    #[test]
    fn two_sides_have_seven_values() {
        let (left, right) = (stacks(&[(2, 10)]), stacks(&[(4, 4)]));
        let mut tree = Tree::default();
        tree.add(&left, 0, &[]);
        tree.add(&right, 1, &[]);
        let graph = tree.flame_graph_diff();
        assert_eq!((graph.total, graph.left_ticks, graph.right_ticks), (14, 10, 4));
        assert_eq!(levels(&graph.levels)[2], [0, 10, 10, 0, 0, 0, 2, 0, 0, 0, 0, 4, 0, 3]);
    }

    #[test]
    fn small_nodes_become_other() {
        let stacks = stacks(&[(1, 50), (2, 3), (4, 20)]);
        let mut tree = Tree::default();
        tree.add(&stacks, 0, &[]);
        tree.cut(4);
        let graph = tree.flame_graph();
        assert_eq!((graph.total, graph.names), (73, ["total", "main", "b", "c", "other"].map(String::from).to_vec()));
    }

    #[test]
    fn a_call_site_chooses_stacks_that_begin_with_it() {
        let stacks = stacks(&[(1, 5), (2, 10), (4, 20)]);
        let mut tree = Tree::default();
        tree.add(&stacks, 0, &["main".into(), "b".into()]);
        assert_eq!(tree.flame_graph().total, 20);
    }

    #[test]
    fn bytes_are_name_self_and_children() {
        let stacks = stacks(&[(1, 5), (2, 300)]);
        let mut tree = Tree::default();
        tree.add(&stacks, 0, &[]);
        assert_eq!(tree.bytes(), [b"\x00\x00\x01\x04main\x05\x01\x01a".as_slice(), &[0xac, 2, 0]].concat());
    }
}
