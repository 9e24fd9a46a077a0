//! What became of the waits that were to be samples, of threads and of flows: each has one fate, or is still pending.

use std::sync::atomic::{AtomicU16, Ordering};

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

/// Counts of one profiler.
#[derive(Debug)]
struct Counts {
    taken: AtomicTally,
    fates: [AtomicTally; 5],
}

impl Counts {
    const fn none() -> Self {
        Self { taken: AtomicTally::new(), fates: [const { AtomicTally::new() }; 5] }
    }
}

/// Those of this profiler, and of the one before: a wait that was taken for that one may get its fate only now.
#[derive(Debug)]
struct Fates {
    /// One more with each start of a profiler.
    generation: AtomicU16,
    counts: [Counts; 2],
}

static FATES: Fates = Fates { generation: AtomicU16::new(0), counts: [const { Counts::none() }; 2] };

impl Fates {
    fn of(&self, generation: u16) -> &Counts {
        &self.counts[usize::from(generation & 1)]
    }

    fn generation(&self) -> u16 {
        self.generation.load(Ordering::Acquire)
    }

    fn take(&self, weight: u64) -> u16 {
        let generation = self.generation();
        self.of(generation).taken.add(Tally { samples: 1, weight });
        generation
    }

    fn end(&self, fate: Fate, waits: Tally, generation: u16) -> bool {
        let counts = generation == self.generation();
        if counts {
            self.of(generation).fates[fate as usize].add(waits);
        }
        counts
    }

    fn clear(&self) {
        let next = self.generation().wrapping_add(1);
        let Counts { taken, fates } = self.of(next);
        [taken].into_iter().chain(fates).for_each(AtomicTally::clear);
        self.generation.store(next, Ordering::Release);
    }
}

/// A wait is to be a sample. Returns whose, for [`end`].
pub(super) fn take(weight: u64) -> u16 {
    FATES.take(weight)
}

/// What became of waits that were. False: their profiler counts no more.
pub(super) fn end(fate: Fate, waits: Tally, generation: u16) -> bool {
    FATES.end(fate, waits, generation)
}

/// Whether waits are of the profiler that counts now.
pub(super) fn is_of_now(generation: u16) -> bool {
    generation == FATES.generation()
}

/// A profiler starts.
pub(super) fn clear() {
    FATES.clear();
}

/// How many waits were to be samples.
pub(crate) fn taken() -> u64 {
    FATES.of(FATES.generation()).taken.get().samples
}

/// Adds them to what a profiler says of itself.
pub(crate) fn add_to(stats: Stats) -> Stats {
    // What has a fate first: what is taken meanwhile is pending.
    let counts = FATES.of(FATES.generation());
    let of = |fate: Fate| counts.fates[fate as usize].get();
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
    let waits_taken = counts.taken.get();
    let waits_pending = ended.into_iter().fold(waits_taken, Tally::without);
    Stats { waits_taken, waits_pending, ..stats }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_of_an_earlier_profiler_is_in_no_count_of_the_next() {
        let fates = Fates { generation: AtomicU16::new(u16::MAX), counts: [Counts::none(), Counts::none()] };
        let one = |weight| Tally { samples: 1, weight };
        let [first, second] = [10, 20].map(|weight| fates.take(weight));
        assert!(fates.end(Fate::Outside, one(10), first));
        fates.clear();
        let third = fates.take(5);
        assert!(!fates.end(Fate::Sampled, one(20), second));
        assert!(fates.end(Fate::Sampled, one(5), third));
        let Counts { taken, fates: ended } = fates.of(fates.generation());
        assert_eq!((taken.get(), ended[Fate::Sampled as usize].get()), (one(5), one(5)));
        assert_eq!(ended[Fate::Outside as usize].get(), Tally::default());
        fates.clear();
        assert_eq!(fates.of(fates.generation()).taken.get(), Tally::default());
    }
}
