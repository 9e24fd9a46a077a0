//! What a thread stood in the run queue for, as rows of wall time: what its samples and its spans that ended
//! [claim](crate::sample::waits::claim), as far as the kernel counted as much.
//!
//! These rows are derived, as those of CPU time in that profile are: no sample is counted for them, and none is lost with them.

use super::open_window::{Filling, Key};
use crate::profile_type::ProfileTypeId;
use crate::sample::ring::Measure;
use crate::sample::threads::Part;
use crate::sample::waits::claim;
use crate::stats::Tally;
use crate::wait_state::State;

/// The claims of one thread that were read at one drain.
#[derive(Debug, Default)]
pub(super) struct Round {
    in_spans: Vec<(Key, u64)>,
    /// Samples, of any type, whose stack is known only later.
    later: usize,
    /// Whether anything was read that may claim.
    asks: bool,
}

/// What a CPU sample claims of its thread's time in the run queue, in nanoseconds, or what stands in its place where a span ended.
pub(super) fn claimed_ns(measure: Measure) -> u64 {
    if measure.only_claims() { measure.value } else { claim::decoded(measure.claim) }
}

impl Round {
    pub(super) fn add(&mut self, key: Key, claimed_ns: u64) {
        self.asks = true;
        if key.span_id != 0 && claimed_ns > 0 && self.in_spans.try_reserve(1).is_ok() {
            self.in_spans.push((key, claimed_ns));
        }
    }

    /// One whose stack is known only later.
    pub(super) fn add_later(&mut self) {
        self.later += 1;
        self.asks = true;
    }

    pub(super) fn later(&self) -> usize {
        self.later
    }

    /// Whether the kernel is to be asked, where nobody claims anything too: what it counted is of no later time.
    pub(super) fn asks(&self) -> bool {
        self.asks
    }

    pub(super) fn clear(&mut self) {
        self.in_spans.clear();
        (self.later, self.asks) = (0, false);
    }

    /// Each gets that part of its claim.
    pub(super) fn share(&self, part: Part, profile_type: ProfileTypeId, filling: &mut Filling) {
        for &(key, claimed_ns) in &self.in_spans {
            add(filling, key, part.of(claimed_ns), profile_type);
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
