//! The hot interface: what managed code says of the span that a thread is in.

pub mod names;
pub mod record;
