//! The interpreter's own events. None of the hooks disturbs YJIT, and none may raise or make an object.

pub(crate) mod fiber_waits;
pub(crate) mod gc;
pub(crate) mod hooks;
#[cfg(ruby_gte_3_3)]
pub(crate) mod ready;
#[cfg(ruby_gte_3_3)]
mod shared_threads;
