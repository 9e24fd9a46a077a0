//! The names of labels that mean something to a server or to us, and what servers take.

/// The name of the profile type, of a series.
pub const NAME: &str = "__name__";
/// The service, of a series; equals the traces' `service.name`.
pub const SERVICE_NAME: &str = "service_name";
/// The span that a sample was taken in.
pub const SPAN_ID: &str = "span_id";
/// What that span is called.
pub const SPAN_NAME: &str = "span_name";
/// What Grafana's Ruby gem calls [`SPAN_NAME`].
pub const LEGACY_SPAN_NAME: &str = "span";
/// The trace of that span.
pub const TRACE_ID: &str = "trace_id";
/// What a thread did with its time: one of wall time.
pub const STATE: &str = "state";
/// Of wall time: whether it is beside its span's own; [`CONCURRENT`], or the label is not there.
pub const FLOW: &str = "flow";
/// The value of [`FLOW`]: another thread or task spent it.
pub const CONCURRENT: &str = "concurrent";
/// What older servers call [`SPAN_ID`].
pub const PROFILE_ID: &str = "profile_id";
/// The process, of a series.
pub const PID: &str = "pid";
/// The thread that a sample was taken on.
pub const THREAD_ID: &str = "thread_id";
/// What that thread is called.
pub const THREAD_NAME: &str = "thread_name";

/// Names that no tag may have; nor may it one that starts with `__`.
pub const RESERVED: [&str; 5] = [SERVICE_NAME, SPAN_ID, SPAN_NAME, TRACE_ID, PROFILE_ID];
/// Labels that servers let a series have.
pub const MAX_LABELS: usize = 30;
/// The longest label value that servers take.
pub const MAX_VALUE_BYTES: usize = 2_048;

/// The start of a label's value that servers take.
pub fn truncate_value(value: &str) -> &str {
    &value[..value.floor_char_boundary(MAX_VALUE_BYTES)]
}
