//! The JSON API under /api, and what servers of this kind are asked for by probes.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;

use crate::ids::TraceId;
use crate::params::{BadParameter, Params};
use crate::selection::{Selection, Window};
use crate::show::{ShowError, Shown};
use crate::store::TraceSort;

/// Everything that answers in JSON.
pub(crate) fn routes(shown: Arc<Shown>) -> Router {
    Router::new()
        .route("/api/services", get(services))
        .route("/api/spans", get(spans))
        .route("/api/traces", get(traces))
        .route("/api/trace/{id}", get(trace))
        .route("/api/flame", get(flame))
        .route("/api/top", get(top))
        .with_state(shown)
        .route("/ready", get(|| async { "ready" }))
        .route("/api/v1/status/buildinfo", get(build_info))
}

/// What a list of services is about.
pub(crate) fn take_window(params: &mut Params) -> Result<Window, BadParameter> {
    Window::take(params, Selection::everything().window)
}

/// What a list of span names or traces is about: a service, for traces perhaps a name, a time range.
pub(crate) struct OfService {
    pub(crate) service: String,
    pub(crate) window: Window,
}

impl OfService {
    /// Takes `service` and the time range.
    pub(crate) fn take(params: &mut Params) -> Result<Self, BadParameter> {
        let service = params.take("service")?;
        let window = take_window(params)?;
        match service {
            Some(service) => Ok(Self { service, window }),
            None => Err(BadParameter::new("service", "", "is missing; name a service")),
        }
    }
}

/// Takes `sort` of a list of traces.
pub(crate) fn take_trace_sort(params: &mut Params) -> Result<TraceSort, BadParameter> {
    match params.take("sort")?.as_deref() {
        None | Some("wall") => Ok(TraceSort::Wall),
        Some("cpu") => Ok(TraceSort::Cpu),
        Some(other) => Err(BadParameter::new("sort", other, "allowed are wall and cpu")),
    }
}

/// Reads a trace id from a path.
pub(crate) fn trace_id(text: &str) -> Result<TraceId, ShowError> {
    TraceId::parse(text)
        .ok_or_else(|| BadParameter::new("trace", text, "allowed are 32 hex digits, not all zeros").into())
}

/// The HTTP status of an error.
pub(crate) fn status(error: &ShowError) -> StatusCode {
    match error {
        ShowError::Bad(_) => StatusCode::BAD_REQUEST,
        ShowError::NotFound(_) => StatusCode::NOT_FOUND,
        ShowError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
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
            serde_json::to_string(&value).map_err(|error| ShowError::Failed(format!("cannot write JSON: {error}")))
        })
        .await;
    let json = [(CONTENT_TYPE, "application/json")];
    match done {
        Ok(text) => (json, text).into_response(),
        Err(error) => {
            (status(&error), json, serde_json::json!({ "error": error.to_string() }).to_string()).into_response()
        }
    }
}

async fn services(State(shown): State<Arc<Shown>>, RawQuery(query): RawQuery) -> Response {
    answer(shown, move |shown| {
        let mut params = Params::parse(query.as_deref().unwrap_or(""));
        let window = take_window(&mut params)?;
        params.finish()?;
        shown.services(window)
    })
    .await
}

async fn spans(State(shown): State<Arc<Shown>>, RawQuery(query): RawQuery) -> Response {
    answer(shown, move |shown| {
        let mut params = Params::parse(query.as_deref().unwrap_or(""));
        let of = OfService::take(&mut params)?;
        params.finish()?;
        shown.span_names(&of.service, of.window)
    })
    .await
}

async fn traces(State(shown): State<Arc<Shown>>, RawQuery(query): RawQuery) -> Response {
    answer(shown, move |shown| {
        let mut params = Params::parse(query.as_deref().unwrap_or(""));
        let of = OfService::take(&mut params)?;
        let name = params.take("name")?;
        let sort = take_trace_sort(&mut params)?;
        params.finish()?;
        shown.traces(&of.service, name.as_deref(), of.window, sort)
    })
    .await
}

async fn trace(State(shown): State<Arc<Shown>>, Path(id): Path<String>, RawQuery(query): RawQuery) -> Response {
    answer(shown, move |shown| {
        Params::parse(query.as_deref().unwrap_or("")).finish()?;
        shown.trace(trace_id(&id)?)
    })
    .await
}

async fn flame(State(shown): State<Arc<Shown>>, RawQuery(query): RawQuery) -> Response {
    answer(shown, move |shown| {
        let mut params = Params::parse(query.as_deref().unwrap_or(""));
        let selection = Selection::take(&mut params)?;
        let by_line = params.take_flag("lines")?;
        params.finish()?;
        shown.flame(&selection, by_line)
    })
    .await
}

async fn top(State(shown): State<Arc<Shown>>, RawQuery(query): RawQuery) -> Response {
    answer(shown, move |shown| {
        let mut params = Params::parse(query.as_deref().unwrap_or(""));
        let selection = Selection::take(&mut params)?;
        params.finish()?;
        shown.top(&selection)
    })
    .await
}

/// As Prometheus answers it. The application is named so that profilers do not take our version for Pyroscope's.
async fn build_info() -> Response {
    let info = serde_json::json!({
        "status": "success",
        "data": { "application": "spanprof", "version": env!("CARGO_PKG_VERSION") },
    });
    ([(CONTENT_TYPE, "application/json")], info.to_string()).into_response()
}
