//! What the profiler says of itself: its counts, to the program and to the viewer, and what was lost, to the user.

use std::sync::atomic::Ordering;

use super::engine::Engine;
use crate::context::tags;
use crate::messages::Cause;
use crate::os::background_thread;
use crate::sample::threads::Unsampled;
use crate::sample::waits;
use crate::stats::{Stats, Tally};
use crate::wire::stats_comment::StatsComment;

impl Engine {
    pub(super) fn report_unsampled(&self, unsampled: &[Unsampled]) {
        let errors = unsampled.iter().filter_map(|why| match why {
            Unsampled::Timer(error) => Some(*error),
            Unsampled::PendingSignals | Unsampled::Ring => None,
        });
        let (without_timer, error) = errors.fold((0, 0), |(threads, _), error| (threads + 1, error));
        if without_timer > 0 {
            let error = std::io::Error::from_raw_os_error(error).to_string();
            self.messages.report(Cause::NoTimer, &[&without_timer.to_string(), &error]);
        }
        let without_signal = unsampled.iter().filter(|why| **why == Unsampled::PendingSignals).count();
        if without_signal > 0 {
            self.messages.report(Cause::NoSignals, &[&without_signal.to_string()]);
        }
        let without_ring = unsampled.len() - without_timer - without_signal;
        if without_ring > 0 {
            self.messages.report(Cause::NoRing, &[&without_ring.to_string()]);
        }
    }

    /// Reports what was lost until now, where that grew with the last window.
    pub(super) fn report_losses(&self, reported: &mut [u64; 8]) {
        let counted = self.counters.snapshot();
        // After the sum that it is part of, as it is counted before it.
        let without_memory = self.counters.without_memory.load(Ordering::Relaxed);
        let (tag_sets, thread_tags) = tags::overflowed();
        let counts = self.counts();
        // Last, as each is counted here before it can be lost.
        let waits = waits::fates::taken();
        let lost = [
            (Cause::RingFull, counts.dropped.samples.saturating_sub(counts.cramped + counts.waits_dropped)),
            (of_waits(counts.waits_dropped, waits), counts.waits_dropped),
            (Cause::StackSmall, counts.cramped),
            (Cause::NoMemory, without_memory),
            (Cause::WindowFull, counted.dropped_window.samples.saturating_sub(without_memory)),
            (Cause::NamesCut, counted.names_cut),
            (Cause::TagSetsLost, tag_sets),
            (Cause::ThreadTagsLost, thread_tags),
        ];
        for (reported, (cause, number)) in reported.iter_mut().zip(lost) {
            if std::mem::replace(reported, number) < number {
                self.messages.report(cause, &[&number.to_string(), &waits.to_string()]);
            }
        }
    }

    /// What travels with each window's first profile.
    pub(super) fn comment(&self) -> String {
        let stats = self.stats();
        let pairs =
            stats.tallies().map(|(name, Tally { samples, weight })| (name, serde_json::json!([samples, weight])));
        let numbers = stats.numbers().map(|(name, number)| (name, number.into()));
        let counts = pairs.into_iter().chain(numbers).map(|(name, value)| (name.to_owned(), value)).collect();
        let comment = StatsComment {
            instance: self.instance,
            pid: self.config.report_pid.then(std::process::id),
            package: &self.config.package,
            last_error: &stats.last_error,
            stats: counts,
        };
        comment.text()
    }

    pub(super) fn stats(&self) -> Stats {
        // What left comes first: what is taken meanwhile is pending, and nothing is subtracted that was not counted yet.
        let left = self.counters.snapshot();
        let unseen = self.counters.unseen.get();
        let counts = self.counts();
        let (tag_sets, thread_tags) = tags::overflowed();
        let mut taken = counts.written;
        taken += counts.dropped;
        taken += unseen;
        let mut settled = counts.dropped;
        settled += left.dropped_window;
        settled += left.encoded;
        waits::fates::add_to(Stats {
            taken,
            dropped_ring: counts.dropped,
            pending: Tally {
                samples: taken.samples.saturating_sub(settled.samples),
                weight: taken.weight.saturating_sub(settled.weight),
            },
            threads: counts.threads,
            threads_unsampled: counts.without_timer + counts.without_ring,
            threads_without_timer: counts.without_timer,
            threads_without_ring: counts.without_ring,
            deferred: counts.deferred,
            handler_ns: counts.handler_ns,
            own_cpu_ns: background_thread::cpu_ns().saturating_sub(self.own_cpu_before_ns),
            tag_sets_lost: tag_sets + thread_tags,
            ..left
        })
    }
}

/// Why it is told that so many waits of all that were taken were lost. Fewer than one in a thousand are no reason to do anything.
fn of_waits(lost: u64, taken: u64) -> Cause {
    if lost.saturating_mul(1_000) < taken { Cause::FewWaitsLost } else { Cause::WaitsLost }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_than_one_wait_in_a_thousand_is_no_warning() {
        for (lost, taken, cause) in [
            (1, 1_001, Cause::FewWaitsLost),
            (1, 1_000, Cause::WaitsLost),
            (1, 1, Cause::WaitsLost),
            (2, 2_001, Cause::FewWaitsLost),
        ] {
            assert_eq!(of_waits(lost, taken), cause, "{lost} of {taken}");
        }
    }
}
