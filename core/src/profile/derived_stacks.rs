//! Stacks of a window with one more frame that says what they were.

use std::collections::HashMap;
use std::sync::Arc;

use crate::sample::frames::Frame;

/// Where the frame is.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Leaf,
    Root,
}

/// Those with one frame more.
#[derive(Debug)]
pub(super) struct DerivedStacks {
    function: &'static str,
    end: End,
    by_stack: HashMap<u32, u32>,
    frame: Option<u32>,
}

impl DerivedStacks {
    pub(super) fn new(function: &'static str, end: End) -> Self {
        Self { function, end, by_stack: HashMap::new(), frame: None }
    }

    /// The stack with the frame.
    #[expect(clippy::cast_possible_truncation, reason = "bounded by the keys of a window")]
    pub(super) fn of(&mut self, stack: u32, stacks: &mut Vec<Box<[u32]>>, frames: &mut Vec<Arc<Frame>>) -> u32 {
        let frame = *self.frame.get_or_insert_with(|| {
            frames.push(Arc::new(Frame { function: self.function.into(), ..Frame::default() }));
            frames.len() as u32 - 1
        });
        *self.by_stack.entry(stack).or_insert_with(|| {
            let stack = &stacks[stack as usize];
            let with = match self.end {
                End::Leaf => [&[frame], &stack[..]].concat(),
                End::Root => [&stack[..], &[frame]].concat(),
            };
            stacks.push(with.into());
            stacks.len() as u32 - 1
        })
    }
}
