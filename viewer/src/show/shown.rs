//! What everything shown is made from, and the threads that it is made on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::error::ShowError;
use crate::http::refusal::Refusals;
use crate::params::BadParameter;
use crate::profile_types;
use crate::queries::{NotRun, Queries};
use crate::receive::profilers::Profilers;
use crate::selection::{Selection, TimeRange, since_text};
use crate::store::Store;

/// What everything shown is made from.
#[derive(Debug)]
pub(crate) struct Shown {
    /// Profiles and spans.
    pub(crate) store: Arc<Store>,
    /// What was not taken.
    pub(crate) refusals: Arc<Refusals>,
    /// What profilers say of themselves.
    pub(crate) profilers: Arc<Profilers>,
    /// How long anything is kept.
    pub(crate) retain: Duration,
    /// Where this server listens.
    pub(crate) address: SocketAddr,
    /// Where it listens for OTLP alone.
    pub(crate) otlp: Option<SocketAddr>,
    /// How many questions are worked on at once.
    pub(crate) queries: Queries,
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
            Err(error @ NotRun::Busy(_)) => Err(ShowError::Busy(error.to_string())),
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

    /// Refuses a profile type that nobody sent, which would otherwise look like nothing found, unless profilers have such a name, or no
    /// profile of the service came yet.
    pub(super) fn check_profile_type(&self, selection: &Selection) -> Result<(), ShowError> {
        let asked = &selection.profile_type;
        if profile_types::is_named(asked) || self.store.has_profile_type(asked)? {
            return Ok(());
        }
        let service = selection.service.as_deref();
        let seen = self.store.profile_types(service, TimeRange::Stored)?;
        if seen.types.is_empty() {
            return Ok(());
        }
        let of = service.map(|service| format!(" of {service:?}")).unwrap_or_default();
        let allowed = format!("is no profile type{of} that is stored; allowed are {}", seen.named());
        Err(BadParameter::new("type", asked, allowed).into())
    }

    /// Refuses a selection of a span or a trace that nothing is known of.
    pub(super) fn check_known(&self, selection: &Selection) -> Result<(), ShowError> {
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
