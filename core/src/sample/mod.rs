//! Stage 2: what is the thread executing?

pub(crate) mod runtime;
