//! Tags of threads: what describes a thread (its id, its name), and over it what its code adds and removes again.
//!
//! Tags that are added twice have to be removed twice, and of two values for one name the one added last counts, so
//! blocks that add and remove may nest. Kept by the kernel's thread id, as they outlive the profiler that runs.

use std::collections::{HashMap, HashSet};

use super::tags::TagSetId;
use crate::wire::labels::truncate_value;

/// Added tags that a thread keeps; then the oldest goes, so that code which only adds does no harm.
const MAX_ADDED: usize = 64;

type Pair = (String, String);

#[derive(Debug, Default)]
struct Tags {
    /// Whether somebody said what describes the thread.
    is_described: bool,
    description: Vec<Pair>,
    added: Vec<Pair>,
    /// What they amount to; held.
    set: TagSetId,
}

/// The tags of all threads that have any.
#[derive(Debug, Default)]
pub(crate) struct ThreadTags {
    by_tid: HashMap<i32, Tags>,
}

impl ThreadTags {
    /// The set that samples of a thread carry.
    pub(crate) fn of(&self, tid: i32) -> TagSetId {
        self.by_tid.get(&tid).map_or(TagSetId::EMPTY, |tags| tags.set)
    }

    /// The threads that have any.
    pub(crate) fn tids(&self) -> impl Iterator<Item = &i32> {
        self.by_tid.keys()
    }

    /// Whether [`describe`](Self::describe) was called for a thread.
    pub(crate) fn is_described(&self, tid: i32) -> bool {
        self.by_tid.get(&tid).is_some_and(|tags| tags.is_described)
    }

    /// Replaces what describes a thread.
    pub(crate) fn describe(&mut self, tid: i32, description: Vec<Pair>) {
        let tags = self.by_tid.entry(tid).or_default();
        tags.is_described = true;
        tags.description = description;
        tags.renew();
    }

    pub(crate) fn add(&mut self, tid: i32, name: &str, value: &str) {
        let tags = self.by_tid.entry(tid).or_default();
        if tags.added.len() == MAX_ADDED {
            tags.added.remove(0);
        }
        tags.added.push((name.to_owned(), truncate_value(value).to_owned()));
        tags.renew();
    }

    /// Takes back the last [`add`](Self::add) of just this pair, if there was one.
    pub(crate) fn remove(&mut self, tid: i32, name: &str, value: &str) {
        if let Some(tags) = self.by_tid.get_mut(&tid)
            && let Some(at) = tags.added.iter().rposition(|pair| pair.0 == name && pair.1 == truncate_value(value))
        {
            tags.added.remove(at);
            tags.renew();
        }
    }

    /// A thread has ended.
    pub(crate) fn end(&mut self, tid: i32) {
        if let Some(tags) = self.by_tid.remove(&tid) {
            tags.set.release();
        }
    }

    /// A profiler starts: descriptions are for it to ask for again, and threads may have ended meanwhile.
    pub(crate) fn start(&mut self, alive: &HashSet<i32>) {
        let gone: Vec<i32> = self.by_tid.keys().filter(|tid| !alive.contains(tid)).copied().collect();
        gone.into_iter().for_each(|tid| self.end(tid));
        for tags in self.by_tid.values_mut() {
            tags.is_described = false;
            tags.description.clear();
            tags.renew();
        }
    }

    /// In the child after a fork: of all threads there is the one that was `parents` and is `own` now.
    pub(crate) fn after_fork(&mut self, parents: i32, own: i32) {
        let kept = self.by_tid.remove(&parents);
        let gone: Vec<i32> = self.by_tid.keys().copied().collect();
        gone.into_iter().for_each(|tid| self.end(tid));
        self.by_tid.extend(kept.map(|tags| (own, tags)));
    }
}

impl Tags {
    fn renew(&mut self) {
        let pairs: Vec<Pair> = self.description.iter().chain(&self.added).cloned().collect();
        let old = std::mem::replace(&mut self.set, TagSetId::of_thread(&pairs));
        old.release();
    }
}

#[cfg(test)]
mod tests {
    use super::super::tags;
    use super::*;

    fn seen(threads: &ThreadTags, tid: i32) -> String {
        let pairs: Vec<String> =
            tags::get(threads.of(tid)).iter().map(|(name, value)| format!("{name}={value}")).collect();
        pairs.join(" ")
    }

    fn pair(name: &str, value: &str) -> Pair {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn adding_and_removing_nest_whatever_the_values() {
        let mut threads = ThreadTags::default();
        threads.describe(1, vec![pair("thread_name", "worker")]);
        for value in ["outer", "inner", "inner"] {
            threads.add(1, "step", value);
        }
        threads.remove(1, "step", "inner");
        assert_eq!(seen(&threads, 1), "step=inner thread_name=worker");
        threads.remove(1, "step", "inner");
        assert_eq!(seen(&threads, 1), "step=outer thread_name=worker");
        threads.remove(1, "step", "never added");
        threads.remove(1, "step", "outer");
        assert_eq!(seen(&threads, 1), "thread_name=worker");
        threads.describe(1, vec![pair("thread_name", "renamed")]);
        assert_eq!(seen(&threads, 1), "thread_name=renamed");
        threads.end(1);
        assert_eq!(threads.of(1), TagSetId::EMPTY);
    }

    #[test]
    fn code_that_only_adds_keeps_the_newest() {
        let mut threads = ThreadTags::default();
        for n in 0..=MAX_ADDED {
            threads.add(2, &format!("n{n}"), "x");
        }
        let pairs = tags::get(threads.of(2));
        assert_eq!(pairs.len(), MAX_ADDED);
        assert!(!pairs.iter().any(|(name, _)| name == "n0"));
        threads.end(2);
    }

    #[test]
    fn a_new_profiler_keeps_what_living_threads_added_and_a_child_what_its_thread_did() {
        let mut threads = ThreadTags::default();
        threads.describe(3, vec![pair("thread_name", "a")]);
        threads.add(3, "step", "x");
        threads.add(4, "step", "y");
        threads.start(&HashSet::from([3]));
        assert_eq!((seen(&threads, 3).as_str(), seen(&threads, 4).as_str()), ("step=x", ""));
        assert!(!threads.is_described(3));
        threads.add(5, "step", "z");
        threads.after_fork(3, 30);
        assert_eq!(
            (seen(&threads, 30).as_str(), seen(&threads, 3).as_str(), seen(&threads, 5).as_str()),
            ("step=x", "", "")
        );
        threads.end(30);
    }
}
