//! A selection as a file: SVG, pprof, folded stacks.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, IntoResponseParts, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use inferno::flamegraph;
use prost::Message as _;

use crate::api::{Asked, status};
use crate::params::Params;
use crate::selection::Selection;
use crate::show::{ShowError, Shown};
use crate::store::Stacks;
use crate::work;

pub(crate) mod pprof;

/// Inferno's script is inline; the file stands alone, so it may run there and reach nothing.
const SVG_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; sandbox allow-scripts allow-modals";

/// The three files.
pub(crate) fn routes(shown: Arc<Shown>) -> Router {
    Router::new()
        .route("/flame.svg", get(svg))
        .route("/profile.pb.gz", get(profile))
        .route("/folded", get(folded_stacks))
        .with_state(shown)
}

/// Refuses what would be larger than an answer may be, where each stack is written with all its frames.
pub(crate) fn fits(stacks: &Stacks, most: usize) -> Result<(), ShowError> {
    let mut left = most;
    for &(stack, ..) in &stacks.sums {
        for frame in stacks.frames(stack) {
            let name = stacks.functions.get(&frame.function).map_or(0, |function| function.name.len());
            let too_large = || ShowError::TooLarge(format!("The file would have more than {most} bytes; choose less."));
            left = left.checked_sub(name + 9).ok_or_else(too_large)?;
        }
        if work::is_over() {
            return Err(ShowError::Busy("The request took too long and was ended.".into()));
        }
    }
    Ok(())
}

/// Makes a file of a selection on the pool, and answers it with these headers.
async fn file(
    shown: Arc<Shown>,
    query: Option<String>,
    headers: impl IntoResponseParts,
    write: impl FnOnce(&Selection, &Stacks) -> Result<Vec<u8>, ShowError> + Send + 'static,
) -> Response {
    let made = shown
        .on_pool(move |shown| {
            let Asked { selection, look } = Asked::alone(Params::parse(query.as_deref().unwrap_or("")))?;
            let stacks = shown.stacks(&selection, look)?;
            if stacks.sums.is_empty() {
                return Err(ShowError::NotFound(format!("There is no sample of {}.", selection.sentence())));
            }
            fits(&stacks, shown.store.room().answer())?;
            write(&selection, &stacks)
        })
        .await;
    match made {
        Ok(bytes) => (headers, bytes).into_response(),
        Err(error) => (status(&error), error.to_string()).into_response(),
    }
}

async fn svg(State(shown): State<Arc<Shown>>, RawQuery(query): RawQuery) -> Response {
    let headers = [(CONTENT_TYPE, "image/svg+xml"), (CONTENT_SECURITY_POLICY, SVG_POLICY)];
    file(shown, query, headers, draw).await
}

async fn profile(State(shown): State<Arc<Shown>>, RawQuery(query): RawQuery) -> Response {
    let headers =
        [(CONTENT_TYPE, "application/octet-stream"), (CONTENT_DISPOSITION, "attachment; filename=\"profile.pb.gz\"")];
    let packed = |_: &Selection, stacks: &Stacks| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder
            .write_all(&pprof::profile(stacks).encode_to_vec())
            .and_then(|()| encoder.finish())
            .map_err(|error| ShowError::Failed(format!("cannot pack the profile: {error}")))
    };
    file(shown, query, headers, packed).await
}

async fn folded_stacks(State(shown): State<Arc<Shown>>, RawQuery(query): RawQuery) -> Response {
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8")];
    file(shown, query, headers, |_, stacks| Ok(folded(stacks).into_bytes())).await
}

/// One stack a line, callers first: `main;handler;work 20000000`.
fn folded(stacks: &Stacks) -> String {
    let mut lines: Vec<String> = Vec::with_capacity(stacks.sums.len());
    for &(stack, value, _) in &stacks.sums {
        // The two characters that the format is made of.
        let names: Vec<String> = stacks.names(stack).iter().map(|name| name.replace([';', '\n'], ",")).collect();
        lines.push(format!("{} {value}", names.join(";")));
    }
    lines.sort_unstable();
    lines.into_iter().fold(String::new(), |mut text, line| {
        // Writing into a string does not fail.
        let _ = writeln!(text, "{line}");
        text
    })
}

/// The same for drawing, where a second number behind a stack would make it a comparison: a number at the end of a name
/// is no word of its own.
fn without_numbers(folded: &str) -> String {
    folded.lines().fold(String::with_capacity(folded.len()), |mut text, line| {
        let (stack, value) = line.rsplit_once(' ').unwrap_or((line, "0"));
        match stack.rsplit_once(' ').filter(|(_, last)| last.parse::<f64>().is_ok()) {
            Some((start, last)) => text.extend([start, "\u{a0}", last]),
            None => text.push_str(stack),
        }
        text.extend([" ", value, "\n"]);
        text
    })
}

fn draw(selection: &Selection, stacks: &Stacks) -> Result<Vec<u8>, ShowError> {
    let folded = without_numbers(&folded(stacks));
    let mut options = flamegraph::Options::default();
    options.title = selection.sentence();
    options.direction = flamegraph::Direction::Inverted;
    options.hash = true;
    if stacks.kind.split(':').nth(2) == Some("nanoseconds") {
        options.factor = 1e-6;
        options.count_name = "ms".into();
    }
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options, folded.lines(), &mut svg)
        .map_err(|error| ShowError::Failed(format!("cannot draw: {error}")))?;
    Ok(svg)
}
