//! Profiles that wait to be sent: bounded in bytes, and the oldest goes when there is no more room.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::random;
use crate::profile::pprof::Encoded;
use crate::stats::Tally;

/// A profile on its way.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) encoded: Encoded,
    /// The same at every try, so that a server's log names the profile once.
    pub(super) id: String,
    /// Order of arrival; both halves of a profile have its number.
    pub(super) number: u64,
    pub(super) since: Instant,
    pub(super) tries: u32,
    /// Answers "500 unknown", which may mean that the server cannot read the profile.
    pub(super) unknown: u32,
    /// A try was not answered, so the server may have the profile.
    pub(super) unanswered: bool,
    pub(super) is_half: bool,
}

impl Item {
    /// What takes a half's place in the queue.
    pub(super) fn half(&self, encoded: Encoded) -> Self {
        Self { encoded, id: random::uuid(), is_half: true, tries: 0, unknown: 0, unanswered: false, ..*self }
    }
}

/// What was in profiles that are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) profiles: u64,
    pub(super) all: Tally,
    /// The part of it that a server may have, as it did not answer.
    pub(super) unanswered: Tally,
}

impl Lost {
    pub(super) fn add(&mut self, tally: Tally, unanswered: bool) {
        self.profiles += 1;
        self.all += tally;
        if unanswered {
            self.unanswered += tally;
        }
    }
}

#[derive(Debug)]
pub(super) struct Queue {
    /// In the order in which they are tried; one that failed goes to the end, so that it holds up no other.
    items: VecDeque<Item>,
    bytes: usize,
    max_bytes: usize,
    next_number: u64,
}

impl Queue {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { items: VecDeque::new(), bytes: 0, max_bytes, next_number: 0 }
    }

    /// Adds a new profile. Returns what fell out.
    pub(super) fn add(&mut self, encoded: Encoded, now: Instant) -> Lost {
        let number = self.next_number;
        self.next_number += 1;
        let id = random::uuid();
        self.put(Item { encoded, id, number, since: now, tries: 0, unknown: 0, unanswered: false, is_half: false })
    }

    /// Puts one back, behind the others. Returns what fell out.
    pub(super) fn put(&mut self, item: Item) -> Lost {
        self.bytes += item.encoded.body.len();
        self.items.push_back(item);
        let mut dropped = Lost::default();
        while self.bytes > self.max_bytes {
            let Some(oldest) = (0..self.items.len()).min_by_key(|&at| self.items[at].number) else { break };
            if let Some(item) = self.remove(oldest) {
                dropped.add(item.encoded.tally, item.unanswered);
            }
        }
        dropped
    }

    /// Takes the next one to try with a number below `limit`.
    pub(super) fn take(&mut self, limit: u64) -> Option<Item> {
        let at = self.items.iter().position(|item| item.number < limit)?;
        self.remove(at)
    }

    /// Removes what has waited for `max_age`.
    pub(super) fn take_old(&mut self, now: Instant, max_age: Duration) -> Lost {
        let mut dropped = Lost::default();
        while let Some(at) = self.items.iter().position(|item| now.duration_since(item.since) >= max_age) {
            if let Some(item) = self.remove(at) {
                dropped.add(item.encoded.tally, item.unanswered);
            }
        }
        dropped
    }

    /// Removes everything.
    pub(super) fn take_all(&mut self) -> Lost {
        self.bytes = 0;
        let mut all = Lost::default();
        for item in self.items.drain(..) {
            all.add(item.encoded.tally, item.unanswered);
        }
        all
    }

    /// Whether one with a number below `limit` waits.
    pub(super) fn has_below(&self, limit: u64) -> bool {
        self.items.iter().any(|item| item.number < limit)
    }

    /// Whether one with a number from `limit` on waits.
    pub(super) fn has_from(&self, limit: u64) -> bool {
        self.items.iter().any(|item| item.number >= limit)
    }

    /// The number of the next profile: everything queued so far is below it.
    pub(super) fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Since when the oldest has waited.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.items.iter().map(|item| item.since).min()
    }

    fn remove(&mut self, at: usize) -> Option<Item> {
        let item = self.items.remove(at)?;
        self.bytes -= item.encoded.body.len();
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile_type::ProfileType;

    fn profile(weight: u64, bytes: usize) -> Encoded {
        Encoded {
            profile_type: ProfileType::process_cpu(1),
            start_unix_nanos: 0,
            body: vec![0; bytes],
            tally: Tally { samples: 1, weight },
        }
    }

    fn lost(profiles: u64, weight: u64) -> Lost {
        Lost { profiles, all: Tally { samples: profiles, weight }, unanswered: Tally::default() }
    }

    fn weights(queue: &mut Queue) -> Vec<u64> {
        std::iter::from_fn(|| queue.take(u64::MAX)).map(|item| item.encoded.tally.weight).collect()
    }

    #[test]
    fn the_oldest_goes_when_there_is_no_more_room_even_if_it_is_not_next() {
        let (mut queue, now) = (Queue::new(100), Instant::now());
        for weight in [1, 2, 3] {
            assert_eq!(queue.add(profile(weight, 30), now), Lost::default());
        }
        let first = queue.take(u64::MAX).expect("one");
        assert_eq!(queue.put(first), Lost::default());
        assert_eq!(queue.add(profile(4, 30), now), lost(1, 1));
        assert_eq!(queue.add(profile(5, 70), now), lost(2, 2 + 3));
        assert_eq!(weights(&mut queue), [4, 5]);
        assert_eq!(queue.add(profile(6, 101), now), lost(1, 6));
        assert!(queue.take(u64::MAX).is_none());
        assert_eq!(queue.add(profile(7, 100), now), Lost::default());
    }

    #[test]
    fn what_has_waited_too_long_goes() {
        let (mut queue, start) = (Queue::new(100), Instant::now());
        queue.add(profile(1, 1), start);
        queue.add(profile(2, 1), start + Duration::from_secs(1));
        assert_eq!(queue.oldest(), Some(start));
        assert_eq!(queue.take_old(start + Duration::from_secs(9), Duration::from_secs(9)), lost(1, 1));
        assert_eq!(weights(&mut queue), [2]);
    }

    #[test]
    fn only_what_was_there_before_a_number_is_taken() {
        let (mut queue, now) = (Queue::new(100), Instant::now());
        queue.add(profile(1, 1), now);
        let limit = queue.next_number();
        queue.add(profile(2, 1), now);
        assert!(queue.has_below(limit) && queue.has_from(limit));
        assert_eq!(queue.take(limit).map(|item| item.encoded.tally.weight), Some(1));
        assert!(queue.take(limit).is_none());
        assert_eq!(queue.take_all(), lost(1, 2));
    }
}
