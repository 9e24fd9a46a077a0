//! The runtime's own events: allocations, lock waits and exceptions.

mod payload;
pub(crate) mod samples;
pub(crate) mod sessions;
