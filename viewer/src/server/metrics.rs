//! `/metrics`: the counters of this server as Prometheus reads them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::tenants::Tenants;
use crate::queries::Queries;
use crate::store::{Forgotten, Inserted};

/// The one route; what it counts is summed over all tenants.
pub(super) fn routes(tenants: Arc<Tenants>) -> Router {
    // One at a time, so that no number of them takes the threads of uploads.
    Router::new().route("/metrics", get(metrics)).with_state((tenants, Queries::new(1)))
}

async fn metrics(State((tenants, queries)): State<(Arc<Tenants>, Queries)>) -> Response {
    match queries.run(move || text(&tenants)).await {
        Ok(text) => ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

fn text(tenants: &Tenants) -> String {
    let (tenants, counts) = (tenants.all(), tenants.refused());
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
    let number = u64::try_from(tenants.len()).unwrap_or(u64::MAX);
    metric("tenants", "gauge", "Tenants, with the one of what says none.", &plain(number));
    let sum = |of: fn(&Inserted) -> u64| tenants.iter().map(|tenant| of(&tenant.store.inserted())).sum::<u64>();
    metric(
        "profiles_stored_total",
        "counter",
        "Profiles stored since the start.",
        &plain(sum(|stored| stored.profiles)),
    );
    metric(
        "profiles_repeated_total",
        "counter",
        "Profiles that were sent again and counted once.",
        &plain(sum(|stored| stored.repeated)),
    );
    metric(
        "samples_stored_total",
        "counter",
        "Rows of samples stored since the start.",
        &plain(sum(|stored| stored.samples)),
    );
    metric("spans_stored_total", "counter", "Spans stored since the start.", &plain(sum(|stored| stored.spans)));
    let mut refused: BTreeMap<String, u64> = BTreeMap::new();
    for count in counts {
        let labels = format!("{{what=\"{}\",reason=\"{}\"}}", count.what, count.reason.name());
        *refused.entry(labels).or_default() += count.count;
    }
    let refused: Vec<_> = refused.into_iter().collect();
    metric("refused_total", "counter", "Requests, and spans and profiles of requests, that were not taken.", &refused);
    let forgotten: Vec<Forgotten> = tenants.iter().map(|tenant| tenant.store.forgotten()).collect();
    let row = |what: &str, why: &str, of: fn(&Forgotten) -> usize| {
        let count: usize = forgotten.iter().map(of).sum();
        (format!("{{what=\"{what}\",why=\"{why}\"}}"), u64::try_from(count).unwrap_or(u64::MAX))
    };
    let rows = [
        row("profiles", "age", |forgotten| forgotten.profiles_by_age),
        row("spans", "age", |forgotten| forgotten.spans_by_age),
        row("profiles", "size", |forgotten| forgotten.profiles_by_size),
        row("spans", "size", |forgotten| forgotten.spans_by_size),
    ];
    metric("forgotten_total", "counter", "Profiles and spans that were too old or had no room.", &rows);
    metric(
        "stored_bytes",
        "gauge",
        "Bytes that the stored rows take.",
        &plain(tenants.iter().map(|tenant| tenant.store.bytes()).sum()),
    );
    text
}
