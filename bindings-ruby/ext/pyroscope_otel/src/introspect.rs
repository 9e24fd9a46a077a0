//! What a sample of the calling thread would carry now: for tests.

use magnus::Value;
use magnus::rb_sys::{AsRawValue, FromRawValue};

use crate::span::{current, record, tags};
use crate::value::{Gvl, NIL};

/// Span and trace id of the calling thread's slot, in hex.
pub(crate) fn current_span() -> Option<(String, String)> {
    let (ids, _) = record::own()?.span()?;
    let [high, low] = ids.trace_id;
    Some((format!("{:016x}", ids.span_id), format!("{high:016x}{low:016x}")))
}

/// The span that samples carry for this one; nil if there is none.
pub(crate) fn carried(span: Value) -> Value {
    // SAFETY: called by Ruby.
    let gvl = unsafe { Gvl::held() };
    // SAFETY: what an instance variable holds.
    unsafe { Value::from_raw(current::names().map_or(NIL, |names| gvl.ivar(span.as_raw(), names.carried))) }
}

/// The number of the set of the fiber that runs; 0: no tags.
pub(crate) fn current_tags() -> u32 {
    // SAFETY: called by Ruby.
    tags::of_fiber(unsafe { Gvl::held() }).number()
}
