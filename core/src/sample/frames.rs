//! The frames of a stack: the ids that a walk writes into the ring, and what one of them means.

use std::fmt;
use std::sync::Arc;

/// The most frames kept of one stack; deeper ones lose their root end, as servers would otherwise cut the leaf.
pub const MAX_FRAMES: usize = 512;

/// Stands for a place in code, or for a reason why there is none: what a walk writes of each frame, and `Runtime::resolve` explains.
pub type FrameId = u64;

/// Where [`Runtime::walk`](crate::Runtime::walk) puts the frames: the sampled thread's own ring, so nothing is copied twice.
pub struct FrameWriter<'ring> {
    words: &'ring mut [u64],
    frames: usize,
    extra: usize,
    truncated: bool,
}

impl fmt::Debug for FrameWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameWriter").field("frames", &self.frames).field("extra", &self.extra).finish()
    }
}

impl<'ring> FrameWriter<'ring> {
    /// Writes into `words`, which is as long as there is room for.
    #[inline]
    pub fn new(words: &'ring mut [u64]) -> Self {
        Self { words, frames: 0, extra: 0, truncated: false }
    }

    /// Adds a frame, leaf first, before all extra words. False: there is no more room, stop walking.
    #[inline]
    pub fn push(&mut self, frame: FrameId) -> bool {
        if self.frames >= MAX_FRAMES {
            return false;
        }
        match self.words.get_mut(self.frames) {
            Some(place) => {
                *place = frame;
                self.frames += 1;
                true
            }
            None => {
                self.truncated = true;
                false
            }
        }
    }

    /// Adds a word that only [`Runtime::repair`](crate::Runtime::repair) reads, after all frames. False: no more room.
    #[inline]
    pub fn push_extra(&mut self, word: u64) -> bool {
        match self.words.get_mut(self.frames + self.extra) {
            Some(place) if self.extra < MAX_FRAMES => {
                *place = word;
                self.extra += 1;
                true
            }
            place => {
                self.truncated |= place.is_none();
                false
            }
        }
    }

    /// Frames pushed so far.
    #[inline]
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Whether a word found no room, other than by [`MAX_FRAMES`].
    #[inline]
    pub(crate) fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Extra words pushed so far.
    #[inline]
    pub fn extra(&self) -> usize {
        self.extra
    }
}

/// A place in code, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// Function name, qualified by class where the language does.
    pub function: Arc<str>,
    /// Source file, "" if there is none.
    pub file: Arc<str>,
    /// Line within the file, 0 if unknown.
    pub line: u32,
    /// The function's first line, 0 if unknown.
    pub first_line: u32,
}
