//! Stacks of a window with one more frame that says what they were.

use std::collections::HashMap;
use std::sync::Arc;

use crate::sample::frames::Frame;

/// Those with one frame more.
#[derive(Debug, Default)]
pub(super) struct DerivedStacks {
    by_stack: HashMap<u32, u32>,
    frame: Option<u32>,
}

impl DerivedStacks {
    /// The stack with `function` as its leaf.
    pub(super) fn below(
        &mut self,
        function: &str,
        stack: u32,
        stacks: &mut Vec<Box<[u32]>>,
        frames: &mut Vec<Arc<Frame>>,
    ) -> u32 {
        self.of(function, stack, stacks, frames, |frame, stack| [&[frame], stack].concat())
    }

    /// The stack with `function` as its root.
    pub(super) fn above(
        &mut self,
        function: &str,
        stack: u32,
        stacks: &mut Vec<Box<[u32]>>,
        frames: &mut Vec<Arc<Frame>>,
    ) -> u32 {
        self.of(function, stack, stacks, frames, |frame, stack| [stack, &[frame]].concat())
    }

    #[expect(clippy::cast_possible_truncation, reason = "bounded by the keys of a window")]
    fn of(
        &mut self,
        function: &str,
        stack: u32,
        stacks: &mut Vec<Box<[u32]>>,
        frames: &mut Vec<Arc<Frame>>,
        with: impl FnOnce(u32, &[u32]) -> Vec<u32>,
    ) -> u32 {
        let frame = *self.frame.get_or_insert_with(|| {
            frames.push(Arc::new(Frame { function: function.into(), ..Frame::default() }));
            frames.len() as u32 - 1
        });
        *self.by_stack.entry(stack).or_insert_with(|| {
            stacks.push(with(frame, &stacks[stack as usize]).into());
            stacks.len() as u32 - 1
        })
    }
}
