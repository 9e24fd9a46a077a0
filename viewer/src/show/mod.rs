//! The numbers that a page, an API answer or a download needs: no HTML, no SQL.

mod diff;
mod estimate;
mod flame;
mod fold;
mod function;
mod services;
mod span;
mod spans;
mod top;
mod trace;
mod traces;
mod tree;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::params::BadParameter;
use crate::queries::{NotRun, Queries};
use crate::receive::Refusals;
use crate::receive::profilers::Profilers;
use crate::selection::{Selection, Window, since_text};
use crate::store::{Store, StoreError};

pub(crate) use diff::{Diff, FunctionChange};
pub(crate) use estimate::{Change, Sums, share};
pub(crate) use function::{FunctionView, Neighbour, Part};
pub(crate) use services::{ServiceRow, Services};
pub(crate) use span::SpanDetail;
pub(crate) use spans::{Beside, SpanName, SpanNames};
pub(crate) use top::Top;
pub(crate) use trace::{Trace, TraceSpan};
pub(crate) use traces::{TraceRow, Traces};

/// Below this many samples a flame graph says that it shows little.
pub(crate) const FEW_SAMPLES: i64 = 10;

/// What everything shown is made from.
#[derive(Debug)]
pub(crate) struct Shown {
    /// Profiles and spans.
    pub(crate) store: Arc<Store>,
    /// What was not taken.
    pub(crate) refusals: Arc<Refusals>,
    /// What profilers say of themselves.
    pub(crate) profilers: Arc<Profilers>,
    /// The time range of pages that are asked for without one.
    pub(crate) window: Window,
    /// How long anything is kept.
    pub(crate) retain: Duration,
    /// Where this server listens.
    pub(crate) address: SocketAddr,
    /// Where it listens for OTLP alone.
    pub(crate) otlp: Option<SocketAddr>,
    /// How many questions are worked on at once.
    pub(crate) queries: Queries,
}

/// Why something cannot be shown.
#[derive(Debug)]
pub(crate) enum ShowError {
    /// A parameter is not understood.
    Bad(BadParameter),
    /// There is no such thing; the sentence says what.
    NotFound(String),
    /// It took too long, or others were before it.
    Busy(String),
    /// The answer would be larger than one may be.
    TooLarge(String),
    /// The store failed, or the thread that asked it.
    Failed(String),
}

impl fmt::Display for ShowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bad(bad) => bad.fmt(f),
            Self::NotFound(sentence) | Self::Busy(sentence) | Self::TooLarge(sentence) | Self::Failed(sentence) => {
                f.write_str(sentence)
            }
        }
    }
}

impl From<BadParameter> for ShowError {
    fn from(bad: BadParameter) -> Self {
        Self::Bad(bad)
    }
}

impl From<StoreError> for ShowError {
    fn from(error: StoreError) -> Self {
        if error.is_over() { Self::Busy(error.to_string()) } else { Self::Failed(error.to_string()) }
    }
}

impl Shown {
    /// Runs `work` on a thread that may wait for the store.
    pub(crate) async fn on_pool<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, ShowError> + Send + 'static,
    ) -> Result<T, ShowError> {
        let queries = self.queries.clone();
        match queries.run(move || work(&self)).await {
            Ok(done) => done,
            Err(error @ NotRun::Busy) => Err(ShowError::Busy(error.to_string())),
            Err(error @ NotRun::Failed(_)) => Err(ShowError::Failed(error.to_string())),
        }
    }

    /// How long anything is kept, in words.
    pub(crate) fn kept(&self) -> String {
        if self.retain == Duration::MAX {
            return "kept as long as this runs".into();
        }
        format!("kept for {}", since_text(self.retain))
    }

    /// Refuses a selection of a span or a trace that nothing is known of.
    fn check_known(&self, selection: &Selection) -> Result<(), ShowError> {
        if let Some(span) = selection.span
            && self.store.span(span)?.is_none()
            && !self.store.is_sampled(span)?
        {
            return Err(ShowError::NotFound(format!(
                "There is no span {span} here, and no sample of it; spans are {}.",
                self.kept()
            )));
        }
        if let Some(trace) = selection.trace
            && self.store.trace(trace)?.is_empty()
        {
            return Err(ShowError::NotFound(format!("There is no trace {trace} here; traces are {}.", self.kept())));
        }
        Ok(())
    }
}

/// The smallest value that `percent` of 100 do not exceed.
fn percentile(sorted: &[i64], percent: usize) -> Option<i64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let walls: Vec<i64> = (1..=20).collect();
        assert_eq!([50, 95, 99].map(|percent| percentile(&walls, percent)), [Some(10), Some(19), Some(20)]);
        assert_eq!((percentile(&[7], 50), percentile(&[7], 95), percentile(&[], 50)), (Some(7), Some(7), None));
    }
}
