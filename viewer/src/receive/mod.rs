//! Bytes from the network become rows: bounded, checked, and refused in words that are counted.

mod bounds;
pub(crate) mod file;
mod folded;
mod ingest;
mod jfr;
mod labels;
mod otlp;
mod otlp_dictionary;
mod otlp_field;
mod otlp_fields;
mod otlp_json;
mod otlp_profiles;
mod otlp_traces;
mod otlp_written;
mod pprof;
mod process;
pub(crate) mod profilers;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod properties;
mod push;
mod receiver;
mod sample_types;
mod senders;
mod strings;
mod threads;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;

use crate::http::refusal::{Reason, Refusal};

pub(crate) use otlp::grpc_refusal;
pub(crate) use push::refusal_in_json;
pub(crate) use receiver::{AT_ONCE, Keeper, Kept, Permits, Receiver};

const PUSH: &str = "/push.v1.PusherService/Push";
const INGEST: &str = "/ingest";
const TRACES: &str = "/v1/traces";
const PROFILES: &str = "/v1development/profiles";
const GRPC_TRACES: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
const GRPC_PROFILES: &str = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";

/// Whether something is sent to be stored there.
pub(crate) fn is_upload(path: &str) -> bool {
    [PUSH, INGEST, TRACES, PROFILES, GRPC_TRACES, GRPC_PROFILES].contains(&path)
}

/// Push, `/ingest` and OTLP by HTTP.
pub(crate) fn routes(receiver: Arc<Receiver>) -> Router {
    Router::new()
        .route(PUSH, post(push::receive))
        .route(INGEST, post(ingest::receive).layer(DefaultBodyLimit::disable()))
        .with_state(Arc::clone(&receiver))
        .merge(otlp_routes(receiver))
}

/// OTLP by HTTP alone, for its own port; whoever sends anything else there is told the `main` one.
pub(crate) fn otlp_port(receiver: Arc<Receiver>, main: u16) -> Router {
    otlp_routes(Arc::clone(&receiver)).merge(elsewhere(receiver, main))
}

fn otlp_routes(receiver: Arc<Receiver>) -> Router {
    Router::new()
        .route(TRACES, post(otlp::http::<ExportTraceServiceRequest>))
        .route(PROFILES, post(otlp::http::<ExportProfilesServiceRequest>))
        .with_state(receiver)
}

/// OTLP by gRPC, for its own port, likewise.
pub(crate) fn grpc_port(receiver: Arc<Receiver>, main: u16) -> Router {
    Router::new()
        .route(GRPC_TRACES, post(otlp::grpc::<ExportTraceServiceRequest>))
        .route(GRPC_PROFILES, post(otlp::grpc::<ExportProfilesServiceRequest>))
        .with_state(Arc::clone(&receiver))
        .merge(elsewhere(receiver, main))
}

/// What a port of OTLP says of all else, before the port that profilers send to.
pub(crate) const WRONG_PORT: &str = "this port takes OTLP alone, and profilers send to port ";

/// Answers what is no OTLP, in the words of its protocol.
fn elsewhere(receiver: Arc<Receiver>, main: u16) -> Router {
    let answer = async move |State(receiver): State<Arc<Receiver>>, headers: HeaderMap, body: Body| {
        // Whoever is cut off while he sends may not hear why.
        let _ = receiver.read(body).await;
        let said = format!("{WRONG_PORT}{main}");
        let is_grpc = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        if is_grpc {
            return grpc_refusal(&Refusal::new(Reason::ContentType, said));
        }
        let error = serde_json::json!({ "code": "unimplemented", "message": said }).to_string();
        (StatusCode::NOT_FOUND, [(CONTENT_TYPE, "application/json")], error).into_response()
    };
    Router::new().fallback(answer).with_state(receiver)
}
