//! One upload window, swapped out of the aggregate: all that an encoder needs, and nothing shared with it.

use std::sync::Arc;
use std::time::Duration;

use crate::profile_type::{ProfileType, ProfileTypeId};
use crate::sample::frames::Frame;
use crate::stats::Tally;
use crate::wait_state::State;

/// The samples of one window. Indices point into the window's own tables.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// CLOCK_REALTIME at the window's start, nanoseconds since the epoch.
    pub(crate) start_unix_nanos: i64,
    /// Length by CLOCK_MONOTONIC.
    pub(crate) duration: Duration,
    /// The profile types that samples name by [`ProfileTypeId`].
    pub(crate) profile_types: Vec<ProfileType>,
    /// Summed: no two have the same (profile type, stack, span, tags).
    pub(crate) samples: Vec<WindowSample>,
    /// Frame indices, leaf first; never empty.
    pub(crate) stacks: Vec<Box<[u32]>>,
    pub(crate) frames: Vec<Arc<Frame>>,
    pub(crate) spans: Vec<WindowSpan>,
    /// What the profiler says of itself, "" for nothing: a comment of the first profile.
    pub(crate) comment: String,
    /// Sample labels, sorted by name; entry 0 is the empty set.
    pub(crate) tag_sets: Vec<Arc<[(String, String)]>>,
}

impl Window {
    /// All of its samples.
    pub(crate) fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        // What is derived from samples is counted with them.
        for sample in self.samples.iter().filter(|sample| sample.samples > 0) {
            tally += Tally { samples: sample.samples, weight: u64::try_from(sample.value).unwrap_or(0) };
        }
        tally
    }
}

/// One key of the aggregate with its sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowSample {
    pub(crate) profile_type: ProfileTypeId,
    pub(crate) stack: u32,
    /// Its stack in the profile of wall time, where it is beside its span's own time.
    pub(crate) concurrent: Option<u32>,
    /// Of wall time: what it went to.
    pub(crate) state: State,
    /// Index into `spans`; `None` outside spans.
    pub(crate) span: Option<u32>,
    pub(crate) tags: u32,
    /// Sum, in the profile type's unit.
    pub(crate) value: i64,
    /// Things that the samples stand for.
    pub(crate) count: i64,
    /// Samples taken.
    pub(crate) samples: u64,
}

/// A span that samples of the window were in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WindowSpan {
    pub(crate) span_id: u64,
    pub(crate) trace_id: [u64; 2],
    /// The newest name known, truncated at 256 bytes.
    pub(crate) name: Arc<str>,
}
