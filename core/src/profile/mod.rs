//! Stage 3: sum the samples of a window and encode them.

pub(crate) mod aggregate;
mod canonical;
mod closed_window;
#[cfg(test)]
mod conservation;
mod derived_stacks;
pub(crate) mod halves;
pub(crate) mod labels;
mod open_window;
mod own_frames;
pub(crate) mod pprof;
mod ready;
mod strings;
pub(crate) mod window;
