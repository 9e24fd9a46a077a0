//! The pages: HTML on the server, readable without JavaScript; only the flame graph itself is drawn by a script.

mod assets;
mod diff;
mod filter;
mod find;
mod flame;
pub(crate) mod format;
mod function;
mod layout;
mod services;
mod spans;
mod trace;
mod traces;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use layout::Page;
use maud::html;

use crate::api;
use crate::params::Params;
use crate::show::{ShowError, Shown};
use crate::tenant::Tenant;

/// The way from a page to where its links start: most lie beside the services, a trace's one deeper. So no page needs to
/// know under which address its tenant is shown.
const BESIDE: &str = "./";
const BELOW: &str = "../";

/// Whose data is shown, and whose may be, if there is a choice.
#[derive(Clone, Debug)]
pub(crate) struct TenantChoice {
    /// Whose is.
    pub(crate) tenant: Tenant,
    /// Whose may be.
    pub(crate) names: Vec<Tenant>,
}

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
        trace::page(shown, api::trace_id(&id)?)
    });
    answer(made.await, BELOW)
}

async fn nothing_here() -> Response {
    answer(Err(ShowError::NotFound("There is no such page.".into())), "/")
}

/// A page, or the error as one.
fn answer(made: Result<Page, ShowError>, base: &str) -> Response {
    match made {
        Ok(page) => send(StatusCode::OK, &page, base),
        Err(error) => {
            let title = match error {
                ShowError::Bad(_) => "Not understood",
                ShowError::NotFound(_) => "Not found",
                ShowError::Busy(_) => "Too much at once",
                ShowError::TooLarge(_) => "Too large",
                ShowError::Failed(_) => "Failed",
            };
            let body = html! {
                h1 { (title) }
                p.state { (error.to_string()) }
                p { a href="./" { "See all services" } }
            };
            send(api::status(&error), &layout::page(title, &[], body), base)
        }
    }
}

fn send(status: StatusCode, page: &Page, base: &str) -> Response {
    (status, [(CONTENT_TYPE, "text/html; charset=utf-8"), (CACHE_CONTROL, "no-store")], page.html(base).into_string())
        .into_response()
}
