//! A selection as a file: SVG, pprof, folded stacks, speedscope's JSON.

mod folded;
pub(crate) mod pprof;
pub(crate) mod size;
mod speedscope;
mod svg;

use std::io::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, IntoResponseParts, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message as _;

use crate::http::request::StackRequest;
use crate::params::Params;
use crate::selection::Selection;
use crate::show::{ShowError, Shown};
use crate::store::Stacks;

/// Inferno's script is inline; the file stands alone, so it may run there and reach nothing.
const SVG_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; sandbox allow-scripts allow-modals";

/// All files.
pub(crate) fn routes(shown: Arc<Shown>) -> Router {
    Router::new()
        .route("/flame.svg", get(drawn))
        .route("/profile.pb.gz", get(profile))
        .route("/folded", get(folded_stacks))
        .route("/speedscope.json", get(for_speedscope))
        .with_state(shown)
}

/// Makes a file of a selection, of at most so many bytes, on the pool, and answers it with these headers.
async fn file(
    shown: Arc<Shown>,
    query: Option<String>,
    headers: impl IntoResponseParts,
    write: impl FnOnce(&Selection, &Stacks, usize) -> Result<Vec<u8>, ShowError> + Send + 'static,
) -> Response {
    let made = shown
        .on_pool(move |shown| {
            let StackRequest { selection, display } =
                StackRequest::alone(Params::parse(query.as_deref().unwrap_or("")))?;
            let stacks = shown.stacks(&selection, display)?;
            some(&stacks, &selection)?;
            write(&selection, &stacks, shown.store.limits().answer())
        })
        .await;
    answer(made, headers)
}

/// Refuses a selection of no sample.
fn some(stacks: &Stacks, selection: &Selection) -> Result<(), ShowError> {
    if stacks.sums.is_empty() {
        return Err(ShowError::NotFound(format!("There is no sample of {}.", selection.sentence())));
    }
    Ok(())
}

fn answer(made: Result<Vec<u8>, ShowError>, headers: impl IntoResponseParts) -> Response {
    match made {
        Ok(bytes) => (headers, bytes).into_response(),
        Err(error) => (error.status(), error.to_string()).into_response(),
    }
}

async fn drawn(State(shown): State<Arc<Shown>>, RawQuery(query): RawQuery) -> Response {
    let headers = [(CONTENT_TYPE, "image/svg+xml"), (CONTENT_SECURITY_POLICY, SVG_POLICY)];
    let drawn = |selection: &Selection, stacks: &Stacks, most| {
        size::fits(stacks, most)?;
        svg::draw(selection, stacks, most)
    };
    file(shown, query, headers, drawn).await
}

/// The samples with the spans that they are of, as far as an answer has room for that.
async fn profile(State(shown): State<Arc<Shown>>, RawQuery(query): RawQuery) -> Response {
    let headers =
        [(CONTENT_TYPE, "application/octet-stream"), (CONTENT_DISPOSITION, "attachment; filename=\"profile.pb.gz\"")];
    let made = shown
        .on_pool(move |shown| {
            let StackRequest { selection, display } =
                StackRequest::alone(Params::parse(query.as_deref().unwrap_or("")))?;
            let (stacks, labelled) = shown.labelled(&selection, display)?;
            some(&stacks, &selection)?;
            let profile = pprof::labelled(&stacks, labelled, shown.store.limits().answer())?;
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder
                .write_all(&profile.encode_to_vec())
                .and_then(|()| encoder.finish())
                .map_err(|error| ShowError::Failed(format!("cannot pack the profile: {error}")))
        })
        .await;
    answer(made, headers)
}

async fn for_speedscope(State(shown): State<Arc<Shown>>, RawQuery(query): RawQuery) -> Response {
    let headers =
        [(CONTENT_TYPE, "application/json"), (CONTENT_DISPOSITION, "attachment; filename=\"profile.speedscope.json\"")];
    let written = |selection: &Selection, stacks: &Stacks, most| {
        size::fits_as_numbers(stacks, most)?;
        speedscope::speedscope(stacks, &selection.sentence(), most)
    };
    file(shown, query, headers, written).await
}

async fn folded_stacks(State(shown): State<Arc<Shown>>, RawQuery(query): RawQuery) -> Response {
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8")];
    let folded = |_: &Selection, stacks: &Stacks, most| {
        size::fits(stacks, most)?;
        Ok(folded::folded(stacks).into_bytes())
    };
    file(shown, query, headers, folded).await
}
