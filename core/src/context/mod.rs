//! Stage 1: which span is this thread in?

pub(crate) mod current;
pub(crate) mod span_names;
pub(crate) mod span_record;
pub(crate) mod span_slot;
pub(crate) mod span_times;
pub(crate) mod tags;
pub(crate) mod thread_tags;
