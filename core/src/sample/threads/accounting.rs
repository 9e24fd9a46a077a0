//! What threads did, over all of them: those that have records, and those whose records are free again.

use std::sync::atomic::Ordering;

use super::local::{DROPPED_HERE, DROPPED_WAITS};
use super::registry::Registry;
use super::sampling::{Counts, Owner, Unsampled};
use crate::sample::record::{RECORDS, ThreadRecord};
use crate::stats::Tally;

impl Registry {
    pub(super) fn counts(&self) -> Counts {
        let without_ring = self.unsampled.values().filter(|why| **why == Unsampled::Ring).count();
        let parked = self.parked.iter().filter(|(tid, parked)| !parked.leaves && !self.unsampled.contains_key(tid));
        let mut counts = Counts {
            written: self.written,
            dropped: self.dropped,
            cramped: self.cramped,
            deferred: self.deferred,
            handler_ns: self.handler_ns,
            waits_dropped: 0,
            threads: (self.by_tid.len() + parked.count()) as u64,
            without_timer: (self.unsampled.len() - without_ring) as u64,
            without_ring: without_ring as u64,
        };
        let waits = DROPPED_WAITS.get();
        counts.waits_dropped = waits.samples;
        counts.dropped += waits;
        counts.dropped += DROPPED_HERE.get();
        let live = self.by_tid.values().map(|thread| thread.index);
        let retired = self.retired.iter().filter(|(_, whose)| *whose == self.owner).map(|(index, _)| *index);
        for record in live.chain(retired).filter_map(|index| RECORDS.get(index as usize)) {
            counts.deferred += record.deferred.load(Ordering::Relaxed);
            counts.written += record.written();
            counts.dropped += record.dropped();
            counts.cramped += record.cramped.load(Ordering::Relaxed);
            counts.handler_ns += record.handler_ns.load(Ordering::Relaxed);
        }
        counts
    }

    /// Adds up what a record counted, if it was of this profiler, and lets it count from zero.
    pub(super) fn settle(&mut self, record: &ThreadRecord, whose: Owner) {
        if whose == self.owner {
            self.written += record.written();
            self.dropped += record.dropped();
            self.cramped += record.cramped.load(Ordering::Relaxed);
            self.deferred += record.deferred.load(Ordering::Relaxed);
            self.handler_ns += record.handler_ns.load(Ordering::Relaxed);
        }
        for counter in [
            &record.deferred,
            &record.written_samples,
            &record.written_weight,
            &record.dropped_samples,
            &record.dropped_weight,
            &record.cramped,
            &record.handler_ns,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn forget_counts(&mut self) {
        (self.written, self.dropped) = (Tally::default(), Tally::default());
        (self.cramped, self.deferred, self.handler_ns) = (0, 0, 0);
        DROPPED_WAITS.clear();
        DROPPED_HERE.clear();
    }
}
