//! `/metrics`: the counters of this server as Prometheus reads them.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::receive::Refusals;
use crate::store::Store;

/// The one route.
pub(super) fn routes(store: Arc<Store>, refusals: Arc<Refusals>) -> Router {
    Router::new().route("/metrics", get(metrics)).with_state((store, refusals))
}

async fn metrics(State((store, refusals)): State<(Arc<Store>, Arc<Refusals>)>) -> Response {
    let read = tokio::task::spawn_blocking(move || {
        Ok::<_, String>(text(&store, &refusals, store.bytes().map_err(|error| error.to_string())?))
    });
    match read.await.unwrap_or_else(|error| Err(error.to_string())) {
        Ok(text) => ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error).into_response(),
    }
}

fn text(store: &Store, refusals: &Refusals, bytes: u64) -> String {
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, rows: &[(String, u64)]| {
        // Writing into a string does not fail.
        let _ = writeln!(text, "# HELP spanprof_{name} {help}\n# TYPE spanprof_{name} {kind}");
        for (labels, value) in rows {
            let _ = writeln!(text, "spanprof_{name}{labels} {value}");
        }
    };
    let plain = |value: u64| vec![(String::new(), value)];
    let version = format!("{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    metric("build_info", "gauge", "Always 1; the version is its label.", &[(version, 1)]);
    let stored = store.inserted();
    metric("profiles_stored_total", "counter", "Profiles stored since the start.", &plain(stored.profiles));
    metric("samples_stored_total", "counter", "Rows of samples stored since the start.", &plain(stored.samples));
    metric("spans_stored_total", "counter", "Spans stored since the start.", &plain(stored.spans));
    let refused: Vec<_> = refusals
        .counts()
        .into_iter()
        .map(|count| (format!("{{what=\"{}\",reason=\"{}\"}}", count.what, count.reason.name()), count.count))
        .collect();
    metric("refused_total", "counter", "Requests, and spans and profiles of requests, that were not taken.", &refused);
    let forgotten = store.forgotten();
    let row = |what: &str, why: &str, count: usize| {
        (format!("{{what=\"{what}\",why=\"{why}\"}}"), u64::try_from(count).unwrap_or(u64::MAX))
    };
    let rows = [
        row("profiles", "age", forgotten.profiles_by_age),
        row("spans", "age", forgotten.spans_by_age),
        row("profiles", "size", forgotten.profiles_by_size),
        row("spans", "size", forgotten.spans_by_size),
    ];
    metric("forgotten_total", "counter", "Profiles and spans that were too old or had no room.", &rows);
    metric("stored_bytes", "gauge", "Bytes that the stored rows take.", &plain(bytes));
    text
}
