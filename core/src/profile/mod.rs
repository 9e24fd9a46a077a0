//! Stage 3: sum the samples of a window and encode them.

pub(crate) mod aggregate;
#[cfg(test)]
mod conservation;
mod cut;
pub(crate) mod labels;
mod open_window;
pub(crate) mod pprof;
mod rank;
pub(crate) mod split;
mod strings;
pub(crate) mod window;
