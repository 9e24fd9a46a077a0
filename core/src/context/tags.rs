//! Tag sets: interned, so that a sample carries one small number and nesting is a matter of whole sets.
//!
//! A set is made where a `tag_wrapper` is entered and let go where it is left; who holds one (an execution context,
//! a thread) keeps its id in the records that the handler reads. Handlers never come here.
//!
//! The table is one a process and outlives every profiler, as ids live in the host's objects. It is held over a fork
//! ([`fork`](crate::os::fork)), so the child finds it whole.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::wire::labels::truncate_value;

/// Tag sets of contexts that may be alive at once; one more is counted and left out. One that was let go counts until no ring
/// can hold a sample of it: two windows.
const MAX_SETS: usize = 1_024;
/// The same of sets that describe threads, which have a table of their own: names of threads that come and go must not use
/// up the tags of the program.
const MAX_THREAD_SETS: usize = 8_192;
/// Numbers of the sets of threads begin after this one.
const LAST_OF_CONTEXTS: u32 = 0x7fff_ffff;

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
        let mut tables = lock();
        let tables = tables.get_or_insert_default();
        let merged = merge(&tables.get(self), tags);
        tables.contexts.intern(merged)
    }

    /// The set of a thread with these tags, the last value of a name winning; held until [`release`](Self::release). The
    /// empty set, counted, when 8,192 sets of threads are alive.
    pub(crate) fn of_thread(tags: &[(String, String)]) -> Self {
        let merged = merge(&[], tags);
        let set = lock().get_or_insert_default().threads.intern(merged);
        if set == Self::EMPTY { set } else { Self(set.0 + LAST_OF_CONTEXTS) }
    }

    /// This set without the given pairs; held until [`release`](Self::release).
    #[must_use]
    pub fn without(self, tags: &[(String, String)]) -> Self {
        let mut tables = lock();
        let tables = tables.get_or_insert_default();
        let is_taken = |(name, value): &(String, String)| {
            tags.iter().any(|(taken, of)| taken == name && truncate_value(of) == value.as_str())
        };
        let left = tables.get(self).iter().filter(|pair| !is_taken(pair)).cloned().collect();
        tables.contexts.intern(left)
    }

    /// Ends one holder's claim.
    pub fn release(self) {
        if self == Self::EMPTY {
            return;
        }
        if let Some(tables) = lock().as_mut() {
            let (table, number) = tables.table_of(self);
            let window = table.window;
            if let Some(slot) = table.slots.get_mut(number) {
                slot.holders = slot.holders.saturating_sub(1);
                slot.released_in = window;
            }
        }
    }
}

/// Sorted by name, no name twice: the pairs known, with these over them. Values are as long as servers take, as sets are kept.
fn merge(known: &[(String, String)], tags: &[(String, String)]) -> Vec<(String, String)> {
    let mut merged = known.to_vec();
    for (name, value) in tags {
        match merged.binary_search_by(|(known, _)| known.cmp(name)) {
            Ok(at) => truncate_value(value).clone_into(&mut merged[at].1),
            Err(at) => merged.insert(at, (name.clone(), truncate_value(value).to_owned())),
        }
    }
    merged
}

/// Names and values, sorted by name, no name twice.
pub(crate) type Tags = Arc<[(String, String)]>;

#[derive(Debug)]
struct Slot {
    tags: Tags,
    holders: u32,
    /// The window in which the last holder let go: rings may hold samples of it until the next window ends.
    released_in: u32,
}

/// The sets of contexts and those of threads.
#[derive(Debug)]
pub(crate) struct Tables {
    contexts: Table,
    threads: Table,
}

impl Default for Tables {
    fn default() -> Self {
        Self { contexts: Table::new(MAX_SETS), threads: Table::new(MAX_THREAD_SETS) }
    }
}

#[derive(Debug)]
struct Table {
    most: usize,
    by_tags: HashMap<Tags, u32>,
    /// Entry 0 stands for the empty set and is never used.
    slots: Vec<Slot>,
    overflowed: u64,
    window: u32,
}

static TABLES: Mutex<Option<Tables>> = Mutex::new(None);

pub(crate) fn lock() -> MutexGuard<'static, Option<Tables>> {
    TABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tags of a set.
pub(crate) fn get(id: TagSetId) -> Tags {
    lock().as_mut().map_or_else(|| Arc::from([]), |tables| tables.get(id))
}

/// Sets that found no place since the process started: of contexts, and of threads.
pub(crate) fn overflowed() -> (u64, u64) {
    lock().as_ref().map_or((0, 0), |tables| (tables.contexts.overflowed, tables.threads.overflowed))
}

/// Tells the tables that a window was rotated: what was let go before the last one may be reused.
pub(crate) fn rotate_generations() {
    if let Some(tables) = lock().as_mut() {
        for table in [&mut tables.contexts, &mut tables.threads] {
            table.window = table.window.wrapping_add(1);
        }
    }
}

impl Tables {
    /// The table of a set, and its number in it.
    fn table_of(&mut self, id: TagSetId) -> (&mut Table, usize) {
        match id.0.checked_sub(LAST_OF_CONTEXTS) {
            Some(number) => (&mut self.threads, number as usize),
            None => (&mut self.contexts, id.0 as usize),
        }
    }

    fn get(&mut self, id: TagSetId) -> Tags {
        let (table, number) = self.table_of(id);
        table.get(number)
    }
}

impl Table {
    fn new(most: usize) -> Self {
        Self { most, by_tags: HashMap::new(), slots: Vec::new(), overflowed: 0, window: 0 }
    }

    fn get(&self, number: usize) -> Tags {
        match self.slots.get(number) {
            Some(slot) if number != 0 => slot.tags.clone(),
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
        let id = if self.slots.len() <= self.most {
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
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_THREAD_SETS")]
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
    fn values_are_kept_as_long_as_servers_take() {
        let long = format!("{}é and more", "x".repeat(2047));
        let kept = [tag("a", &"x".repeat(2047))];
        for id in [
            TagSetId::EMPTY.with(&[tag("a", &long)]),
            TagSetId::EMPTY.with(&[tag("a", "short")]).with(&[tag("a", &long)]),
            TagSetId::of_thread(&[tag("a", &long)]),
        ] {
            assert_eq!(*get(id), kept);
        }
        let set = TagSetId::EMPTY.with(&[tag("a", &long)]);
        assert_eq!(set.without(&[tag("a", &long)]), TagSetId::EMPTY, "a truncated value is found by the whole one");
        let most = [tag("a", &"y".repeat(2048))];
        assert_eq!(*get(TagSetId::EMPTY.with(&most)), most);
    }

    #[test]
    fn the_place_of_no_tags_is_given_to_nobody() {
        TagSetId::EMPTY.with(&[tag("any", "set")]).release();
        TagSetId::EMPTY.release();
        assert_eq!(lock().as_ref().map(|tables| tables.contexts.slots[0].holders), Some(1));
    }

    #[test]
    fn sets_of_threads_take_no_place_of_the_program_s() {
        let threads: Vec<TagSetId> =
            (0..2 * MAX_SETS).map(|n| TagSetId::of_thread(&[tag("thread_name", &format!("worker {n}"))])).collect();
        assert_eq!(*get(threads[MAX_SETS + 7]), [tag("thread_name", "worker 1031")]);
        let own = TagSetId::EMPTY.with(&[tag("tenant", "a")]);
        assert_eq!(*get(own), [tag("tenant", "a")]);
        assert_eq!(*get(threads[0].with(&[tag("tenant", "a")])), [tag("tenant", "a"), tag("thread_name", "worker 0")]);
        threads.into_iter().chain([own]).for_each(TagSetId::release);
    }

    #[test]
    fn a_full_table_counts_and_reuses_what_nobody_holds_two_windows_later() {
        let mut table = Table::new(MAX_SETS);
        let ids: Vec<TagSetId> = (0..MAX_SETS).map(|n| table.intern(vec![tag("n", &n.to_string())])).collect();
        assert_eq!(table.intern(vec![tag("n", "one more")]), TagSetId::EMPTY);
        assert_eq!(table.overflowed, 1);
        table.slots[ids[5].0 as usize].holders = 0;
        table.slots[ids[5].0 as usize].released_in = 3;
        table.window = 4;
        assert_eq!(table.intern(vec![tag("n", "too early")]), TagSetId::EMPTY, "rings may still name the set");
        table.window = 5;
        assert_eq!(table.intern(vec![tag("n", "now")]), ids[5]);
        assert_eq!(*table.get(ids[5].0 as usize), [tag("n", "now")]);
    }
}
