//! Sums by number, as many as have room: the smallest become one.

use std::cmp::Reverse;

use ahash::HashMap;

/// What is added up.
pub(super) trait Sum: Default {
    /// What the largest have most of.
    type Weight: Ord + Copy;

    /// How large it is.
    fn weight(&self) -> Self::Weight;

    /// Adds another one.
    fn add(&mut self, other: Self);
}

/// The largest of many sums, while they are added up.
#[derive(Debug)]
pub(super) struct Largest<S> {
    /// By number.
    pub(super) sums: HashMap<i64, S>,
    /// All others together, where there are any.
    pub(super) rest: Option<S>,
    most: usize,
    /// Whether there is no room for any other.
    is_chosen: bool,
}

impl<S: Sum> Largest<S> {
    /// Adds up, by `read`, what has room. Where not all has, it is read again for the largest alone, as one that was left
    /// out may have come again.
    pub(super) fn read(most: usize, mut read: impl FnMut(&mut Self) -> rusqlite::Result<()>) -> rusqlite::Result<Self> {
        let mut found = Self { sums: HashMap::default(), rest: None, most: most.max(2), is_chosen: false };
        read(&mut found)?;
        if found.rest.take().is_some() {
            found.sums.values_mut().for_each(|sum| *sum = S::default());
            found.is_chosen = true;
            read(&mut found)?;
        }
        Ok(found)
    }

    /// The sum of a number, or that of all which have no room.
    pub(super) fn of(&mut self, number: i64) -> &mut S {
        if !self.sums.contains_key(&number) {
            if self.is_chosen {
                return self.rest.get_or_insert_default();
            }
            if self.sums.len() >= self.most {
                self.leave_out_the_smallest();
            }
        }
        self.sums.entry(number).or_default()
    }

    fn leave_out_the_smallest(&mut self) {
        let mut weights: Vec<_> = self.sums.iter().map(|(number, sum)| (sum.weight(), Reverse(*number))).collect();
        let middle = weights.len() / 2;
        let bound = *weights.select_nth_unstable(middle).1;
        let rest = self.rest.get_or_insert_default();
        for (_, sum) in self.sums.extract_if(|number, sum| (sum.weight(), Reverse(*number)) < bound) {
            rest.add(sum);
        }
    }

    /// Largest first, and the rest.
    pub(super) fn sorted(self) -> (Vec<(i64, S)>, Option<S>) {
        let mut sums: Vec<_> = self.sums.into_iter().collect();
        sums.sort_unstable_by_key(|(number, sum)| (Reverse(sum.weight()), *number));
        (sums, self.rest)
    }
}
