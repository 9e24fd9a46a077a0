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
use spanprof_core::wire::pprof::{Profile as Pprof, ValueType};
use spanprof_core::wire::push::LabelPair;
use tokio::runtime::Handle;

use super::folded;
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
use crate::sender::Sender;
use crate::store::{Mark, Profile};

/// A time before this one was written in another unit than nanoseconds, as old clients do.
const LEAST_TIME: i64 = 365 * 86_400 * SECOND;
/// Samples a second where the sender does not say it.
const SAMPLE_RATE: i64 = 100;
/// A form's words for its sample types, which a reader of JSON makes many times as large; clients send a few hundred bytes.
const LONGEST_CONFIG: usize = 16 << 10;

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
    /// What the numbers of a recording mean.
    labels: Vec<u8>,
    is_form: bool,
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
    let mut params = Params::parse(&query);
    let key = IngestQuery::key(&mut params);
    let of_it = |refusal: Refusal| match &key {
        Ok((service, _)) => refusal.of_service(service),
        Err(_) => refusal,
    };
    let read = receiver.read(body).await.map_err(of_it)?;
    let (service, labels) = key?;
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
            // The parts of a form are copies, each made in two steps.
            allowed.take(bytes.len().saturating_mul(2), "the form")?;
            // Nothing is waited for, as all of it is here.
            let parts = runtime.block_on(parts(&headers, bytes))?;
            let mark = Mark::of(&(query.service.as_str(), query.text.as_str(), &parts.profile), false);
            if parts.profile.is_empty() {
                // What some clients send where nothing happened.
                return Ok(());
            }
            let profiles = query.profiles(&parts, receiver.times(), Some(mark), allowed)?;
            if receiver.insert_profiles(profiles)? {
                receiver.note_sender(&query.service, query.sender(), true)?;
            }
            Ok(())
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
            "labels" => parts.labels = bytes.to_vec(),
            "sample_type_config" if bytes.len() > LONGEST_CONFIG => {
                let length = bytes.len();
                return Err(invalid(format!(
                    "the form's sample_type_config has {length} bytes: allowed are {LONGEST_CONFIG}"
                )));
            }
            "sample_type_config" => {
                let config: HashMap<String, SampleTypeConfig> = serde_json::from_slice(&bytes)
                    .map_err(|error| invalid(format!("the form's sample_type_config: {error}")))?;
                let names = config.into_iter().filter_map(|(name, config)| Some((name, config.display_name?)));
                parts.names = names.filter(|(_, shown)| !shown.is_empty()).collect();
            }
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
    receiver.insert_profiles(query.profiles(&parts, (i64::MIN, i64::MAX), None, &mut Allowed::plenty())?).map(drop)
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
        parts: &Parts,
        times: (i64, i64),
        mark: Option<Mark>,
        allowed: &mut Allowed,
    ) -> Result<Vec<Profile>, Refusal> {
        let bytes = &parts.profile;
        let told = || if parts.is_form || looks_like_pprof(bytes) { Format::Pprof } else { Format::Folded };
        let mut pprof = match self.format.unwrap_or_else(told) {
            Format::Jfr => return jfr::read(&self.recording(parts, times, mark)?, allowed),
            Format::Pprof => pprof::decode(bytes, allowed)?,
            Format::Folded => folded::profile(bytes, false, self.value()?, allowed)?,
            Format::Lines => folded::profile(bytes, true, self.value()?, allowed)?,
        };
        if pprof.time_nanos < LEAST_TIME {
            pprof.time_nanos = self.start.unwrap_or(0);
        }
        // Without any time it is of now, and may be another one that is alike.
        let mark = mark.filter(|_| pprof.time_nanos != 0);
        name_functions(&mut pprof);
        let strings = &pprof.string_table;
        let word = |of: &ValueType| string(strings, of.r#type, "a sample type");
        let types = pprof.sample_type.iter().map(word).collect::<Result<Vec<_>, _>>()?;
        let name = metric_name(&types, |name| parts.names.get(name).map(String::as_str));
        let pairs = self.labels.iter().map(|pair| (pair.name.as_str(), pair.value.as_str()));
        let labels = Labels::read(pairs.chain([("__name__", name), ("service_name", self.service.as_str())]))?;
        Ok(vec![Profile { mark, ..pprof::rows(&pprof, &labels, times, allowed)? }])
    }

    fn recording<'a>(
        &'a self,
        parts: &'a Parts,
        times: (i64, i64),
        mark: Option<Mark>,
    ) -> Result<jfr::Upload<'a>, Refusal> {
        let Parts { profile, labels, .. } = parts;
        let Self { service, labels: series, start, .. } = self;
        let sample_rate = self.rate()?;
        Ok(jfr::Upload { recording: profile, labels, service, series, start: *start, sample_rate, mark, times })
    }

    fn sender(&self) -> Option<Sender> {
        let spy = self.labels.iter().find(|label| label.name == SPY).and_then(|label| Sender::of_spy(&label.value));
        spy.or((self.format == Some(Format::Jfr)).then_some(Sender::Java))
    }

    /// Samples a second, where that is said. Clients that have none say 0.
    fn rate(&self) -> Result<Option<i64>, Refusal> {
        if ["", "0"].contains(&&*self.sample_rate) {
            return Ok(None);
        }
        let rate = self.sample_rate.parse().ok().filter(|rate| (1..=SECOND).contains(rate));
        rate.map(Some).ok_or_else(|| {
            invalid(format!(
                "sampleRate = {:?}: allowed are samples a second, or 0 for {SAMPLE_RATE}",
                self.sample_rate
            ))
        })
    }

    /// What a stack of folded ones is worth.
    fn value(&self) -> Result<folded::Value, Refusal> {
        match self.units.as_str() {
            "" | "samples" => Ok(folded::Value::cpu(self.rate()?.unwrap_or(SAMPLE_RATE))),
            "objects" => Ok(folded::Value::OBJECTS),
            "bytes" => Ok(folded::Value::BYTES),
            other => Err(invalid(format!("units = {other:?}: allowed are samples, objects and bytes"))),
        }
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
