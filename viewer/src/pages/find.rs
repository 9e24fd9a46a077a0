//! `/find?id=…`: the box on every page, which takes a trace id or a span id.

use axum::extract::RawQuery;
use axum::response::{IntoResponse, Redirect, Response};

use super::answer::{BESIDE, answer};
use crate::ids::{SpanId, TraceId};
use crate::params::{BadParameter, Params};
use crate::selection::Selection;

/// Leads on to the trace or the span, whose page says if there is none.
pub(super) async fn find(RawQuery(query): RawQuery) -> Response {
    match page_of(Params::parse(query.as_deref().unwrap_or(""))) {
        Ok(page) => Redirect::to(&page).into_response(),
        Err(bad) => answer(Err(bad.into()), BESIDE),
    }
}

fn page_of(mut params: Params) -> Result<String, BadParameter> {
    let id = params.take("id")?.unwrap_or_default().trim().to_owned();
    params.finish()?;
    if let Some(trace) = TraceId::parse(&id) {
        return Ok(format!("trace/{trace}"));
    }
    match SpanId::parse(&id) {
        Some(span) => Ok(Selection::of_span(span).link("flame")),
        None => Err(BadParameter::new("id", &id, "allowed are a trace id of 32 hex digits and a span id of 16")),
    }
}
