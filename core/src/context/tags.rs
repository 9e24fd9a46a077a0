//! Tag sets: interned, so that a sample carries one small number and nesting is a matter of whole sets.
//!
//! A set is made where a `tag_wrapper` is entered and let go where it is left; who holds one (an execution context,
//! a thread) keeps its id in the records that the handler reads. Handlers never come here.
//!
//! The table is one a process and outlives every profiler, as ids live in the host's objects. It is held over a fork
//! ([`fork`](super::fork)), so the child finds it whole.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tag sets that may be alive at once; one more is counted and left out.
const MAX_SETS: usize = 1_024;

/// An interned tag set. [`TagSetId::EMPTY`] has no tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct TagSetId(pub(crate) u32);

impl TagSetId {
    /// No tags.
    pub const EMPTY: Self = Self(0);

    /// The set that has this number, for a host that keeps numbers in its objects. One that was made up is a set
    /// without tags, or another's.
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// The number to keep.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// This set with `tags` added, the new values winning; held until [`release`](Self::release). The empty set, counted,
    /// when 1,024 sets are alive. About 200 ns and a lock: not from a signal handler.
    #[must_use]
    pub fn with(self, tags: &[(String, String)]) -> Self {
        let mut table = lock();
        let table = table.get_or_insert_default();
        let mut merged: Vec<(String, String)> = table.get(self).to_vec();
        for (name, value) in tags {
            match merged.binary_search_by(|(known, _)| known.cmp(name)) {
                Ok(at) => merged[at].1.clone_from(value),
                Err(at) => merged.insert(at, (name.clone(), value.clone())),
            }
        }
        table.intern(merged)
    }

    /// This set without the given pairs; held until [`release`](Self::release).
    #[must_use]
    pub fn without(self, tags: &[(String, String)]) -> Self {
        let mut table = lock();
        let table = table.get_or_insert_default();
        let left = table.get(self).iter().filter(|pair| !tags.contains(pair)).cloned().collect();
        table.intern(left)
    }

    /// Ends one holder's claim.
    pub fn release(self) {
        if let Some(table) = lock().as_mut() {
            let window = table.window;
            if let Some(slot) = table.slots.get_mut(self.0 as usize) {
                slot.holders = slot.holders.saturating_sub(1);
                slot.released_in = window;
            }
        }
    }
}

/// Names and values, sorted by name, no name twice.
pub(crate) type Tags = Arc<[(String, String)]>;

#[derive(Debug)]
struct Slot {
    tags: Tags,
    holders: u32,
    /// The window in which the last holder let go: rings may hold samples of it until the next window is cut.
    released_in: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    by_tags: HashMap<Tags, u32>,
    /// Entry 0 stands for the empty set and is never used.
    slots: Vec<Slot>,
    overflowed: u64,
    window: u32,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

pub(crate) fn lock() -> MutexGuard<'static, Option<Table>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tags of a set.
pub(crate) fn get(id: TagSetId) -> Tags {
    lock().as_ref().map_or_else(|| Arc::from([]), |table| table.get(id))
}

/// Sets that found no place since the process started.
pub(crate) fn overflowed() -> u64 {
    lock().as_ref().map_or(0, |table| table.overflowed)
}

/// Tells the table that a window was cut: what was let go before the last one may be reused.
pub(crate) fn next_window() {
    if let Some(table) = lock().as_mut() {
        table.window = table.window.wrapping_add(1);
    }
}

impl Table {
    fn get(&self, id: TagSetId) -> Tags {
        match self.slots.get(id.0 as usize) {
            Some(slot) if id != TagSetId::EMPTY => slot.tags.clone(),
            _ => Arc::from([]),
        }
    }

    fn intern(&mut self, tags: Vec<(String, String)>) -> TagSetId {
        if tags.is_empty() {
            return TagSetId::EMPTY;
        }
        let tags: Tags = tags.into();
        if let Some(&id) = self.by_tags.get(&tags) {
            self.slots[id as usize].holders += 1;
            return TagSetId(id);
        }
        if self.slots.is_empty() {
            self.slots.push(Slot { tags: Arc::from([]), holders: 1, released_in: 0 });
        }
        let id = if self.slots.len() <= MAX_SETS {
            self.slots.push(Slot { tags: tags.clone(), holders: 1, released_in: 0 });
            self.slots.len() - 1
        } else {
            let window = self.window;
            let free =
                self.slots.iter().position(|slot| slot.holders == 0 && window.wrapping_sub(slot.released_in) >= 2);
            let Some(id) = free else {
                self.overflowed += 1;
                return TagSetId::EMPTY;
            };
            self.by_tags.remove(&self.slots[id].tags);
            self.slots[id] = Slot { tags: tags.clone(), holders: 1, released_in: 0 };
            id
        };
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_SETS")]
        let id = id as u32;
        self.by_tags.insert(tags, id);
        TagSetId(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(name: &str, value: &str) -> (String, String) {
        (name.into(), value.into())
    }

    #[test]
    fn inner_tags_win_and_equal_sets_are_one() {
        let outer = TagSetId::EMPTY.with(&[tag("region", "eu"), tag("tier", "web")]);
        let inner = outer.with(&[tag("region", "us")]);
        assert_eq!(*get(inner), [tag("region", "us"), tag("tier", "web")]);
        let again = TagSetId::EMPTY.with(&[tag("tier", "web"), tag("region", "us")]);
        assert_eq!(again, inner);
        let left = inner.without(&[tag("region", "us"), tag("tier", "other")]);
        assert_eq!(*get(left), [tag("tier", "web")]);
        assert_eq!(left.without(&[tag("tier", "web")]), TagSetId::EMPTY);
        for id in [outer, inner, again, left] {
            id.release();
        }
    }

    #[test]
    fn a_full_table_counts_and_reuses_what_nobody_holds_two_windows_later() {
        let mut table = Table::default();
        let ids: Vec<TagSetId> = (0..MAX_SETS).map(|n| table.intern(vec![tag("n", &n.to_string())])).collect();
        assert_eq!(table.intern(vec![tag("n", "one more")]), TagSetId::EMPTY);
        assert_eq!(table.overflowed, 1);
        table.slots[ids[5].0 as usize].holders = 0;
        table.slots[ids[5].0 as usize].released_in = 3;
        table.window = 4;
        assert_eq!(table.intern(vec![tag("n", "too early")]), TagSetId::EMPTY, "rings may still name the set");
        table.window = 5;
        assert_eq!(table.intern(vec![tag("n", "now")]), ids[5]);
        assert_eq!(*table.get(ids[5]), [tag("n", "now")]);
    }
}
