//! The labels of samples: which of what is known of spans and tags is said to the server.

use super::window::{Window, WindowSpan};
use crate::config;
use crate::wire::labels::{LEGACY_SPAN_NAME, MAX_LABELS, truncate_value};

/// Which labels samples carry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LabelOptions {
    pub(crate) trace_ids: bool,
    pub(crate) span_names: bool,
    /// The name under its old name too.
    pub(crate) legacy_labels: bool,
    /// Tags of a sample: servers refuse a profile with more than [`MAX_LABELS`] in one series.
    pub(crate) max_tags: usize,
}

impl Default for LabelOptions {
    fn default() -> Self {
        Self { trace_ids: true, span_names: true, legacy_labels: false, max_tags: MAX_LABELS }
    }
}

/// What is said of spans and tags, in the window's own order.
#[derive(Debug)]
pub(super) struct Content<'a> {
    pub(super) spans: Vec<SpanLabels<'a>>,
    pub(super) tags: Vec<Vec<(&'a str, &'a str)>>,
}

impl<'a> Content<'a> {
    pub(super) fn new(window: &'a Window, options: &LabelOptions) -> Self {
        Self {
            spans: window.spans.iter().map(|span| SpanLabels::new(span, options)).collect(),
            tags: window.tag_sets.iter().map(|set| sendable(set, options)).collect(),
        }
    }
}

/// A span as its labels say it, "" for a label that is not sent. Spans that differ in nothing that is sent are equal.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SpanLabels<'a> {
    pub(super) span_id: String,
    pub(super) trace_id: String,
    pub(super) name: &'a str,
    pub(super) legacy_name: &'a str,
}

impl<'a> SpanLabels<'a> {
    fn new(span: &'a WindowSpan, options: &LabelOptions) -> Self {
        if span.span_id == 0 {
            return Self { span_id: String::new(), trace_id: String::new(), name: "", legacy_name: "" };
        }
        let name = if options.span_names { &*span.name } else { "" };
        let [high, low] = span.trace_id;
        let has_trace = options.trace_ids && (high, low) != (0, 0);
        Self {
            span_id: format!("{:016x}", span.span_id),
            trace_id: if has_trace { format!("{high:016x}{low:016x}") } else { String::new() },
            name,
            legacy_name: if options.legacy_labels { name } else { "" },
        }
    }
}

/// The tags that a server takes, as many as it does: one bad label would cost the whole profile, and a second `span_id` the
/// span.
fn sendable<'a>(set: &'a [(String, String)], options: &LabelOptions) -> Vec<(&'a str, &'a str)> {
    set.iter()
        .filter(|(name, value)| !value.is_empty() && config::check_tag_name("tags", name).is_ok())
        .filter(|(name, _)| !(options.legacy_labels && name == LEGACY_SPAN_NAME))
        .map(|(name, value)| (name.as_str(), truncate_value(value)))
        .take(options.max_tags)
        .collect()
}
