//! What came in and what was forgotten, counted since the start.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed; // counters that order nothing

/// What was added since the start, while it is counted.
#[derive(Default)]
pub(super) struct Counters {
    profiles: AtomicU64,
    repeated: AtomicU64,
    samples: AtomicU64,
    spans: AtomicU64,
}

/// What was added since the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inserted {
    /// Profiles.
    pub(crate) profiles: u64,
    /// Profiles that were there already.
    pub(crate) repeated: u64,
    /// Their rows of samples.
    pub(crate) samples: u64,
    /// Spans, repeated ones too.
    pub(crate) spans: u64,
}

impl Counters {
    /// Counts profiles, of which those not added were there already, and the samples of those that were.
    pub(super) fn add_profiles(&self, all: usize, added: usize, samples: usize) {
        self.profiles.fetch_add(count(added), Relaxed);
        self.samples.fetch_add(count(samples), Relaxed);
        self.repeated.fetch_add(count(all - added), Relaxed);
    }

    /// Counts spans.
    pub(super) fn add_spans(&self, spans: usize) {
        self.spans.fetch_add(count(spans), Relaxed);
    }

    /// What they say.
    pub(super) fn read(&self) -> Inserted {
        Inserted {
            profiles: self.profiles.load(Relaxed),
            repeated: self.repeated.load(Relaxed),
            samples: self.samples.load(Relaxed),
            spans: self.spans.load(Relaxed),
        }
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// What was forgotten since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Forgotten {
    /// Profiles that were too old.
    pub(crate) profiles_by_age: usize,
    /// Spans that were too old.
    pub(crate) spans_by_age: usize,
    /// Profiles that had no room.
    pub(crate) profiles_by_size: usize,
    /// Spans that had no room.
    pub(crate) spans_by_size: usize,
}

/// Why something is forgotten.
#[derive(Clone, Copy)]
pub(super) enum Why {
    /// It was too old.
    Age,
    /// It had no room.
    Size,
}

impl Forgotten {
    /// Counts profiles and spans.
    pub(super) fn add(&mut self, why: Why, profiles: usize, spans: usize) {
        let (of_profiles, of_spans) = match why {
            Why::Age => (&mut self.profiles_by_age, &mut self.spans_by_age),
            Why::Size => (&mut self.profiles_by_size, &mut self.spans_by_size),
        };
        *of_profiles += profiles;
        *of_spans += spans;
    }
}
