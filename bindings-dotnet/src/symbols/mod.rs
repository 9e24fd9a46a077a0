//! What samples mean, found on the profiler's thread after the handler: which method an address is in, what the walk left out, and
//! what both are called.

pub(crate) mod await_stack;
pub(crate) mod code_map;
pub(crate) mod lock_wait;
mod prologue;
pub(crate) mod refresh;
pub(crate) mod repair;
pub(crate) mod resolver;
pub(crate) mod shapes;
