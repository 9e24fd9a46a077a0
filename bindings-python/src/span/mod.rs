//! Which span and which tags are current: what runs in the program's own calls.
//!
//! [`processor`] has the callbacks of a span processor, [`current`] follows OpenTelemetry's runtime context, [`record`] is what samples
//! know of a span, [`tags`] those that follow a context and those of threads; [`context_var`] is what both lie in, and
//! [`published`] what the handler reads of them.

pub(crate) mod context_var;
pub(crate) mod current;
pub(crate) mod processor;
pub(crate) mod published;
pub(crate) mod record;
pub(crate) mod tags;
