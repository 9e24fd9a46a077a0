//! The traces in which a span name occurs.

use std::collections::HashMap;

use serde::Serialize;

use super::error::ShowError;
use super::shown::Shown;
use crate::ids::{SpanId, TraceId};
use crate::selection::Selection;
use crate::store::TraceSort;

/// Most traces in one answer.
const MOST: usize = 100;

/// Traces with a span of a name.
#[derive(Debug, Serialize)]
pub(crate) struct Traces {
    /// Slowest or hungriest first.
    pub(crate) traces: Vec<TraceRow>,
}

/// A trace.
#[derive(Debug, Serialize)]
pub(crate) struct TraceRow {
    /// Its id.
    pub(crate) trace: TraceId,
    /// The span without a parent, or else the first.
    pub(crate) root_span: SpanId,
    /// Name of that span.
    pub(crate) root_name: String,
    /// Its start; none if only samples name the trace.
    pub(crate) start_unix_ns: Option<i64>,
    /// From its first start to its last end.
    pub(crate) wall_ns: Option<i64>,
    /// The longest span of those that were asked for.
    pub(crate) span_wall_ns: Option<i64>,
    /// CPU of all its spans; none if no profile holds any of them.
    pub(crate) cpu_ns: Option<i64>,
    /// How many spans it has.
    pub(crate) spans: usize,
}

impl Shown {
    /// Traces with a span of the selection, sorted by that span's wall time or by the trace's CPU.
    pub(crate) fn traces(&self, selection: &Selection, sort: TraceSort) -> Result<Traces, ShowError> {
        self.check_profile_type(selection)?;
        let mut traces = Vec::new();
        let mut sampling = HashMap::new();
        for found in self.store.traces(&self.resolve(selection)?, sort, MOST)? {
            let trace = self.trace_of(found.trace, &mut sampling)?;
            let root = trace.spans.iter().find(|span| span.parent.is_none()).or(trace.spans.first());
            let Some(root) = root else { continue };
            traces.push(TraceRow {
                trace: found.trace,
                root_span: root.span,
                root_name: root.name.clone(),
                start_unix_ns: trace.start_unix_ns,
                wall_ns: trace.wall_ns,
                span_wall_ns: found.span_wall,
                cpu_ns: trace.cpu_ns,
                spans: trace.spans.len(),
            });
        }
        Ok(Traces { traces })
    }
}
