//! Sets of address ranges that the signal handler searches while the profiler's thread replaces them.
//!
//! Two tables of fixed size in static memory: the writer fills the one that is not current and flips. Who was held up in the middle of a
//! search while they were flipped searches again, as its table may have been rewritten; nothing is ever freed.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// Searches until one counts. The table would have to be replaced within each of them.
const MAX_SEARCHES: usize = 8;

/// Up to `N` ranges, sorted, that do not overlap.
#[derive(Debug)]
pub(crate) struct RangeSet<const N: usize> {
    tables: [Table<N>; 2],
    /// How often it was replaced: the table with the last bit of that is current.
    replaced: AtomicUsize,
}

#[derive(Debug)]
struct Table<const N: usize> {
    length: AtomicUsize,
    ranges: [[AtomicU64; 2]; N],
}

impl<const N: usize> Table<N> {
    const fn new() -> Self {
        Self { length: AtomicUsize::new(0), ranges: [const { [AtomicU64::new(0), AtomicU64::new(0)] }; N] }
    }
}

impl<const N: usize> RangeSet<N> {
    pub(crate) const fn new() -> Self {
        Self { tables: [Table::new(), Table::new()], replaced: AtomicUsize::new(0) }
    }

    /// Puts `ranges`, sorted, in place of those there are; false = more than `N`, and the first `N` count. One caller at a time.
    pub(crate) fn replace(&self, ranges: &[(u64, u64)]) -> bool {
        let next = self.replaced.load(Ordering::Relaxed).wrapping_add(1);
        // Release: who reads of the table what is written from here on sees, by the fence in `contains`, that it was replaced before.
        fence(Ordering::Release);
        let table = &self.tables[next & 1];
        for (place, (start, end)) in table.ranges.iter().zip(ranges) {
            place[0].store(*start, Ordering::Relaxed);
            place[1].store(*end, Ordering::Relaxed);
        }
        table.length.store(ranges.len().min(N), Ordering::Relaxed);
        // Release: pairs with the load in `contains`.
        self.replaced.store(next, Ordering::Release);
        ranges.len() <= N
    }

    /// Whether `address` is in one of the ranges. Async-signal-safe; about ten loads.
    #[inline]
    pub(crate) fn contains(&self, address: u64) -> bool {
        let mut found = false;
        for _ in 0..MAX_SEARCHES {
            let replaced = self.replaced.load(Ordering::Acquire);
            found = self.tables[replaced & 1].contains(address);
            // Acquire: pairs with the fence in `replace`.
            fence(Ordering::Acquire);
            if self.replaced.load(Ordering::Relaxed) == replaced {
                break;
            }
        }
        found
    }
}

impl<const N: usize> Table<N> {
    #[inline]
    fn contains(&self, address: u64) -> bool {
        let (mut low, mut high) = (0, self.length.load(Ordering::Relaxed).min(N));
        while low < high {
            let middle = usize::midpoint(low, high);
            let [start, end] = &self.ranges[middle];
            if address < start.load(Ordering::Relaxed) {
                high = middle;
            } else if address >= end.load(Ordering::Relaxed) {
                low = middle + 1;
            } else {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_and_replaced() {
        static SET: RangeSet<3> = RangeSet::new();
        assert!(!SET.contains(5));
        assert!(SET.replace(&[(10, 20), (20, 25), (40, 41)]));
        let found: Vec<u64> = [9, 10, 19, 20, 24, 25, 39, 40, 41].into_iter().filter(|at| SET.contains(*at)).collect();
        assert_eq!(found, [10, 19, 20, 24, 40]);
        assert!(SET.replace(&[(1, 2)]));
        assert!(SET.contains(1) && !SET.contains(10));
        assert!(!SET.replace(&[(1, 2), (3, 4), (5, 6), (7, 8)]), "one too many");
        assert!(SET.contains(5) && !SET.contains(7));
    }
}
