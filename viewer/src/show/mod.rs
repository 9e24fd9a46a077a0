//! The numbers that a page, an API answer or a download needs: no HTML, no SQL.

mod estimate;
mod flame;
mod services;
mod span;
mod spans;
mod top;
mod trace;
mod traces;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::params::BadParameter;
use crate::receive::Refusals;
use crate::selection::Selection;
use crate::store::{Store, StoreError};

pub(crate) use estimate::{share, share_error};
pub(crate) use services::{ServiceRow, Services};
pub(crate) use span::SpanDetail;
pub(crate) use spans::{SpanName, SpanNames};
pub(crate) use top::Top;
pub(crate) use trace::{Trace, TraceSpan};
pub(crate) use traces::TraceRow;

/// Below this many samples a flame graph says that it shows little.
pub(crate) const FEW_SAMPLES: i64 = 10;

/// What everything shown is made from.
#[derive(Debug)]
pub(crate) struct Shown {
    /// Profiles and spans.
    pub(crate) store: Arc<Store>,
    /// What was not taken.
    pub(crate) refusals: Arc<Refusals>,
    /// How long anything is kept.
    pub(crate) retain: Duration,
    /// How much is kept, in bytes.
    pub(crate) memory: u64,
    /// Where this server listens.
    pub(crate) address: SocketAddr,
    /// Where it listens for OTLP alone.
    pub(crate) otlp: Option<SocketAddr>,
}

/// Why something cannot be shown.
#[derive(Debug)]
pub(crate) enum ShowError {
    /// A parameter is not understood.
    Bad(BadParameter),
    /// There is no such thing; the sentence says what.
    NotFound(String),
    /// The store failed, or the thread that asked it.
    Failed(String),
}

impl fmt::Display for ShowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bad(bad) => bad.fmt(f),
            Self::NotFound(sentence) | Self::Failed(sentence) => f.write_str(sentence),
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
        Self::Failed(error.to_string())
    }
}

impl Shown {
    /// Runs `work` on a thread that may wait for the store.
    pub(crate) async fn on_pool<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, ShowError> + Send + 'static,
    ) -> Result<T, ShowError> {
        match tokio::task::spawn_blocking(move || work(&self)).await {
            Ok(done) => done,
            Err(error) => Err(ShowError::Failed(format!("the request could not be worked on: {error}"))),
        }
    }

    /// Refuses a selection of a span or a trace that nothing is known of.
    fn check_known(&self, selection: &Selection) -> Result<(), ShowError> {
        if let Some(span) = selection.span
            && self.store.span(span)?.is_none()
            && !self.store.is_sampled(span)?
        {
            return Err(ShowError::NotFound(format!(
                "There is no span {span} here, and no sample of it; spans are kept for {}.",
                crate::selection::since_text(self.retain)
            )));
        }
        if let Some(trace) = selection.trace
            && self.store.trace(trace)?.is_empty()
        {
            return Err(ShowError::NotFound(format!(
                "There is no trace {trace} here; traces are kept for {}.",
                crate::selection::since_text(self.retain)
            )));
        }
        Ok(())
    }
}
