//! The runtime's own events: allocations, lock waits and exceptions; and flows of spans that go on.

mod boxes;
mod payload;
pub mod resumed;
pub(crate) mod samples;
pub(crate) mod sessions;
mod twofold;
