//! Where the samples of a profile stand, in whatever format, and what their labels say.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::Hash;

use crate::http::refusal::Refusal;
use crate::ids::{SpanId, TraceId};
use crate::store::Place;

/// What names its stack, what names its labels, and its values.
pub(in crate::receive) type SampleOf<'a, S, L> = (S, L, Cow<'a, [i64]>);

/// Where the samples of a profile stand.
pub(in crate::receive) trait Samples<'a> {
    /// What names a stack.
    type Stack: Copy + Eq + Hash;
    /// What names a set of labels.
    type Labels: Copy + Eq + Hash;

    /// All samples.
    fn samples(&self) -> impl Iterator<Item = SampleOf<'a, Self::Stack, Self::Labels>>;

    /// The locations of a stack, leaf first.
    fn locations(&self, stack: Self::Stack) -> Result<impl Iterator<Item = u64>, Refusal>;

    /// Those of them that say when they were taken, with their only value, once more.
    fn timed(&self) -> impl Iterator<Item = (Self::Stack, Self::Labels, i64, i64)> {
        std::iter::empty()
    }

    /// What labels say.
    fn labels(&self, labels: Self::Labels) -> Result<SampleLabels<'a>, Refusal>;
}

/// The labels of a sample.
#[derive(Default)]
pub(in crate::receive) struct SampleLabels<'a> {
    pub(in crate::receive) span: Option<SpanId>,
    pub(in crate::receive) trace: Option<TraceId>,
    /// The thread that it was taken in, for those that say when.
    pub(in crate::receive) place: Option<Place>,
    /// Those that make a series; of two with one name the last counts.
    pub(super) others: BTreeMap<&'a str, &'a str>,
}

impl<'a> SampleLabels<'a> {
    /// Adds a label.
    pub(in crate::receive) fn add(&mut self, key: &'a str, value: &'a str) {
        match key {
            // Numeric labels are none of a series.
            _ if value.is_empty() => {}
            "span_id" => self.span = SpanId::parse(value).or(self.span),
            "profile_id" => self.span = self.span.or(SpanId::parse(value)),
            "trace_id" => self.trace = TraceId::parse(value),
            // Whose profile it is and what it measured is said by its sender, not by a sample.
            "service_name" | "__name__" => {}
            _ => {
                self.others.insert(key, value);
            }
        }
    }
}
