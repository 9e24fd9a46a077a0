//! Stage 2: what is the thread executing?

pub(crate) mod own_thread;
pub(crate) mod runtime;
