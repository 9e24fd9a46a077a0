//! The JSON API under /api, and what servers of this kind are asked for by probes.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use serde::Serialize;

use crate::ids::TraceId;
use crate::look::Look;
use crate::params::{BadParameter, Params};
use crate::selection::{LAST_HOUR, Pair, Selection, Side, Window};
use crate::show::{Diff, FunctionView, ShowError, Shown, SpanNames, Traces};
use crate::store::TraceSort;

/// Everything that answers in JSON.
pub(crate) fn routes(shown: Arc<Shown>) -> Router {
    Router::new()
        .route("/api/services", json(|shown, params| shown.services(window_alone(params)?)))
        .route("/api/spans", json(|shown, params| OfService::alone(params).and_then(|of| of.span_names(shown))))
        .route("/api/traces", json(traces))
        .route("/api/trace/{id}", get(trace))
        .route(
            "/api/flame",
            json(|shown, params| Asked::alone(params).and_then(|of| shown.flame(&of.selection, of.look))),
        )
        .route("/api/top", json(|shown, params| Asked::alone(params).and_then(|of| shown.top(&of.selection, of.look))))
        .route("/api/function", json(function))
        .route("/api/diff", json(diff))
        .with_state(shown)
        .route("/ready", get(|| async { "ready" }))
        .route("/api/v1/status/buildinfo", get(build_info))
}

/// What a list of services is about.
pub(crate) fn take_window(params: &mut Params) -> Result<Window, BadParameter> {
    Window::take(params, LAST_HOUR)
}

fn window_alone(mut params: Params) -> Result<Window, ShowError> {
    let window = take_window(&mut params)?;
    params.finish()?;
    Ok(window)
}

/// What a list of span names or traces is about: a service, and which of its spans.
pub(crate) struct OfService {
    pub(crate) service: String,
    pub(crate) selection: Selection,
}

impl OfService {
    /// Takes a selection that names a service, and nothing that a list of spans cannot heed.
    pub(crate) fn take(params: &mut Params) -> Result<Self, BadParameter> {
        let selection = Selection::take(params)?;
        if let Some((key, value)) = selection.labels.first_key_value() {
            let name = format!("label.{key}");
            return Err(BadParameter::new(&name, value, "belongs to profiles; choose spans by attr.KEY=VALUE"));
        }
        if selection.side != Side::Any || selection.trace.is_some() || selection.span.is_some() {
            let given = selection.pairs().into_iter().find(|(name, _)| SINGLE.contains(&name.as_str()));
            let (name, value) = given.unwrap_or_default();
            return Err(BadParameter::new(&name, &value, "is known to flame graphs, and not to lists of spans"));
        }
        match selection.service.clone() {
            Some(service) => Ok(Self { service, selection }),
            None => Err(BadParameter::new("service", "", "is missing; name a service")),
        }
    }

    fn alone(mut params: Params) -> Result<Self, ShowError> {
        let of = Self::take(&mut params)?;
        params.finish()?;
        Ok(of)
    }

    fn span_names(&self, shown: &Shown) -> Result<SpanNames, ShowError> {
        shown.span_names(&self.service, &self.selection)
    }
}

const SINGLE: [&str; 5] = ["trace", "span", "below", "inside", "outside"];

/// A selection and how its stacks are shown.
pub(crate) struct Asked {
    pub(crate) selection: Selection,
    pub(crate) look: Look,
}

impl Asked {
    /// Takes both.
    pub(crate) fn take(params: &mut Params) -> Result<Self, BadParameter> {
        Ok(Self { selection: Selection::take(params)?, look: Look::take(params)? })
    }

    /// The same, with nothing beside them.
    pub(crate) fn alone(mut params: Params) -> Result<Self, ShowError> {
        let asked = Self::take(&mut params)?;
        params.finish()?;
        Ok(asked)
    }
}

/// A function of a selection.
pub(crate) struct OfFunction {
    pub(crate) asked: Asked,
    pub(crate) function: String,
    pub(crate) file: Option<String>,
}

impl OfFunction {
    /// Takes `function` and `file` beside a selection.
    pub(crate) fn alone(mut params: Params) -> Result<Self, ShowError> {
        let function = params.take("function")?;
        let file = params.take("file")?;
        let asked = Asked::alone(params)?;
        match function {
            Some(function) => Ok(Self { asked, function, file }),
            None => Err(BadParameter::new("function", "", "is missing; name a function").into()),
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
        ShowError::Busy(_) => StatusCode::SERVICE_UNAVAILABLE,
        ShowError::TooLarge(_) => StatusCode::UNPROCESSABLE_ENTITY,
        ShowError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
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

fn traces(shown: &Shown, mut params: Params) -> Result<Traces, ShowError> {
    let sort = take_trace_sort(&mut params)?;
    let of = OfService::alone(params)?;
    shown.traces(&of.selection, sort)
}

async fn trace(State(shown): State<Arc<Shown>>, Path(id): Path<String>, RawQuery(query): RawQuery) -> Response {
    answer(shown, move |shown| {
        Params::parse(query.as_deref().unwrap_or("")).finish()?;
        shown.trace(trace_id(&id)?)
    })
    .await
}

fn function(shown: &Shown, params: Params) -> Result<FunctionView, ShowError> {
    let of = OfFunction::alone(params)?;
    shown.function(&of.asked.selection, of.asked.look, &of.function, of.file.as_deref())
}

fn diff(shown: &Shown, mut params: Params) -> Result<Diff, ShowError> {
    let look = Look::take(&mut params)?;
    shown.diff(&Pair::take(params)?, look)
}

/// As Prometheus answers it. The application is named so that profilers do not take our version for Pyroscope's.
async fn build_info() -> Response {
    let info = serde_json::json!({
        "status": "success",
        "data": { "application": "spanprof", "version": env!("CARGO_PKG_VERSION") },
    });
    ([(CONTENT_TYPE, "application/json")], info.to_string()).into_response()
}
