//! Bytes from the network become rows: bounded, checked, and refused in words that are counted.
//!
//! A request is read whole (at most [`body::MOST_SENT`] bytes), then unpacked, decoded, checked and stored on a thread
//! that may wait, only a few requests at a time. Nothing of a refused request is stored.

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

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use tokio::sync::Semaphore;

pub(crate) use otlp::grpc_refusal;
use profilers::Profilers;
pub(crate) use push::refusal_in_json;
use refusal::{Reason, Refusal};
pub(crate) use refusal::{RefusalCount, Refusals};

use crate::clock;
use crate::store::Store;

/// Requests that are decoded at the same time; what one may take in memory is bounded, so all of them are.
const AT_ONCE: usize = 2;
const PUSH: &str = "/push.v1.PusherService/Push";
const INGEST: &str = "/ingest";
const TRACES: &str = "/v1/traces";
const PROFILES: &str = "/v1development/profiles";
const GRPC_TRACES: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
const GRPC_PROFILES: &str = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";

/// How far the clock of a sender may be ahead of ours.
const AHEAD: i64 = 600 * clock::SECOND;

/// Lets a few requests be decoded at the same time, of all tenants.
#[derive(Clone, Debug)]
pub(crate) struct Permits(Arc<Semaphore>);

impl Default for Permits {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

/// Whether something is sent to be stored there.
pub(crate) fn is_upload(path: &str) -> bool {
    [PUSH, INGEST, TRACES, PROFILES, GRPC_TRACES, GRPC_PROFILES].contains(&path)
}

/// What receiving needs.
#[derive(Debug)]
pub(crate) struct Receiver {
    store: Arc<Store>,
    refusals: Arc<Refusals>,
    profilers: Arc<Profilers>,
    retain: Duration,
    permits: Permits,
}

impl Receiver {
    /// Puts into `store` what is not older than `retain`; counts what it refuses.
    pub(crate) fn new(
        store: Arc<Store>,
        refusals: Arc<Refusals>,
        profilers: Arc<Profilers>,
        retain: Duration,
        permits: &Permits,
    ) -> Self {
        Self { store, refusals, profilers, retain, permits: permits.clone() }
    }

    /// Runs `work` on a thread that may wait, after at most [`AT_ONCE`] others.
    async fn on_pool<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let permit = Arc::clone(&self.permits.0).acquire_owned().await;
        let receiver = Arc::clone(self);
        // The permit goes along, as the work goes on when the sender hangs up.
        let work = move || {
            let _permit = permit;
            work(&receiver)
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(done) => done,
            Err(error) => Err(Refusal::new(Reason::Store, format!("the request could not be worked on: {error}"))),
        }
    }

    /// The first and the last time that a profile or span may start at.
    fn times(&self) -> (i64, i64) {
        let now = clock::now();
        (now.saturating_sub(i64::try_from(self.retain.as_nanos()).unwrap_or(i64::MAX)), now.saturating_add(AHEAD))
    }
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
