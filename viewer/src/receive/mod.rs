//! Bytes from the network become rows: bounded, checked, and refused in words that are counted.
//!
//! A request is read whole (at most [`body::MOST_SENT`] bytes), then unpacked, decoded, checked and stored on a thread
//! that may wait, only a few requests at a time. Each takes the bytes that it needs from the [`Budget`] before it has
//! them, and has a time to be done in. Nothing of a refused request is stored.

mod allowed;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod any_bytes;
pub(crate) mod body;
mod bounds;
pub(crate) mod file;
mod ingest;
mod labels;
mod otlp;
mod otlp_profiles;
mod otlp_traces;
mod pprof;
pub(crate) mod profilers;
mod push;
pub(crate) mod refusal;
mod sample_types;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use tokio::sync::Semaphore;

use allowed::Allowed;
pub(crate) use otlp::grpc_refusal;
use profilers::Profilers;
pub(crate) use push::refusal_in_json;
use refusal::{Reason, Refusal};
pub(crate) use refusal::{RefusalCount, Refusals};

use crate::budget::{Budget, Held};
use crate::clock;
use crate::store::{Profile, Span, Store, StoreError};
use crate::work::{self, Gone};

/// Requests that are decoded at the same time; what one may take in memory is bounded, so all of them are.
pub(crate) const AT_ONCE: usize = 2;
const PUSH: &str = "/push.v1.PusherService/Push";
const INGEST: &str = "/ingest";
const TRACES: &str = "/v1/traces";
const PROFILES: &str = "/v1development/profiles";
const GRPC_TRACES: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
const GRPC_PROFILES: &str = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";

/// How far the clock of a sender may be ahead of ours.
const AHEAD: i64 = 600 * clock::SECOND;

/// How long a request may wait for others, and how long it may be worked on.
const PATIENCE: Duration = Duration::from_secs(5);
const LONGEST_WORK: Duration = Duration::from_secs(20);

/// Lets a few requests of all tenants be decoded at the same time, in so many bytes.
#[derive(Clone, Debug)]
pub(crate) struct Permits {
    at_once: Arc<Semaphore>,
    budget: Arc<Budget>,
}

impl Permits {
    /// What is decoded takes its bytes from this.
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self { at_once: Arc::new(Semaphore::new(AT_ONCE)), budget }
    }
}

/// Whether something is sent to be stored there.
pub(crate) fn is_upload(path: &str) -> bool {
    [PUSH, INGEST, TRACES, PROFILES, GRPC_TRACES, GRPC_PROFILES].contains(&path)
}

/// Where what is received is kept.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) store: Arc<Store>,
    pub(crate) profilers: Arc<Profilers>,
    /// What else must stay as long as this is in use.
    pub(crate) _owner: Option<Arc<dyn Any + Send + Sync>>,
}

/// The same, or what makes it when there is something to keep.
pub(crate) enum Keeper {
    Known(Kept),
    Later(Box<dyn Fn() -> Result<Kept, Refusal> + Send + Sync>),
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

/// What receiving needs.
#[derive(Debug)]
pub(crate) struct Receiver {
    keeper: Keeper,
    refusals: Arc<Refusals>,
    retain: Duration,
    permits: Permits,
}

impl Receiver {
    /// Gives `keeper` what is not older than `retain`; counts what it refuses.
    pub(crate) fn new(keeper: Keeper, refusals: Arc<Refusals>, retain: Duration, permits: &Permits) -> Self {
        Self { keeper, refusals, retain, permits: permits.clone() }
    }

    fn kept(&self) -> Result<Kept, Refusal> {
        match &self.keeper {
            Keeper::Known(kept) => Ok(kept.clone()),
            Keeper::Later(make) => make(),
        }
    }

    /// The bytes of a request that is about to be read.
    fn hold(&self) -> Held {
        self.permits.budget.hold()
    }

    /// Runs `work` on a thread that may wait, beside at most [`AT_ONCE`] − 1 others.
    async fn on_pool<T: Send + 'static>(
        self: &Arc<Self>,
        held: Held,
        work: impl FnOnce(&Self, &mut Allowed) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let permit = Arc::clone(&self.permits.at_once).acquire_owned();
        let Ok(permit) = tokio::time::timeout(PATIENCE, permit).await else {
            return Err(Refusal::new(Reason::Busy, "other requests are worked on right now; try again in a second"));
        };
        let receiver = Arc::clone(self);
        let gone = Gone::default();
        let _waiting = gone.waiting();
        // The permit and the bytes go along, as the work goes on for a moment when the sender hangs up.
        let work = move || {
            let _permit = permit;
            let mut allowed = Allowed::new(held);
            work::within(LONGEST_WORK, gone, || work(&receiver, &mut allowed))
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(done) => done,
            Err(error) => Err(Refusal::new(Reason::Store, format!("the request could not be worked on: {error}"))),
        }
    }

    /// Stores the profiles of a request, all of them or none.
    fn insert_profiles(&self, profiles: &[Profile]) -> Result<(), Refusal> {
        if profiles.is_empty() {
            return Ok(());
        }
        self.kept()?.store.insert_profiles(profiles).map_err(failed)
    }

    /// Stores the spans of a request, all of them or none.
    fn insert_spans(&self, spans: &[Span]) -> Result<(), Refusal> {
        if spans.is_empty() {
            return Ok(());
        }
        self.kept()?.store.insert_spans(spans).map_err(failed)
    }

    /// The first and the last time that a profile or span may start at.
    fn times(&self) -> (i64, i64) {
        let now = clock::now();
        (now.saturating_sub(i64::try_from(self.retain.as_nanos()).unwrap_or(i64::MAX)), now.saturating_add(AHEAD))
    }
}

fn failed(error: StoreError) -> Refusal {
    let reason = if error.is_over() { Reason::Busy } else { Reason::Store };
    Refusal::new(reason, error.to_string())
}

/// Push, `/ingest` and OTLP by HTTP.
pub(crate) fn routes(receiver: Arc<Receiver>) -> Router {
    Router::new()
        .route(PUSH, post(push::receive))
        .route(INGEST, post(ingest::receive).layer(DefaultBodyLimit::disable()))
        .with_state(Arc::clone(&receiver))
        .merge(otlp_routes(receiver))
}

/// OTLP by HTTP alone, for its own port.
pub(crate) fn otlp_routes(receiver: Arc<Receiver>) -> Router {
    Router::new()
        .route(TRACES, post(otlp::http::<ExportTraceServiceRequest>))
        .route(PROFILES, post(otlp::http::<ExportProfilesServiceRequest>))
        .with_state(receiver)
}

/// OTLP by gRPC, for its own port.
pub(crate) fn grpc_routes(receiver: Arc<Receiver>) -> Router {
    Router::new()
        .route(GRPC_TRACES, post(otlp::grpc::<ExportTraceServiceRequest>))
        .route(GRPC_PROFILES, post(otlp::grpc::<ExportProfilesServiceRequest>))
        .with_state(receiver)
}
