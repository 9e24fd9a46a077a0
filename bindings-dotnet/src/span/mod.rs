//! What managed code says of the span and the tags that a thread is in. The hot interface is [`record`], [`names`] and [`times`].

pub mod names;
pub mod record;
pub(crate) mod tags;
pub mod times;
