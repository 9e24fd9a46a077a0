//! `/ingest`, which Grafana's clients for Go, Java, Node and .NET and scripts send to: `name=app{k=v}&format=…`, and a profile
//! as pprof (in a form or as the body), as folded stacks, or as a recording of Java Flight Recorder.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest as _, Multipart, RawQuery, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use spanprof_core::wire::pprof::{Function, Line, Location, Profile as Pprof, Sample, ValueType};
use spanprof_core::wire::push::LabelPair;
use tokio::runtime::Handle;

use super::jfr;
use super::labels::{Labels, SPY};
use super::pprof;
use super::receiver::Receiver;
use super::sample_types::metric_name;
use super::strings::string;
use crate::budget::Held;
use crate::clock::{self, SECOND};
use crate::http::allowed::Allowed;
use crate::http::body;
use crate::http::refusal::{PROFILES, Reason, Refusal, invalid};
use crate::params::Params;
use crate::store::{Mark, Profile};

/// Bytes that a line, and a frame in it, take as a profile.
const LINE: usize = size_of::<Sample>() * 2 + 64;
const FRAME: usize = 8 + size_of::<Location>() + size_of::<Line>() * 4 + size_of::<Function>() + 120;
/// Lines of folded stacks in one request.
const MOST_LINES: usize = 200_000;

/// A time before this one was written in another unit than nanoseconds, as old clients do.
const LEAST_TIME: i64 = 365 * 86_400 * SECOND;
/// Samples a second where the sender does not say it.
const SAMPLE_RATE: &str = "100";

/// What the query says about the body.
struct IngestQuery {
    /// All of it.
    text: String,
    service: String,
    labels: Vec<LabelPair>,
    /// None: the body says it.
    format: Option<Format>,
    start: Option<i64>,
    /// Of folded stacks and recordings; a pprof says its period itself.
    sample_rate: String,
    units: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Pprof,
    /// `main;work 12`, as `perf script | stackcollapse` and many others write it.
    Folded,
    /// One stack a line, each once.
    Lines,
    /// A recording of Java Flight Recorder.
    Jfr,
}

/// The parts of a form, or the whole body as `profile`.
#[derive(Default)]
struct Parts {
    profile: Vec<u8>,
    /// By sample type, how its sender calls it.
    names: BTreeMap<String, String>,
    is_form: bool,
    /// What the numbers of a recording mean.
    labels: Vec<u8>,
}

/// What a form says of a sample type beside its profile.
#[derive(Deserialize)]
struct SampleTypeConfig {
    #[serde(rename = "display-name", alias = "display_name")]
    display_name: Option<String>,
}

/// Takes a profile.
pub(super) async fn receive(
    State(receiver): State<Arc<Receiver>>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Response {
    match take(&receiver, query.unwrap_or_default(), request).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(refusal) => {
            receiver.refusals.count(PROFILES, &refusal);
            (refusal.status(), refusal.message().to_owned()).into_response()
        }
    }
}

async fn take(receiver: &Arc<Receiver>, query: String, request: Request) -> Result<(), Refusal> {
    let (head, body) = request.into_parts();
    let read = receiver.read(body).await?;
    let mut params = Params::parse(&query);
    let (service, labels) = IngestQuery::key(&mut params)?;
    let query = IngestQuery::read(&query, params, service.clone(), labels);
    let taken = match query {
        Ok(query) => take_body(receiver, query, head.headers, read).await,
        Err(refusal) => Err(refusal),
    };
    taken.map_err(|refusal| refusal.of_service(&service))
}

async fn take_body(
    receiver: &Arc<Receiver>,
    query: IngestQuery,
    headers: HeaderMap,
    read: (Vec<u8>, Held),
) -> Result<(), Refusal> {
    let runtime = Handle::current();
    receiver
        .on_pool(read, move |receiver, bytes, allowed| {
            let bytes = body::unpack(bytes, &headers, allowed)?;
            // The parts of a form are copies.
            allowed.take(bytes.len(), "the form")?;
            // Nothing is waited for, as all of it is here.
            let parts = runtime.block_on(parts(&headers, bytes))?;
            let mark = Mark::of(&(query.service.as_str(), query.text.as_str(), &parts.profile), false);
            if parts.profile.is_empty() {
                // What some clients send where nothing happened.
                return Ok(());
            }
            let profiles = query.profiles(parts, receiver.times(), Some(mark), allowed)?;
            receiver.insert_profiles(profiles)?;
            let labels = query.labels("process_cpu")?;
            receiver.note_sender(&labels.service, labels.sender(), true)
        })
        .await
}

async fn parts(headers: &HeaderMap, bytes: Vec<u8>) -> Result<Parts, Refusal> {
    let kind = headers.get(CONTENT_TYPE).cloned().unwrap_or(HeaderValue::from_static(""));
    if !kind.to_str().unwrap_or("").to_ascii_lowercase().starts_with("multipart/form-data") {
        return Ok(Parts { profile: bytes, ..Parts::default() });
    }
    let broken = |error: &dyn std::fmt::Display| invalid(format!("the form cannot be read: {error}"));
    let mut request = Request::new(Body::from(bytes));
    request.headers_mut().insert(CONTENT_TYPE, kind);
    // The body was bounded when it was read.
    axum::extract::DefaultBodyLimit::disable().apply(&mut request);
    let mut form = Multipart::from_request(request, &()).await.map_err(|error| broken(&error))?;
    let mut parts = Parts { is_form: true, ..Parts::default() };
    let mut found = false;
    while let Some(field) = form.next_field().await.map_err(|error| broken(&error))? {
        let name = field.name().unwrap_or("").to_owned();
        let bytes = field.bytes().await.map_err(|error| broken(&error))?;
        match name.as_str() {
            "profile" | "jfr" => {
                parts.profile = bytes.to_vec();
                found = true;
            }
            "sample_type_config" => {
                let config: HashMap<String, SampleTypeConfig> = serde_json::from_slice(&bytes)
                    .map_err(|error| invalid(format!("the form's sample_type_config: {error}")))?;
                let names = config.into_iter().filter_map(|(name, config)| Some((name, config.display_name?)));
                parts.names = names.filter(|(_, shown)| !shown.is_empty()).collect();
            }
            "labels" => parts.labels = bytes.to_vec(),
            // An older client's profile of before; the one of now stands for itself.
            _ => {}
        }
    }
    if found { Ok(parts) } else { Err(invalid("the form has no field \"profile\" or \"jfr\"")) }
}

/// Old .NET profilers number no function, and write the one of each location at its place.
fn name_functions(pprof: &mut Pprof) {
    let Pprof { function, location, .. } = pprof;
    if function.len() == location.len() && function.iter().all(|function| function.id == 0) {
        function.iter_mut().zip(location).for_each(|(function, location)| function.id = location.id);
    }
}

/// Reads a query and a body, and stores them.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn take_any(query: &str, body: &[u8], receiver: &Receiver) -> Result<(), Refusal> {
    let mut params = Params::parse(query);
    let (service, labels) = IngestQuery::key(&mut params)?;
    let query = IngestQuery::read(query, params, service, labels)?;
    let parts = Parts { profile: body.into(), ..Parts::default() };
    receiver.insert_profiles(query.profiles(parts, (i64::MIN, i64::MAX), None, &mut Allowed::plenty())?)
}

impl IngestQuery {
    /// Whose profile it is, and its labels.
    fn key(params: &mut Params) -> Result<(String, Vec<LabelPair>), Refusal> {
        let name = params.take("name").map_err(|bad| invalid(bad.to_string()))?.filter(|name| !name.is_empty());
        let name =
            name.ok_or_else(|| invalid("the parameter \"name\" is missing: allowed is app or app{label=value}"))?;
        key(&name)
    }

    /// Parameters that are not named here say nothing that is kept.
    fn read(query: &str, mut params: Params, service: String, mut labels: Vec<LabelPair>) -> Result<Self, Refusal> {
        let mut take = |name| params.take(name).map_err(|bad| invalid(bad.to_string()));
        let format = match take("format")?.as_deref() {
            Some("pprof") => Some(Format::Pprof),
            None | Some("") => None,
            Some("folded" | "groups" | "collapsed") => Some(Format::Folded),
            Some("lines") => Some(Format::Lines),
            Some("jfr") => Some(Format::Jfr),
            Some(other) => {
                return Err(Refusal::new(
                    Reason::ContentType,
                    format!("format {other:?} is not taken; send pprof, jfr, folded or lines"),
                ));
            }
        };
        let start = take("from")?.filter(|from| !from.is_empty()).map(|from| unix(&from)).transpose()?;
        let sample_rate = take("sampleRate")?.unwrap_or_default();
        let units = take("units")?.unwrap_or_default();
        // Under Pyroscope's name; it says whose advice fits.
        if let Some(spy) = take("spyName")?.filter(|spy| !spy.is_empty()) {
            labels.push(LabelPair { name: SPY.into(), value: spy });
        }
        Ok(Self { text: query.into(), service, labels, format, start, sample_rate, units })
    }

    /// The profiles of a body; in a recording there may be several, or none.
    fn profiles(
        &self,
        parts: Parts,
        times: (i64, i64),
        mark: Option<Mark>,
        allowed: &mut Allowed,
    ) -> Result<Vec<Profile>, Refusal> {
        let Parts { profile: bytes, names, is_form, labels } = parts;
        let told = || if is_form || looks_like_pprof(&bytes) { Format::Pprof } else { Format::Folded };
        let mut pprof = match self.format.unwrap_or_else(told) {
            Format::Jfr => return jfr::read(&self.recording(&bytes, &labels, times, mark)?, allowed),
            Format::Pprof => pprof::decode(&bytes, allowed)?,
            format @ (Format::Folded | Format::Lines) => self.folded(&bytes, format == Format::Lines, allowed)?,
        };
        drop(bytes);
        // Without a time of its own it is of now, and may be another one that is alike.
        let mark = mark.filter(|_| pprof.time_nanos != 0);
        if pprof.time_nanos < LEAST_TIME {
            pprof.time_nanos = self.start.unwrap_or(0);
        }
        name_functions(&mut pprof);
        let strings = &pprof.string_table;
        let word = |of: &ValueType| string(strings, of.r#type, "a sample type");
        let types = pprof.sample_type.iter().map(word).collect::<Result<Vec<_>, _>>()?;
        let labels = self.labels(metric_name(&types, |name| names.get(name).map(String::as_str)))?;
        Ok(vec![Profile { mark, ..pprof::rows(&pprof, &labels, times, allowed)? }])
    }

    fn recording<'a>(
        &'a self,
        recording: &'a [u8],
        labels: &'a [u8],
        times: (i64, i64),
        mark: Option<Mark>,
    ) -> Result<jfr::Upload<'a>, Refusal> {
        let Self { service, labels: series, start, .. } = self;
        let sample_rate = self.says_sample_rate().then(|| self.sample_rate()).transpose()?;
        Ok(jfr::Upload { recording, labels, service, series, start: *start, sample_rate, mark, times })
    }

    /// The labels of its samples' series.
    fn labels(&self, metric: &str) -> Result<Labels, Refusal> {
        let pairs = self.labels.iter().map(|pair| (pair.name.as_str(), pair.value.as_str()));
        Labels::read(pairs.chain([("__name__", metric), ("service_name", self.service.as_str())]))
    }

    /// Clients that send none say 0.
    fn says_sample_rate(&self) -> bool {
        !["", "0"].contains(&&*self.sample_rate)
    }

    /// Samples a second.
    fn sample_rate(&self) -> Result<i64, Refusal> {
        let rate = if self.says_sample_rate() { &self.sample_rate } else { SAMPLE_RATE };
        rate.parse().ok().filter(|rate| (1..=SECOND).contains(rate)).ok_or_else(|| {
            invalid(format!("sampleRate = {rate:?}: allowed are samples a second, or 0 for {SAMPLE_RATE}"))
        })
    }

    /// Folded stacks as a profile.
    fn folded(&self, bytes: &[u8], is_lines: bool, allowed: &mut Allowed) -> Result<Pprof, Refusal> {
        // A name of one letter becomes a string, a function and a location with a line.
        let (lines, frames) = bytes.iter().fold((1_usize, 1_usize), |(lines, frames), byte| match byte {
            b'\n' => (lines + 1, frames + 1),
            b';' => (lines, frames + 1),
            _ => (lines, frames),
        });
        let weight = lines.saturating_mul(LINE).saturating_add(frames.saturating_mul(FRAME));
        allowed.take(weight.saturating_add(bytes.len()), "the profile")?;
        let text = std::str::from_utf8(bytes).map_err(|_| invalid("the folded stacks are not UTF-8"))?;
        let ((sample_type, unit), (period_type, period_unit), weight) = match self.units.as_str() {
            "" | "samples" => (("cpu", "nanoseconds"), ("cpu", "nanoseconds"), SECOND / self.sample_rate()?),
            "objects" => (("alloc_objects", "count"), ("space", "bytes"), 1),
            "bytes" => (("alloc_space", "bytes"), ("space", "bytes"), 1),
            other => return Err(invalid(format!("units = {other:?}: allowed are samples, objects and bytes"))),
        };
        let mut builder = PprofBuilder::default();
        let mut value_type = |name, unit| ValueType { r#type: builder.string(name), unit: builder.string(unit) };
        let sample_type = vec![value_type(sample_type, unit)];
        let period_type = Some(value_type(period_type, period_unit));
        for (number, line) in text.lines().enumerate() {
            if number >= MOST_LINES {
                return Err(Refusal::new(Reason::TooLarge, format!("there are more than {MOST_LINES} lines")));
            }
            if line.trim().is_empty() {
                continue;
            }
            let counted = || {
                let (stack, count) = line.trim_end().rsplit_once([' ', '\t'])?;
                Some((stack, count.parse::<i64>().ok().filter(|count| *count >= 0)?))
            };
            let (stack, count) = if is_lines {
                (line, 1)
            } else {
                let cut: String = line.chars().take(80).collect();
                counted().ok_or_else(|| invalid(format!("line {}: {cut:?} is not a;b;c 12", number + 1)))?
            };
            builder.sample(stack, count.saturating_mul(weight));
        }
        Ok(Pprof { sample_type, period_type, period: weight, ..builder.profile() })
    }
}

/// A profile being made of names.
#[derive(Default)]
struct PprofBuilder<'a> {
    strings: HashMap<&'a str, i64>,
    table: Vec<String>,
    functions: HashMap<&'a str, u64>,
    profile: Pprof,
}

impl<'a> PprofBuilder<'a> {
    fn string(&mut self, text: &'a str) -> i64 {
        if self.table.is_empty() {
            self.table.push(String::new());
            self.strings.insert("", 0);
        }
        *self.strings.entry(text).or_insert_with(|| {
            self.table.push(text.into());
            i64::try_from(self.table.len() - 1).unwrap_or(0)
        })
    }

    fn sample(&mut self, stack: &'a str, value: i64) {
        let frames = stack.split(';').filter(|name| !name.is_empty());
        let mut location_id: Vec<u64> = frames.map(|name| self.location(name)).collect();
        location_id.reverse();
        self.profile.sample.push(Sample { location_id, value: vec![value], label: Vec::new() });
    }

    /// Each function has one location, with the same id.
    fn location(&mut self, function: &'a str) -> u64 {
        if let Some(id) = self.functions.get(function) {
            return *id;
        }
        let name = self.string(function);
        let id = u64::try_from(self.functions.len()).unwrap_or(0) + 1;
        self.functions.insert(function, id);
        self.profile.function.push(Function { id, name, ..Function::default() });
        let line = vec![Line { function_id: id, line: 0, column: 0 }];
        self.profile.location.push(Location { id, line, ..Location::default() });
        id
    }

    fn profile(self) -> Pprof {
        Pprof { string_table: self.table, ..self.profile }
    }
}

/// Whether bytes without a format are a pprof: packed, or beginning with a sample type. No text begins like that.
fn looks_like_pprof(bytes: &[u8]) -> bool {
    body::is_gzip(bytes) || matches!(bytes, [0x0a, ..0x09, ..])
}

/// `app{label=value,other=value}`.
fn key(name: &str) -> Result<(String, Vec<LabelPair>), Refusal> {
    let Some((service, rest)) = name.split_once('{') else {
        return Ok((name.into(), Vec::new()));
    };
    let bad = || invalid(format!("name = {name:?}: allowed is app or app{{label=value,other=value}}"));
    let inside = rest.strip_suffix('}').ok_or_else(bad)?;
    let mut labels = Vec::new();
    for pair in inside.split(',').filter(|pair| !pair.trim().is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(bad)?;
        let value = value.trim().trim_matches('"');
        // Those are the client's own, such as the number of its session, and none that Pyroscope keeps.
        if !name.trim().starts_with("__") {
            labels.push(LabelPair { name: name.trim().into(), value: value.into() });
        }
    }
    if service.is_empty() { Err(bad()) } else { Ok((service.into(), labels)) }
}

/// Unix seconds, milliseconds, microseconds or nanoseconds, told by their number of digits.
fn unix(text: &str) -> Result<i64, Refusal> {
    let number: i64 = text.parse().map_err(|_| invalid(format!("from = {text:?}: allowed are Unix seconds")))?;
    let unit = match text.len() {
        0..=11 => SECOND,
        12..=14 => clock::MILLISECOND,
        15..=17 => 1_000,
        _ => 1,
    };
    Ok(number.saturating_mul(unit))
}
