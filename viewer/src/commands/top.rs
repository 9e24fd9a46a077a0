//! `spanprof top`: the hottest functions of a selection, asked of a running viewer.

use std::time::Duration;

use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use serde_json::Value;

use super::cli::Top;
use super::terminal;
use crate::http::tenant;
use crate::params::split_pair;
use crate::selection::link;

/// The viewer may be busy; nobody waits longer for a table.
const PATIENCE: Duration = Duration::from_secs(60);
/// Functions of all files of a large service.
const MOST_BYTES: u64 = 256 << 20;

/// Services, and profile types of each, that are named where nothing was found.
const MOST_NAMES: usize = 10;

/// Prints the table. The error is one sentence.
pub(crate) fn run(top: &Top) -> Result<(), String> {
    let answer = ask(top, "api/top", &pairs(top))?;
    let mut text = terminal::top(&answer, top.limit);
    if answer["functions"].as_array().is_some_and(Vec::is_empty) {
        let all = || ("since".to_owned(), "all".to_owned());
        let stored = ask(top, "api/services", &[all()])?;
        text.push_str(&terminal::plain(&nothing(top, &stored)));
        if let (Some(service), Some(span)) =
            (top.service.as_ref().filter(|service| is_known(&stored, service)), &top.span)
        {
            let known = ask(top, "api/spans", &[("service".into(), service.clone()), all()])?;
            text.push_str(&terminal::plain(&of_that_span(service, span, &known).unwrap_or_default()));
        }
        text.push('\n');
    }
    terminal::print(&text)
}

fn ask(top: &Top, path: &str, pairs: &[(String, String)]) -> Result<Value, String> {
    let url = link(&format!("{}/{path}", top.url.trim_end_matches('/')), pairs);
    // A proxy that the environment names for the internet knows no viewer on this machine.
    let config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).timeout_global(Some(PATIENCE));
    let agent: ureq::Agent = config.build().into();
    let failed = |error: ureq::Error| {
        let plain = top.url.strip_prefix("https://").map(|rest| format!("try http://{rest}, or ")).unwrap_or_default();
        format!("cannot ask {}: {error}; {plain}say by --url where spanprof listens", top.url)
    };
    let mut request = top.tenant.iter().fold(agent.get(url), |request, tenant| request.header(tenant::HEADER, tenant));
    if let Some(auth) = &top.basic_auth {
        request = request.header(AUTHORIZATION, format!("Basic {}", auth.token()?));
    }
    let mut response = request.call().map_err(failed)?;
    if response.status() == StatusCode::UNAUTHORIZED {
        return Err(format!("{} wants a user and a password: say them by --basic-auth USER:FILE", top.url));
    }
    let body = response.body_mut().with_config().limit(MOST_BYTES).read_to_vec().map_err(failed)?;
    let answer: Value = serde_json::from_slice(&body)
        .map_err(|error| format!("what answers at {} is no spanprof: {} {error}", top.url, response.status()))?;
    // A tenant that is no name is refused before the API is asked.
    match answer["error"].as_str().or_else(|| answer["message"].as_str()) {
        Some(sentence) => Err(sentence.into()),
        None => Ok(answer),
    }
}

fn is_known(stored: &Value, service: &str) -> bool {
    stored["services"].as_array().is_some_and(|rows| rows.iter().any(|row| row["service"] == service))
}

/// What to try where no sample was found; `stored` is what /api/services says of all that is stored.
fn nothing(top: &Top, stored: &Value) -> String {
    let rows = stored["services"].as_array().map_or(&[][..], Vec::as_slice);
    let profiled = rows.iter().filter(|row| row["profiles"].as_i64() > Some(0));
    let names: Vec<String> = profiled.filter_map(with_types).collect();
    if names.is_empty() {
        return format!("No profiles were received yet; {} says how to send some.", top.url);
    }
    let names = first(&names);
    if let Some(service) = top.service.as_ref().filter(|service| !is_known(stored, service)) {
        return format!("There is no service {service:?}; there are profiles of: {names}.");
    }
    let longer = if top.since.as_deref() == Some("all") { "" } else { "--since all, " };
    format!("No sample was found. There are profiles of: {names}. Try {longer}another --service, --span or --type.")
}

/// Why a span of a service has none: there is none of that name, or its samples are its root span's; `known` is what /api/spans says.
fn of_that_span(service: &str, span: &str, known: &Value) -> Option<String> {
    let rows = known["spans"].as_array().map_or(&[][..], Vec::as_slice);
    if let Some(row) = rows.iter().find(|row| row["name"] == span) {
        let is_child = known["sampled_by"] == "root" && row["cpu_ns"].is_null();
        return is_child.then(|| {
            format!(" Samples of {service} carry root spans alone (scope=\"root\"), and {span:?} is a child of one.")
        });
    }
    let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    let is_told = !names.is_empty() && known["rest"].is_null();
    is_told.then(|| format!(" No span of {service} is named {span:?}; there are: {}.", first(&names)))
}

/// A service with its profile types, by the names that ask for them.
fn with_types(row: &Value) -> Option<String> {
    let types = row["profile_types"].as_array().map_or(&[][..], Vec::as_slice);
    let types: Vec<&str> = types.iter().filter_map(|seen| seen["type"].as_str()).collect();
    Some(format!("{} ({})", row["service"].as_str()?, first(&types)))
}

fn first<T: AsRef<str>>(names: &[T]) -> String {
    let shown: Vec<&str> = names.iter().take(MOST_NAMES).map(T::as_ref).collect();
    let more = names.len() - shown.len();
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

fn pairs(top: &Top) -> Vec<(String, String)> {
    let pair = |name: &str, value: &Option<String>| value.clone().map(|value| (name.to_owned(), value));
    let flag = |name: &str, set: bool| set.then(|| (name.to_owned(), "1".to_owned()));
    [
        pair("service", &top.service),
        pair("name", &top.span),
        pair("since", &top.since),
        pair("type", &top.profile_type),
        flag("lines", top.lines),
        flag("fold", top.fold),
    ]
    .into_iter()
    .flatten()
    .chain(top.parameters.iter().map(|text| split_pair(text)))
    .collect()
}
