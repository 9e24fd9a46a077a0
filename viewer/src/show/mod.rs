//! The numbers that a page, an API answer or a download needs: no HTML, no SQL.

mod absence;
mod diff;
mod error;
mod estimate;
mod flame;
mod fold;
mod function;
mod labelled;
mod row_bytes;
mod runtime_frames;
mod services;
mod shown;
mod span;
mod spans;
mod stacks;
mod steps;
mod top;
mod trace;
mod traces;
mod tree;

pub(crate) use absence::{
    Absence, Reason, UNLABELLED, how_each_span_is_sampled, how_samples_are_labelled, how_waits_are_measured,
};
pub(crate) use diff::{Diff, FunctionChange, Side as DiffSide};
pub(crate) use error::ShowError;
pub(crate) use estimate::{Change, FEW_SAMPLES, Sums, share, value_error};
pub(crate) use flame::Flame;
pub(crate) use function::{FunctionView, Neighbour, Part};
pub(crate) use services::{ServiceRow, Services};
pub(crate) use shown::Shown;
pub(crate) use span::SpanDetail;
pub(crate) use spans::{Beside, Outside, SpanName, SpanNames};
pub(crate) use steps::{Steps, Written};
pub(crate) use top::Top;
pub(crate) use trace::{Trace, TraceSpan};
pub(crate) use traces::{TraceRow, Traces};
