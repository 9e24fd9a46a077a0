//! The pages: HTML on the server, readable without JavaScript; only the flame graph itself is drawn by a script.

mod advice;
mod answer;
mod assets;
mod diff;
mod filter;
mod find;
mod flame;
mod function;
mod layout;
mod services;
mod spans;
mod states;
mod trace;
mod traces;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Path, RawQuery, State};
use axum::response::Response;
use axum::routing::get;

use answer::{BELOW, BESIDE, answer};
use layout::Page;

use crate::http::request::trace_id;
use crate::http::tenant::TenantChoice;
use crate::params::Params;
use crate::show::{ShowError, Shown};

/// All pages and what they load.
pub(crate) fn routes(shown: Arc<Shown>) -> Router {
    Router::new()
        .route("/", get(services_page))
        .route("/spans", page(spans::page))
        .route("/traces", page(traces::page))
        .route("/flame", page(flame::page))
        .route("/function", page(function::page))
        .route("/diff", page(diff::page))
        .route("/trace/{id}", get(trace_page))
        .route("/find", get(find::find))
        .fallback(nothing_here)
        .with_state(shown)
        .merge(assets::routes())
}

/// A page that is made from query parameters.
fn page(make: fn(&Shown, Params) -> Result<Page, ShowError>) -> axum::routing::MethodRouter<Arc<Shown>> {
    get(async move |State(shown): State<Arc<Shown>>, RawQuery(query): RawQuery| {
        answer(shown.on_pool(move |shown| make(shown, Params::parse(query.as_deref().unwrap_or("")))).await, BESIDE)
    })
}

async fn services_page(
    State(shown): State<Arc<Shown>>,
    RawQuery(query): RawQuery,
    Extension(choice): Extension<TenantChoice>,
) -> Response {
    let make = move |shown: &Shown| services::page(shown, Params::parse(query.as_deref().unwrap_or("")), &choice);
    answer(shown.on_pool(make).await, BESIDE)
}

async fn trace_page(State(shown): State<Arc<Shown>>, Path(id): Path<String>, RawQuery(query): RawQuery) -> Response {
    let made = shown.on_pool(move |shown| {
        Params::parse(query.as_deref().unwrap_or("")).finish()?;
        trace::page(shown, trace_id(&id)?)
    });
    answer(made.await, BELOW)
}

async fn nothing_here(Extension(choice): Extension<TenantChoice>) -> Response {
    // Who is offered no choice has the same services at all addresses.
    let base = if choice.names.is_empty() { "/".into() } else { choice.tenant.home() };
    answer(Err(ShowError::NotFound("There is no such page.".into())), &base)
}
