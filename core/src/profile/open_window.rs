//! The window that is being filled: its tables, and how large they may become.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::context::tags::TagSetId;
use crate::os::allocator;
use crate::profile_type::ProfileTypeId;
use crate::sample::frames::{Frame, FrameId};
use crate::stats::{Counters, Tally};
use crate::wait_state::State;

/// Keys of a window; more end it early.
///
/// A window is ended between two drains, not within one, so it may grow to twice its bounds before samples are dropped.
pub(super) const MAX_KEYS: usize = 100_000;
/// Frames of a window's stacks together, 32 MiB; more end it early, and after twice as many samples are dropped.
pub(super) const MAX_STACK_FRAMES: usize = 4 << 20;
/// Different frames of a window; more end it early, and after twice as many samples are dropped.
pub(super) const MAX_FRAMES: usize = 262_144;
/// Span names of a window; more become "(other)".
pub(super) const MAX_NAMES: usize = 2_048;

/// Samples for which all of this is equal are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) profile_type: ProfileTypeId,
    pub(super) state: State,
    pub(super) stack: u32,
    pub(super) span_id: u64,
    /// It is beside the span's own time.
    pub(super) is_concurrent: bool,
    pub(super) context_tags: TagSetId,
    pub(super) thread_tags: TagSetId,
}

/// What the samples of a key come to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    pub(super) tally: Tally,
    /// Things they stand for.
    pub(super) count: u64,
}

impl Sum {
    /// Whether it follows from samples that are counted elsewhere.
    pub(super) fn is_derived(&self) -> bool {
        self.tally.samples == 0
    }
}

/// What a ring said of a span.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) trace_id: [u64; 2],
    pub(super) name: Arc<str>,
}

/// The window that is being filled.
#[derive(Debug, Default)]
pub(super) struct Filling {
    pub(super) numbers: HashMap<FrameId, u32>,
    /// By the numbers in `numbers`.
    pub(super) frames: Vec<Option<Arc<Frame>>>,
    pub(super) stacks: HashMap<Box<[FrameId]>, u32>,
    pub(super) stack_frames: usize,
    pub(super) samples: HashMap<Key, Sum>,
    pub(super) spans: HashMap<u64, Span>,
    names: HashMap<Arc<str>, ()>,
}

impl Filling {
    /// Whether one of the bounds is reached `times` over.
    pub(super) fn is_beyond(&self, times: usize) -> bool {
        self.samples.len() >= times * MAX_KEYS
            || self.stack_frames >= times * MAX_STACK_FRAMES
            || self.frames.len() >= times * MAX_FRAMES
    }

    /// Whether there is memory for one more key with a stack of so many frames.
    pub(super) fn has_memory(&mut self, frames: usize) -> bool {
        !allocator::was_short()
            && self.samples.try_reserve(1).is_ok()
            && self.stacks.try_reserve(1).is_ok()
            && self.numbers.try_reserve(frames).is_ok()
            && self.frames.try_reserve(frames).is_ok()
    }

    /// About what it takes to encode it: messages of samples and of frames, and their bytes.
    pub(super) fn bytes_to_encode(&self) -> usize {
        256 * (self.samples.len() + self.frames.len()) + 24 * self.stack_frames
    }

    /// Notes a span, if there is memory for one; without it its samples have their span's id and no name.
    pub(super) fn add_span(&mut self, span_id: u64, span: Span) {
        if self.spans.try_reserve(1).is_ok() {
            self.spans.insert(span_id, span);
        }
    }

    pub(super) fn name(&mut self, name: &str, counters: &Counters) -> Arc<str> {
        if let Some((known, ())) = self.names.get_key_value(name) {
            return known.clone();
        }
        let name = if self.names.len() < MAX_NAMES {
            name
        } else {
            counters.names_cut.fetch_add(1, Ordering::Relaxed);
            "(other)"
        };
        let name: Arc<str> = name.into();
        self.names.insert(name.clone(), ());
        name
    }
}
