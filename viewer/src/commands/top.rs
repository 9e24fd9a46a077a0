//! `spanprof top`: the hottest functions of a selection, asked of a running viewer.

use std::time::Duration;

use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use serde_json::Value;

use super::cli::Top;
use super::terminal::{self, OF_SAMPLES};
use crate::format::{MOST_OF_A_NAME, short};
use crate::http::tenant;
use crate::params::{Params, split_pair};
use crate::selection::{Selection, link, query};

/// The viewer may be busy; nobody waits longer for a table.
const PATIENCE: Duration = Duration::from_secs(60);
/// Functions of all files of a large service.
const MOST_BYTES: u64 = 256 << 20;

/// Services, and profile types of each, that are named where nothing was found.
const MOST_NAMES: usize = 10;
/// Characters of such a name, which may be asked for, and of what a server says.
const MOST_OF_AN_OFFER: usize = 500;
const MOST_OF_AN_ERROR: usize = 8_000;

/// Prints the table. The error is one sentence.
pub(crate) fn run(top: &Top) -> Result<(), String> {
    let pairs = pairs(top);
    let answer = ask(top, "api/top", &pairs)?;
    if !answer["functions"].is_array() {
        return Err(has_no_pages(top, StatusCode::OK));
    }
    let mut text = terminal::top(&answer, top.limit, &why_of_samples(&pairs));
    let is_empty = answer["functions"].as_array().is_some_and(Vec::is_empty);
    // Spans whose time is told lack nothing, unless it is said what.
    if is_empty && (answer["absence"].is_object() || !terminal::splits_wall_time(&answer)) {
        let said = |name: &str| pairs.iter().rev().find(|(said, _)| said == name).map(|(_, value)| value.as_str());
        let why = nothing(top, said, &answer["absence"]);
        text.push_str(&terminal::plain(&why.map_err(|error| terminal::plain(&error))?));
        text.push('\n');
    }
    terminal::print(&text)
}

/// Why shares are of samples, and not of the wall time of the spans.
fn why_of_samples(pairs: &[(String, String)]) -> String {
    let selection = Selection::take(&mut Params::parse(&query(pairs))).ok();
    match selection.as_ref().map(|selection| (selection.chooses_within(), &selection.service)) {
        Some((Some((parameter, among)), _)) => format!("{parameter} chooses among {among}, so {OF_SAMPLES}"),
        Some((None, None)) => format!("{OF_SAMPLES}; with --service, of the spans' wall time"),
        _ => OF_SAMPLES.into(),
    }
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
    let status = response.status();
    let is_text = response.headers().get(CONTENT_TYPE).is_some_and(|of| of.as_bytes().starts_with(b"text/plain"));
    let body = response.body_mut().with_config().limit(MOST_BYTES).read_to_vec().map_err(failed)?;
    let answer = match serde_json::from_slice(&body).ok().filter(Value::is_object) {
        Some(answer) if status.is_success() => return Ok(answer),
        answer => answer,
    };
    // A tenant that is no name is refused before the API is asked.
    let said = answer.as_ref().and_then(|answer| answer["error"].as_str().or_else(|| answer["message"].as_str()));
    let text = String::from_utf8_lossy(&body);
    let said = said.or_else(|| {
        if is_text && status != StatusCode::NOT_FOUND {
            text.lines().next().filter(|line| !line.is_empty())
        } else {
            None
        }
    });
    Err(match said {
        Some(sentence) if status == StatusCode::BAD_REQUEST => short(sentence, MOST_OF_AN_ERROR),
        Some(sentence) if !status.is_success() => {
            format!("{} answers {status}: {}", top.url, short(sentence, MOST_OF_AN_ERROR))
        }
        _ if status.is_client_error() && status != StatusCode::NOT_FOUND || status.is_server_error() => {
            format!("{} answers {status}; say by --url where spanprof listens", top.url)
        }
        _ => has_no_pages(top, status),
    })
}

/// Of a server that is none of ours.
fn has_no_pages(top: &Top, status: StatusCode) -> String {
    format!("what answers at {} ({status}) has no pages of spanprof: say by --url where these are", top.url)
}

/// Why no sample was found, and what to try; the error is of a service or a span that there is none of. `said` is what the selection says
/// of a parameter, `absence` what the viewer says of why.
fn nothing<'a>(top: &Top, said: impl Fn(&str) -> Option<&'a str>, absence: &Value) -> Result<String, String> {
    let all = || ("since".to_owned(), "all".to_owned());
    let stored = ask(top, "api/services", &[all()])?;
    let rows = stored["services"].as_array().map_or(&[][..], Vec::as_slice);
    let names: Vec<String> = rows.iter().filter_map(with_types).collect();
    let names = if names.is_empty() { None } else { Some(first(&names)) };
    let none_yet = || format!("no profiles are stored; {} says how to send some", top.url);
    let service = said("service").unwrap_or_default();
    let sentence = absence["sentence"].as_str().unwrap_or_default();
    match (absence["reason"].as_str(), &names) {
        (Some("no_service"), Some(names)) => {
            return Err(format!("there is no service {:?}; there are profiles of: {names}", said_again(service)));
        }
        (Some("no_service"), None) => {
            return Err(format!("there is no service {:?}: {}", said_again(service), none_yet()));
        }
        (Some("no_span"), _) => {
            let of_type = said("type").map(|asked| ("type".to_owned(), asked.to_owned()));
            let asked: Vec<_> = [("service".into(), service.into()), all()].into_iter().chain(of_type).collect();
            let known = ask(top, "api/spans", &asked)?;
            let rows = known["spans"].as_array().map_or(&[][..], Vec::as_slice);
            let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
            let there_are = if names.is_empty() { String::new() } else { format!("; there are: {}", first(&names)) };
            let name = said_again(said("name").unwrap_or_default());
            return Err(format!("no span of {} is named {name:?}{there_are}", said_again(service)));
        }
        (Some("no_profiles"), Some(names)) => return Ok(format!("{sentence} There are some of: {names}.")),
        (Some("refused"), _) => return Err(sentence.trim_end_matches('.').into()),
        (Some(_), _) if !sentence.is_empty() => return Ok(sentence.into()),
        (_, None) => return Ok(format!("N{}.", &none_yet()[1..])),
        (_, Some(_)) => {}
    }
    let row = rows.iter().find(|row| row["service"] == service);
    let names = row.and_then(with_types).or(names).unwrap_or_default();
    let longer = if said("since") == Some("all") { "" } else { "--since all, " };
    let others = if service.is_empty() { "another --service, --span or --type" } else { "another --span or --type" };
    Ok(format!("No sample was found. There are profiles of: {names}. Try {longer}{others}."))
}

/// A service that profiles came of, with their types by the names that ask for them.
fn with_types(row: &Value) -> Option<String> {
    let types = types(row);
    if types.is_empty() { None } else { Some(format!("{} ({})", row["service"].as_str()?, first(&types))) }
}

fn types(row: &Value) -> Vec<&str> {
    let types = row["profile_types"].as_array().map_or(&[][..], Vec::as_slice);
    types.iter().filter_map(|seen| seen["type"].as_str()).collect()
}

/// A name that was asked for.
fn said_again(name: &str) -> String {
    short(name, MOST_OF_A_NAME)
}

fn first<T: AsRef<str>>(names: &[T]) -> String {
    let shown: Vec<String> = names.iter().take(MOST_NAMES).map(|name| short(name.as_ref(), MOST_OF_AN_OFFER)).collect();
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
