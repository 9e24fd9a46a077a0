//! What a thread stood in the run queue for, as rows of wall time: shared among the CPU samples of the time in which it did.
//!
//! These rows are derived, as those of CPU time in that profile are: no sample is counted for them, and none is lost with them.

use super::open_window::{Filling, Key};
use crate::profile_type::ProfileTypeId;
use crate::stats::Tally;
use crate::wait_state::State;

/// The CPU samples of one thread that were read at one drain.
#[derive(Debug, Default)]
pub(super) struct Round {
    in_spans: Vec<(Key, u64)>,
    /// Samples, of any type, whose stack is known only later.
    later: usize,
    /// Of all of them.
    weight: u64,
}

impl Round {
    pub(super) fn add(&mut self, key: Key, weight: u64) {
        self.weigh(key.profile_type, weight);
        if key.span_id != 0 && self.in_spans.try_reserve(1).is_ok() {
            self.in_spans.push((key, weight));
        }
    }

    /// One whose stack is known only later: [`share_of`](Self::share_of) says what is its own.
    pub(super) fn add_later(&mut self, profile_type: ProfileTypeId, weight: u64) {
        self.weigh(profile_type, weight);
        self.later += 1;
    }

    pub(super) fn later(&self) -> usize {
        self.later
    }

    pub(super) fn is_empty(&self) -> bool {
        self.weight == 0
    }

    pub(super) fn clear(&mut self) {
        self.in_spans.clear();
        (self.later, self.weight) = (0, 0);
    }

    /// Each sample in a span gets what its weight is of all; the share of those outside of spans is nobody's.
    pub(super) fn share(&self, ready_ns: u64, profile_type: ProfileTypeId, filling: &mut Filling) {
        for &(key, weight) in &self.in_spans {
            add(filling, key, self.share_of(ready_ns, weight), profile_type);
        }
    }

    /// Of a CPU sample of so much weight.
    pub(super) fn share_of(&self, ready_ns: u64, weight: u64) -> u64 {
        let share = u128::from(ready_ns) * u128::from(weight) / u128::from(self.weight.max(1));
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    fn weigh(&mut self, profile_type: ProfileTypeId, weight: u64) {
        if profile_type == ProfileTypeId::TIMER {
            self.weight = self.weight.saturating_add(weight);
        }
    }
}

/// Adds what the thread of a CPU sample stood in the run queue for, where that is in a span and there is room.
pub(super) fn add(filling: &mut Filling, of: Key, ready_ns: u64, profile_type: ProfileTypeId) {
    if ready_ns == 0 || of.span_id == 0 || filling.is_beyond(2) || filling.samples.try_reserve(1).is_err() {
        return;
    }
    let key = Key { profile_type, state: State::RunQueue, ..of };
    filling.samples.entry(key).or_default().tally += Tally { samples: 0, weight: ready_ns };
}
