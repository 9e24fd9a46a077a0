//! `spanprof top`: the hottest functions of a selection, asked of a running viewer.

use std::io::Write as _;
use std::time::Duration;

use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;

use super::cli::Top;
use super::terminal;
use crate::http::tenant;
use crate::params::split_pair;
use crate::selection::link;

/// The viewer may be busy; nobody waits longer for a table.
const PATIENCE: Duration = Duration::from_secs(60);
/// Functions of all files of a large service.
const MOST_BYTES: u64 = 256 << 20;

/// Prints the table. The error is one sentence.
pub(crate) fn run(top: &Top) -> Result<(), String> {
    let url = link(&format!("{}/api/top", top.url.trim_end_matches('/')), &pairs(top));
    // A proxy that the environment names for the internet knows no viewer on this machine.
    let config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).timeout_global(Some(PATIENCE));
    let agent: ureq::Agent = config.build().into();
    let failed = |error: ureq::Error| format!("cannot ask {}: {error}; say by --url where spanprof listens", top.url);
    let mut request = top.tenant.iter().fold(agent.get(url), |request, tenant| request.header(tenant::HEADER, tenant));
    if let Some(auth) = &top.basic_auth {
        request = request.header(AUTHORIZATION, format!("Basic {}", auth.token()?));
    }
    let mut response = request.call().map_err(failed)?;
    if response.status() == StatusCode::UNAUTHORIZED {
        return Err(format!("{} wants a user and a password: say them by --basic-auth USER:FILE", top.url));
    }
    let body = response.body_mut().with_config().limit(MOST_BYTES).read_to_vec().map_err(failed)?;
    let answer: serde_json::Value = serde_json::from_slice(&body)
        .map_err(|error| format!("what answers at {} is no spanprof: {} {error}", top.url, response.status()))?;
    // A tenant that is no name is refused before the API is asked.
    if let Some(sentence) = answer["error"].as_str().or_else(|| answer["message"].as_str()) {
        return Err(sentence.into());
    }
    write!(std::io::stdout().lock(), "{}", terminal::top(&answer, top.limit))
        .map_err(|error| format!("cannot write: {error}"))
}

fn pairs(top: &Top) -> Vec<(String, String)> {
    let pair = |name: &str, value: &Option<String>| value.clone().map(|value| (name.to_owned(), value));
    let flag = |name: &str, set: bool| set.then(|| (name.to_owned(), "1".to_owned()));
    [
        pair("service", &top.service),
        pair("name", &top.span),
        pair("since", &top.since),
        pair("type", &top.kind),
        flag("lines", top.lines),
        flag("fold", top.fold),
    ]
    .into_iter()
    .flatten()
    .chain(top.parameters.iter().map(|text| split_pair(text)))
    .collect()
}
