//! A window, from the rings to the uploader.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::engine::Engine;
use crate::context::{span_names, tags};
use crate::messages::Cause;
use crate::os::allocator;
use crate::profile::labels::LabelOptions;
use crate::profile::pprof::{self, EncodeOptions};
use crate::sample::runtime::Drain;
use crate::sample::threads;

/// How long a rotation waits for a host that drains under its own lock, if nobody waits for what it has.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// Frames whose meaning is asked in one call.
const RESOLVED_AT_ONCE: usize = 1_024;

impl Engine {
    pub(super) fn drain(&self, is_last: bool) {
        let ids = {
            let mut aggregate = self.aggregate();
            threads::drain(self.owner, |drained| aggregate.add(drained, self.runtime, &self.counters));
            aggregate.mend(self.runtime, &self.counters, is_last);
            aggregate.take_unresolved()
        };
        // Some at a time, so that nothing large is asked for where the program has little memory left.
        for ids in ids.chunks(RESOLVED_AT_ONCE) {
            let resolved = self.runtime.resolve(ids);
            self.aggregate().learn(ids.to_vec(), resolved);
        }
    }

    /// Ends the window: drains, swaps it out, encodes it, hands it to the uploader.
    pub(super) fn rotate_window(&self, is_last: bool) {
        // One that was given up has no window to rotate: it is the next one's.
        let is_newest = threads::is_newest(self.owner);
        let final_names = if is_newest {
            tags::rotate_generations();
            span_names::rotate_generations()
        } else {
            HashMap::new()
        };
        let (wanted, patience) = {
            let mut control = self.control();
            control.drains_wanted += 1;
            (control.drains_wanted, control.patience.take())
        };
        let is_drained = match self.runtime.request_drain() {
            Drain::Now => {
                self.drain(is_last);
                true
            }
            Drain::Requested => {
                let timeout = Instant::now() + DRAIN_TIMEOUT;
                self.wait(patience.map_or(timeout, |patience| patience.max(timeout)), |control| {
                    control.drains_done >= wanted
                })
            }
        };
        let closed = {
            let mut aggregate = self.aggregate();
            if !allocator::has(aggregate.bytes_to_encode()) {
                aggregate.let_go(&self.counters);
            }
            aggregate.rotate(final_names, self.runtime.caches_frames(), is_drained, &self.counters)
        };
        if is_newest {
            self.runtime.window_rotated();
        }
        let mut window = closed.finish(&self.counters);
        window.comment = self.comment();
        self.counters.windows.fetch_add(1, Ordering::Relaxed);
        let max_tags = self.settings.room_for_tags();
        if window.tag_sets.iter().any(|set| set.len() > max_tags) {
            self.messages.report(Cause::TooManyLabels, &[&max_tags.to_string()]);
        }
        let labels = LabelOptions {
            trace_ids: self.uploader.trace_ids(),
            span_names: self.settings.span_names,
            legacy_labels: self.settings.legacy_labels,
            max_tags,
        };
        let options = EncodeOptions { labels, ..EncodeOptions::default() };
        let profiles = pprof::encode(&window, &options);
        let lost = profiles.iter().fold(window.tally(), |lost, profile| lost.without(profile.tally));
        self.counters.drop_without_memory(lost);
        self.uploader.send(profiles);
    }
}
