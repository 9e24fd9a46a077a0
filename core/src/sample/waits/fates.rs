//! What became of the waits that were to be samples, of threads and of flows: each has one fate, or is still kept.

use crate::stats::{AtomicTally, Stats, Tally};

/// What became of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Fate {
    Sampled,
    /// Its thread was in no span.
    Outside,
    /// There was no ring for it, or no room in it.
    Ring,
    /// Another sample of its thread was being taken, or waited for a stack that can be read.
    Busy,
    /// Its thread was not known yet, or no longer.
    Thread,
}

static TAKEN: AtomicTally = AtomicTally::new();
static FATES: [AtomicTally; 5] = [const { AtomicTally::new() }; 5];

/// A wait is to be a sample.
pub(super) fn take(weight: u64) {
    TAKEN.add(Tally { samples: 1, weight });
}

/// What became of waits that were.
pub(super) fn end(fate: Fate, waits: Tally) {
    FATES[fate as usize].add(waits);
}

/// A profiler starts.
pub(super) fn clear() {
    [&TAKEN].into_iter().chain(&FATES).for_each(AtomicTally::clear);
}

/// Adds them to what a profiler says of itself.
pub(crate) fn add_to(stats: Stats) -> Stats {
    // What has a fate first: what is taken meanwhile is pending.
    let of = |fate: Fate| FATES[fate as usize].get();
    let stats = Stats {
        waits_sampled: of(Fate::Sampled),
        waits_outside: of(Fate::Outside),
        waits_dropped_ring: of(Fate::Ring),
        waits_dropped_busy: of(Fate::Busy),
        waits_dropped_thread: of(Fate::Thread),
        ..stats
    };
    let ended = [
        stats.waits_sampled,
        stats.waits_outside,
        stats.waits_dropped_ring,
        stats.waits_dropped_busy,
        stats.waits_dropped_thread,
    ];
    let waits_taken = TAKEN.get();
    let waits_pending = ended.into_iter().fold(waits_taken, Tally::without);
    Stats { waits_taken, waits_pending, ..stats }
}
