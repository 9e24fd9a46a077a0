//! The runtime's own events: allocations, lock waits and exceptions.

mod payload;
pub mod resumed;
pub(crate) mod samples;
pub(crate) mod sessions;
