//! `spanprof top`: the hottest functions of a selection, asked of a running viewer.

use std::time::Duration;

use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use serde_json::Value;

use super::cli::Top;
use super::terminal;
use crate::http::tenant;
use crate::params::split_pair;
use crate::selection::{CPU, WALL, link};

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
        let known = match &top.service {
            Some(service) if top.span.is_some() && row_of(&stored, service).is_some() => {
                ask(top, "api/spans", &[("service".into(), service.clone()), all()])?
            }
            _ => Value::Null,
        };
        text.push_str(&terminal::plain(&nothing(top, &stored, &known).map_err(|error| terminal::plain(&error))?));
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
    let answer: Value = serde_json::from_slice(&body).map_err(|_| {
        let status = response.status();
        format!("what answers at {} ({status}) has no pages of spanprof: say by --url where these are", top.url)
    })?;
    // A tenant that is no name is refused before the API is asked.
    match answer["error"].as_str().or_else(|| answer["message"].as_str()) {
        Some(sentence) => Err(sentence.into()),
        None => Ok(answer),
    }
}

fn row_of<'a>(stored: &'a Value, service: &str) -> Option<&'a Value> {
    stored["services"].as_array()?.iter().find(|row| row["service"] == service)
}

/// Why no sample was found, and what to try; the error is of a service or a span that there is none of. `stored` is what /api/services
/// says of all that is stored, `known` what /api/spans says of the service, where a span of it is asked for.
fn nothing(top: &Top, stored: &Value, known: &Value) -> Result<String, String> {
    let rows = stored["services"].as_array().map_or(&[][..], Vec::as_slice);
    let profiled = rows.iter().filter(|row| row["profiles"].as_i64() > Some(0));
    let names: Vec<String> = profiled.filter_map(with_types).collect();
    if names.is_empty() {
        return Ok(format!("No profiles were received yet; {} says how to send some.", top.url));
    }
    let names = first(&names);
    let longer = if top.since.as_deref() == Some("all") { "" } else { "--since all, " };
    let Some(service) = &top.service else {
        return Ok(format!(
            "No sample was found. There are profiles of: {names}. Try {longer}another --service, --span or --type."
        ));
    };
    let Some(row) = row_of(stored, service) else {
        // Of very many services the last ones are not listed.
        let is_told = stored["rest"].is_null();
        let sentence = format!("there is no service {service:?}; there are profiles of: {names}");
        return if is_told { Err(sentence) } else { Ok("No sample was found.".into()) };
    };
    if row["profiles"].as_i64() == Some(0) {
        return Ok(format!(
            "{service} sends traces, and no profiles come under this name. There are some of: {names}."
        ));
    }
    let why = match &top.span {
        Some(span) => of_that_span(service, span, known)?,
        None => None,
    };
    if let Some(why) = why.or_else(|| of_that_type(top, service, row)) {
        return Ok(why);
    }
    let names = with_types(row).unwrap_or_default();
    Ok(format!("No sample was found. There are profiles of: {names}. Try {longer}another --span or --type."))
}

/// Why a span of a service has no sample: its samples are its root span's. The error: there is none of that name.
fn of_that_span(service: &str, span: &str, known: &Value) -> Result<Option<String>, String> {
    let rows = known["spans"].as_array().map_or(&[][..], Vec::as_slice);
    if let Some(row) = rows.iter().find(|row| row["name"] == span) {
        let is_child = known["sampled_by"] == "root" && row["cpu_ns"].is_null();
        return Ok(is_child.then(|| {
            format!("Samples of {service} carry root spans alone (scope=\"root\"), and {span:?} is a child of one.")
        }));
    }
    let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    if names.is_empty() || !known["rest"].is_null() {
        return Ok(None);
    }
    Err(format!("no span of {service} is named {span:?}; there are: {}", first(&names)))
}

/// Whether the service sends no such profiles at all, and how it does where that is a setting.
fn of_that_type(top: &Top, service: &str, row: &Value) -> Option<String> {
    let asked = top.profile_type.as_deref().unwrap_or(CPU);
    let types = types(row);
    if types.contains(&asked) || types.is_empty() {
        return None;
    }
    let setting = if asked == WALL {
        ": wall_time in its profiler's settings, or PYROSCOPE_PROFILING_WALLTIME_ENABLED=true in its environment, measures where time goes"
    } else {
        ""
    };
    Some(format!("{service} sends {}, and no {asked}{setting}.", first(&types)))
}

/// A service with its profile types, by the names that ask for them.
fn with_types(row: &Value) -> Option<String> {
    Some(format!("{} ({})", row["service"].as_str()?, first(&types(row))))
}

fn types(row: &Value) -> Vec<&str> {
    let types = row["profile_types"].as_array().map_or(&[][..], Vec::as_slice);
    types.iter().filter_map(|seen| seen["type"].as_str()).collect()
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
