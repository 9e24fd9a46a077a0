//! The JSON API under /api, and what servers of this kind are asked for by probes.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use serde::Serialize;

use crate::http::request::{
    FunctionRequest, ServiceRequest, StackRequest, take_trace_sort, time_range_alone, trace_id,
};
use crate::params::Params;
use crate::selection::{Pair, StackDisplay};
use crate::show::{Diff, Flame, FunctionView, ShowError, Shown, SpanNames, Top, Traces, Written};

/// Everything that answers in JSON.
pub(crate) fn routes(shown: Arc<Shown>) -> Router {
    Router::new()
        .route("/api/services", json(|shown, params| shown.services(time_range_alone(params)?)))
        .route("/api/spans", json(span_names))
        .route("/api/traces", json(traces))
        .route("/api/trace/{id}", get(trace))
        .route("/api/flame", json(flame))
        .route("/api/top", json(top))
        .route("/api/function", json(function))
        .route("/api/diff", json(diff))
        .with_state(shown)
        .route("/ready", get(|| async { "ready" }))
        .route("/api/v1/status/buildinfo", get(build_info))
}

/// Answers with what is made from the query's parameters.
fn json<T: Serialize + Send + 'static>(make: fn(&Shown, Params) -> Result<T, ShowError>) -> MethodRouter<Arc<Shown>> {
    get(async move |State(shown): State<Arc<Shown>>, RawQuery(query): RawQuery| {
        answer(shown, move |shown| make(shown, Params::parse(query.as_deref().unwrap_or("")))).await
    })
}

/// Shows `work` as JSON.
async fn answer<T: Serialize + Send + 'static>(
    shown: Arc<Shown>,
    work: impl FnOnce(&Shown) -> Result<T, ShowError> + Send + 'static,
) -> Response {
    // Written on the pool as well: a large graph takes a while.
    let done = shown
        .on_pool(move |shown| {
            let value = work(shown)?;
            let mut written = Written::new(shown.store.limits().answer());
            let done = serde_json::to_writer(&mut written, &value);
            written.finish(done, |error| ShowError::Failed(format!("cannot write JSON: {error}")))
        })
        .await;
    let json = [(CONTENT_TYPE, "application/json")];
    match done {
        Ok(text) => (json, text).into_response(),
        Err(error) => {
            (error.status(), json, serde_json::json!({ "error": error.to_string() }).to_string()).into_response()
        }
    }
}

fn span_names(shown: &Shown, params: Params) -> Result<SpanNames, ShowError> {
    let request = ServiceRequest::alone(params)?;
    shown.span_names(&request.service, &request.selection)
}

fn flame(shown: &Shown, params: Params) -> Result<Flame, ShowError> {
    let request = StackRequest::alone(params)?;
    shown.flame(&request.selection, request.display)
}

fn top(shown: &Shown, params: Params) -> Result<Top, ShowError> {
    let request = StackRequest::alone(params)?;
    shown.top(&request.selection, request.display)
}

fn traces(shown: &Shown, mut params: Params) -> Result<Traces, ShowError> {
    let sort = take_trace_sort(&mut params)?;
    let request = ServiceRequest::alone(params)?;
    shown.traces(&request.selection, sort)
}

async fn trace(State(shown): State<Arc<Shown>>, Path(id): Path<String>, RawQuery(query): RawQuery) -> Response {
    answer(shown, move |shown| {
        Params::parse(query.as_deref().unwrap_or("")).finish()?;
        shown.trace(trace_id(&id)?)
    })
    .await
}

fn function(shown: &Shown, params: Params) -> Result<FunctionView, ShowError> {
    let request = FunctionRequest::alone(params)?;
    shown.function(&request.stacks.selection, request.stacks.display, &request.function, request.file.as_deref())
}

fn diff(shown: &Shown, mut params: Params) -> Result<Diff, ShowError> {
    let display = StackDisplay::take(&mut params)?;
    shown.diff(&Pair::take(params)?, display)
}

/// As Prometheus answers it. The application is named so that profilers do not take our version for Pyroscope's.
async fn build_info() -> Response {
    let info = serde_json::json!({
        "status": "success",
        "data": { "application": "spanprof", "version": env!("CARGO_PKG_VERSION") },
    });
    ([(CONTENT_TYPE, "application/json")], info.to_string()).into_response()
}
