//! `spanprof doctor`: whether a server takes profiles and gives them back by span, and what to change if not.
//!
//! It reads the environment variables of profilers and sends by the engine's own upload, so it fails where they would.
//! What it sends lands in a service of its own, `spanprof.doctor`, and stays there: a server has no way to take it back.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

use spanprof_core::{Config, Failure, Secret, Server};

use super::cli::Doctor;
use super::terminal;
use super::ways::{self, PERIOD, SERVICE, SPAN, Way};
use crate::clock;
use crate::receive;

/// How long a profile may take from its upload to the answer of a query.
const UNTIL_FOUND: Duration = Duration::from_secs(15);
/// What profilers put into one profile at most.
const MOST_SAMPLES: u32 = 12_000;
const CREDENTIALS: &str = "set PYROSCOPE_BASIC_AUTH_USER and PYROSCOPE_BASIC_AUTH_PASSWORD, PYROSCOPE_TENANT_ID or \
                           PYROSCOPE_HTTP_HEADERS, or the same by flags";

/// What is good, or what is not and what to do about it.
type Finding = Result<String, String>;
type Check = fn(&Patient) -> Finding;

/// What a question found.
enum Found {
    /// After so many milliseconds.
    After(u128),
    /// Nothing answers questions there, with this status.
    NotAsked(u16),
}

/// Makes the checks one after the other and prints a line for each; the first that fails is the last. Then tries the ways that
/// other clients send by, of which a server may have any. The error is one sentence.
pub(crate) fn run(doctor: &Doctor) -> Result<(), String> {
    let server = Server::new(&config(doctor)?).map_err(|error| error.to_string())?;
    // Not 0, and another one at each run.
    let span_id = clock::now().unsigned_abs() | 1;
    let patient = Patient { server, span_id, is_asked: Cell::new(false), has_taken: Cell::new(false) };
    let examined = examine(&patient);
    if patient.has_taken.get() {
        print(
            "leaves behind",
            "note",
            &Ok(format!("service {SERVICE}, until the server drops it as it does all that is old")),
        )?;
    }
    examined
}

fn examine(patient: &Patient) -> Result<(), String> {
    let checks: [(&str, Check); 5] = [
        ("reachable", Patient::reachable),
        ("version", Patient::version),
        ("takes a profile", Patient::takes),
        ("finds it by its span", Patient::finds),
        ("takes a large profile", Patient::takes_large),
    ];
    for (name, check) in checks {
        let finding = check(patient);
        print(name, if finding.is_ok() { "ok  " } else { "FAIL" }, &finding)?;
        if finding.is_err() {
            return Err(format!("{} does not work for profilers as it is", patient.server.address()));
        }
    }
    for way in ways::all(patient.span_id) {
        let finding = patient.tries(&way);
        print(way.name, if finding.is_ok() { "ok  " } else { "no  " }, &finding)?;
    }
    Ok(())
}

fn print(name: &str, mark: &str, finding: &Finding) -> Result<(), String> {
    let (Ok(text) | Err(text)) = finding;
    // A server's words are among them.
    let text = terminal::plain(text);
    writeln!(std::io::stdout().lock(), "{mark}  {name:<24} {text}").map_err(|error| format!("cannot write: {error}"))
}

/// What a profiler would be set to; flags come first.
fn config(doctor: &Doctor) -> Result<Config, String> {
    let mut config = Config::from_environment(|name| std::env::var(name).ok()).map_err(|error| error.to_string())?;
    config.application_name = SERVICE.into();
    if let Some(url) = &doctor.url {
        config.server_address.clone_from(url);
    }
    if let Some(auth) = &doctor.basic_auth {
        config.basic_auth_user.clone_from(&auth.user);
        config.basic_auth_password = Secret(auth.password()?);
    }
    if let Some(tenant) = &doctor.tenant {
        config.tenant_id.clone_from(tenant);
    }
    for (number, header) in doctor.header.iter().enumerate() {
        // What was given is not repeated: a header often holds a secret.
        let (name, value) = header
            .split_once('=')
            .ok_or_else(|| format!("--header number {} is not a name and a value, such as X-Team=blue", number + 1))?;
        config.http_headers.push((name.to_owned(), Secret(value.to_owned())));
    }
    Ok(config)
}

/// The server that is looked at, and the span that it is asked for.
struct Patient {
    server: Server,
    span_id: u64,
    /// Whether it answers questions.
    is_asked: Cell<bool>,
    /// Whether it took anything.
    has_taken: Cell<bool>,
}

impl Patient {
    fn reachable(&self) -> Finding {
        let since = Instant::now();
        let (status, _) = self.server.get("/ready").map_err(|failure| advice(&failure))?;
        let waited = since.elapsed().as_millis();
        Ok(format!("{} answers (/ready: HTTP {status}) in {waited} ms", self.server.address()))
    }

    fn version(&self) -> Finding {
        let (status, text) = self.server.get("/api/v1/status/buildinfo").map_err(|failure| advice(&failure))?;
        let answer = serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default();
        let version = answer["data"]["version"].as_str().filter(|_| status == 200).map(line);
        Ok(match (version, Server::too_old(&text)) {
            (_, Some(version)) => format!(
                "{version}: before 2.1.0, so profilers leave trace ids out; for flame graphs of traces, update the server"
            ),
            (Some(version), None) if answer["data"]["application"] == "spanprof" => format!("spanprof {version}"),
            (Some(version), None) => version,
            (None, None) => format!("not told (HTTP {status}), so profilers take it for 2.1.0 or newer"),
        })
    }

    fn takes(&self) -> Finding {
        self.server.send_profile(self.span_id, SPAN, 1).map_err(|failure| advice(&failure))?;
        self.has_taken.set(true);
        // One that the question for the first must not find.
        self.server.send_profile(self.span_id ^ 2, SPAN, 1).map_err(|failure| advice(&failure))?;
        Ok(format!("with span id {:016x}, as service {SERVICE}", self.span_id))
    }

    fn finds(&self) -> Finding {
        Ok(match self.find(self.span_id, self.server.period_ns())? {
            Found::After(milliseconds) => {
                self.is_asked.set(true);
                format!("after {milliseconds} ms")
            }
            Found::NotAsked(status) => {
                format!("not asked: this address answers no queries (HTTP {status}); look in Grafana")
            }
        })
    }

    /// Asks for the CPU time of a span until it is there.
    fn find(&self, span_id: u64, value: i64) -> Result<Found, String> {
        let now = clock::now() / clock::MILLISECOND;
        let question = serde_json::json!({
            "start": now - 600_000,
            "end": now + 600_000,
            "labelSelector": format!("{{service_name=\"{SERVICE}\"}}"),
            "profileTypeID": "process_cpu:cpu:nanoseconds:cpu:nanoseconds",
            "spanSelector": [format!("{span_id:016x}")],
        });
        let since = Instant::now();
        loop {
            let path = "/querier.v1.QuerierService/SelectMergeStacktraces";
            let sent = self.server.post(path, "application/json", question.to_string().as_bytes());
            let (status, text) = sent.map_err(|failure| advice(&failure))?;
            match status {
                200 => {}
                // Where profiles are sent and where they are asked for may be two servers.
                404 | 405 | 415 | 501 => return Ok(Found::NotAsked(status)),
                401 | 403 => {
                    let why = format!("queries answer HTTP {status}: {}", line(&text));
                    return Err(format!("{why}; profiles arrive, but these credentials may not read"));
                }
                _ => return Err(format!("queries answer HTTP {status}: {}; see the server's log", line(&text))),
            }
            let answer = serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default();
            let total = &answer["flamegraph"]["total"];
            match total.as_str().map_or(total.as_i64(), |text| text.parse().ok()).unwrap_or(0) {
                0 => {}
                total if total == value => return Ok(Found::After(since.elapsed().as_millis())),
                total => {
                    return Err(format!(
                        "asked for {value} ns of one span, it answers with {total} ns; use a server that knows spanSelector"
                    ));
                }
            }
            if since.elapsed() > UNTIL_FOUND {
                return Err(format!(
                    "not within {} s; a server that just started answers with nothing for a minute: try again",
                    UNTIL_FOUND.as_secs()
                ));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Sends in a way of other clients, and asks for what it sent by its span.
    fn tries(&self, way: &Way) -> Finding {
        let sent = self.server.post(&way.path, way.content_type, &way.body);
        let (status, text) = sent.map_err(|failure| failure.reason)?;
        if !(200..300).contains(&status) {
            let why = line(&text);
            return Err(format!("HTTP {status}{}{why}", if why.is_empty() { "" } else { ": " }));
        }
        let Some(span_id) = way.span_id.filter(|_| self.is_asked.get()) else { return Ok("taken".into()) };
        match self.find(span_id, PERIOD) {
            Ok(Found::After(milliseconds)) => Ok(format!("taken, and found by its span after {milliseconds} ms")),
            Ok(Found::NotAsked(_)) => Ok("taken".into()),
            Err(why) => Err(format!("taken, but by its span: {why}")),
        }
    }

    fn takes_large(&self) -> Finding {
        self.server.send_profile(self.span_id, SPAN, MOST_SAMPLES).map_err(|failure| advice(&failure))?;
        Ok(format!("of {MOST_SAMPLES} samples, the most that profilers send at once"))
    }
}

/// What failed, and what to change.
fn advice(failure: &Failure) -> String {
    let change = match failure.status {
        Some(401 | 403) => CREDENTIALS.to_owned(),
        Some(404) if failure.reason.contains(receive::WRONG_PORT) => {
            "set PYROSCOPE_SERVER_ADDRESS, or server_address, to that port".to_owned()
        }
        Some(404) => "check the path: it is all before /push.v1.PusherService/Push".to_owned(),
        // A viewer with little memory says so itself.
        Some(413) if failure.reason.contains("bytes of memory") => {
            "start spanprof with a larger --memory, 256m at least".to_owned()
        }
        Some(413) => "a proxy limits the size of requests: let it take 2 MiB".to_owned(),
        Some(429) => "the tenant's rate limit is reached: raise it, or try again later".to_owned(),
        Some(500..=599) if failure.settings.is_empty() => "the server is at fault: see its log".to_owned(),
        _ if failure.settings.is_empty() => "see the server's log".to_owned(),
        _ => format!("check {}", failure.settings),
    };
    format!("{}; {change}", failure.reason)
}

/// A server's words on one line.
fn line(text: &str) -> String {
    let json = serde_json::from_str::<serde_json::Value>(text).unwrap_or_default();
    let mut line = String::new();
    for c in json["message"].as_str().unwrap_or(text).trim().chars().take(200) {
        // Writing into a string does not fail.
        let _ = line.write_char(if c.is_control() { ' ' } else { c });
    }
    line
}
