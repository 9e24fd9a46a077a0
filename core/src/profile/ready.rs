//! What a thread stood in the run queue for, as rows of wall time: shared among the CPU samples of the time in which it did, by what each
//! [claims](crate::sample::waits::claim).
//!
//! These rows are derived, as those of CPU time in that profile are: no sample is counted for them, and none is lost with them.

use super::open_window::{Filling, Key};
use crate::profile_type::ProfileTypeId;
use crate::sample::waits::claim::CLAIM_NS;
use crate::stats::Tally;
use crate::wait_state::State;

/// A sample gets so many times its claim at most: claims are rather too low, as calls that wait burn CPU time, and what nobody claims was
/// in none of these spans.
const MOST_OF_A_CLAIM: u64 = 2;

/// The CPU samples of one thread that were read at one drain.
#[derive(Debug, Default)]
pub(super) struct Round {
    in_spans: Vec<(Key, u64)>,
    /// Samples, of any type, whose stack is known only later.
    later: usize,
    /// CPU samples, with those that only claim.
    entries: usize,
    /// Nanoseconds, of all of them.
    claimed_ns: u64,
}

/// What a CPU sample claims of its thread's time in the run queue, in nanoseconds.
pub(super) fn claimed_ns(claim: u16) -> u64 {
    u64::from(claim) * CLAIM_NS
}

impl Round {
    pub(super) fn add(&mut self, key: Key, claimed_ns: u64) {
        self.entries += 1;
        self.claimed_ns = self.claimed_ns.saturating_add(claimed_ns);
        if key.span_id != 0 && claimed_ns > 0 && self.in_spans.try_reserve(1).is_ok() {
            self.in_spans.push((key, claimed_ns));
        }
    }

    /// One whose stack is known only later: [`share_of`](Self::share_of) says what is its own.
    pub(super) fn add_later(&mut self, profile_type: ProfileTypeId, claimed_ns: u64) {
        self.entries += usize::from(profile_type == ProfileTypeId::TIMER);
        self.claimed_ns = self.claimed_ns.saturating_add(claimed_ns);
        self.later += 1;
    }

    pub(super) fn later(&self) -> usize {
        self.later
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// More than this they do not get.
    pub(super) fn most_ns(&self) -> u64 {
        self.claimed_ns.saturating_mul(MOST_OF_A_CLAIM)
    }

    pub(super) fn clear(&mut self) {
        self.in_spans.clear();
        (self.later, self.entries, self.claimed_ns) = (0, 0, 0);
    }

    /// Each sample in a span gets what its claim is of all; the share of those outside of spans is nobody's.
    pub(super) fn share(&self, ready_ns: u64, profile_type: ProfileTypeId, filling: &mut Filling) {
        for &(key, claimed_ns) in &self.in_spans {
            add(filling, key, self.share_of(ready_ns, claimed_ns), profile_type);
        }
    }

    /// Of a sample that claims so much.
    pub(super) fn share_of(&self, ready_ns: u64, claimed_ns: u64) -> u64 {
        let share = u128::from(ready_ns) * u128::from(claimed_ns) / u128::from(self.claimed_ns.max(1));
        u64::try_from(share).unwrap_or(u64::MAX).min(claimed_ns.saturating_mul(MOST_OF_A_CLAIM))
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
