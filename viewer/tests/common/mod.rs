//! What the tests of the running program share: the program, a client, a profile and spans to send it.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use prost::Message as _;
use spanprof_core::wire::pprof::{Function, Label, Line, Location, Profile, Sample, ValueType};
use spanprof_core::wire::push::{LabelPair, PushRequest, RawProfileSeries, RawSample};

/// 10 ms, the period of all profiles here.
pub const PERIOD: i64 = 10_000_000;

/// The program, running on free ports; it ends with the test.
pub struct Server {
    child: Child,
    pub url: String,
    pub otlp: String,
}

impl Server {
    pub fn start() -> Self {
        Self::with(&[])
    }

    pub fn with(flags: &[&str]) -> Self {
        Self::run(spanprof(), flags)
    }

    /// The same by a command that starts the program.
    pub fn run(mut command: Command, flags: &[&str]) -> Self {
        let mut child = command
            .args(["--listen", "127.0.0.1:0", "--listen-otlp", "127.0.0.1:0", "--listen-grpc", "none"])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut url = || lines.next().unwrap().unwrap().rsplit(' ').next().unwrap().to_owned();
        Self { url: url(), otlp: url(), child }
    }

    /// `spanprof view` of these paths.
    pub fn view(paths: &[&std::path::Path]) -> Self {
        let mut child = spanprof().arg("view").args(paths).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let listening = lines.map(Result::unwrap).find(|line| line.starts_with("spanprof listening on ")).unwrap();
        let url = listening.rsplit(' ').next().unwrap().to_owned();
        Self { otlp: url.clone(), url, child }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end and returns its exit code.
    pub fn wait(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Asks for a path as a browser does: angle brackets are written as percent signs.
    pub fn get(&self, path: &str) -> Answer {
        let path = path.replace('<', "%3C").replace('>', "%3E");
        answer(agent().get(format!("{}{path}", self.url)).call())
    }

    pub fn get_with(&self, path: &str, header: (&str, &str)) -> Answer {
        answer(agent().get(format!("{}{path}", self.url)).header(header.0, header.1).call())
    }

    /// The pprof of a selection.
    pub fn pprof(&self, query: &str) -> Profile {
        let packed = self.get(&format!("/profile.pb.gz?{query}"));
        assert_eq!(packed.status, 200, "{}", packed.text());
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(packed.body.as_slice()).read_to_end(&mut bytes).unwrap();
        Profile::decode(bytes.as_slice()).unwrap()
    }

    /// The JSON of an answer that must be well.
    pub fn json(&self, path: &str) -> serde_json::Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// The text of a page that must be well.
    pub fn page(&self, path: &str) -> String {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert_eq!(answer.kind, "text/html; charset=utf-8");
        answer.text()
    }

    pub fn post(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut request = agent().post(format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        answer(request.send(body))
    }

    /// Pushes a profile as the profiler does: protobuf, packed.
    pub fn push(&self, service: &str, profile: &Profile) -> Answer {
        self.push_as("process_cpu", service, profile)
    }

    /// The same of another profile type.
    pub fn push_as(&self, name: &str, service: &str, profile: &Profile) -> Answer {
        let body = request(&[("__name__", name), ("service_name", service)], gzip(&profile.encode_to_vec()));
        let headers = [("content-type", "application/proto"), ("content-encoding", "gzip")];
        self.post("/push.v1.PusherService/Push", &headers, &gzip(&body))
    }

    /// Sends spans as an SDK does: protobuf, packed.
    pub fn trace(&self, service: &str, spans: Vec<Span>) -> Answer {
        let headers = [("content-type", "application/x-protobuf"), ("content-encoding", "gzip")];
        self.post("/v1/traces", &headers, &gzip(&export(service, spans).encode_to_vec()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program.
pub fn spanprof() -> Command {
    Command::new(env!("CARGO_BIN_EXE_spanprof"))
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub kind: String,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0).build().into()
}

fn answer(result: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Answer {
    let mut response = result.unwrap();
    let headers: BTreeMap<_, _> =
        response.headers().iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    Answer {
        status: response.status().as_u16(),
        kind: headers.get("content-type").cloned().unwrap_or_default(),
        headers,
        body: response.body_mut().with_config().limit(64 << 20).read_to_vec().unwrap(),
    }
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn now() -> u64 {
    u64::try_from(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

/// A PushRequest of one profile.
pub fn request(labels: &[(&str, &str)], raw_profile: Vec<u8>) -> Vec<u8> {
    let labels =
        labels.iter().map(|(name, value)| LabelPair { name: (*name).into(), value: (*value).into() }).collect();
    let samples = vec![RawSample { raw_profile, id: String::new() }];
    PushRequest { series: vec![RawProfileSeries { labels, samples }] }.encode_to_vec()
}

/// Samples for [`profile`]: stack, callers first, as `function:line` or `function@file:line`; labels; how many periods.
pub type Row<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], i64);

/// A CPU profile of now. Functions `x` are in `x.py`.
pub fn profile(rows: &[Row<'_>]) -> Profile {
    let mut strings = vec![String::new()];
    let mut string = |text: &str| {
        let found = strings.iter().position(|known| known == text).unwrap_or_else(|| {
            strings.push(text.into());
            strings.len() - 1
        });
        i64::try_from(found).unwrap()
    };
    let mut profile = Profile {
        sample_type: vec![ValueType { r#type: string("cpu"), unit: string("nanoseconds") }],
        period_type: Some(ValueType { r#type: string("cpu"), unit: string("nanoseconds") }),
        period: PERIOD,
        time_nanos: i64::try_from(now()).unwrap(),
        ..Profile::default()
    };
    for (stack, labels, periods) in rows {
        let mut location_id = Vec::new();
        for frame in stack.iter().rev() {
            let (name, line) = frame.split_once(':').unwrap();
            let (name, file) =
                name.split_once('@').map_or((name, format!("{name}.py")), |(name, file)| (name, file.into()));
            let name_index = string(name);
            let function_id = match profile.function.iter().find(|function| function.name == name_index) {
                Some(function) => function.id,
                None => {
                    let id = u64::try_from(profile.function.len()).unwrap() + 1;
                    let filename = string(&file);
                    profile.function.push(Function { id, name: name_index, filename, ..Function::default() });
                    id
                }
            };
            let line = vec![Line { function_id, line: line.parse().unwrap(), column: 0 }];
            let id = match profile.location.iter().find(|location| location.line == line) {
                Some(location) => location.id,
                None => {
                    let id = u64::try_from(profile.location.len()).unwrap() + 1;
                    profile.location.push(Location { id, line, ..Location::default() });
                    id
                }
            };
            location_id.push(id);
        }
        let label = labels
            .iter()
            .map(|(key, value)| Label { key: string(key), str: string(value), num: 0, num_unit: 0 })
            .collect();
        profile.sample.push(Sample { location_id, value: vec![periods * PERIOD], label });
    }
    profile.string_table = strings;
    profile
}

/// Samples for [`wall`]: stack, labels, state, how many waits they stand for, and how many milliseconds.
pub type WallRow<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str, i64, i64);

/// A profile of all time, waits too, as our profilers send it. Without a state as others do.
pub fn wall(rows: &[WallRow<'_>]) -> Profile {
    let labelled: Vec<Vec<(&str, &str)>> = rows
        .iter()
        .map(|(_, labels, state, ..)| {
            labels.iter().copied().chain([("state", *state)]).filter(|pair| !pair.1.is_empty()).collect()
        })
        .collect();
    let plain: Vec<Row<'_>> = rows.iter().zip(&labelled).map(|(row, labels)| (row.0, labels.as_slice(), 0)).collect();
    let mut profile = profile(&plain);
    let mut string = |text: &str| {
        profile.string_table.push(text.into());
        i64::try_from(profile.string_table.len()).unwrap() - 1
    };
    let time = ValueType { r#type: string("wall"), unit: string("nanoseconds") };
    let waits = ValueType { r#type: string("wait_count"), unit: string("count") };
    profile.sample_type = vec![waits, time];
    profile.period_type = Some(time);
    for (sample, (.., waits, ms)) in profile.sample.iter_mut().zip(rows) {
        sample.value = vec![*waits, ms * 1_000_000];
    }
    profile
}

/// The words of a page: tags out, entities back, white space as one blank.
pub fn words(page: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for c in page.chars() {
        match c {
            '<' => inside = true,
            '>' => {
                inside = false;
                text.push(' ');
            }
            c if !inside => text.push(c),
            _ => {}
        }
    }
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

thread_local! {
    /// A second before this test made its first span.
    static BASE: u64 = now() - 1_000_000_000;
}

/// A span that started `start_ms` after a second ago, which is the same instant for all of a test, `wall_ms` long.
pub fn span(trace: &str, id: &str, parent: &str, name: &str, start_ms: u64, wall_ms: u64) -> Span {
    let start = BASE.with(|base| *base) + start_ms * 1_000_000;
    Span {
        trace_id: hex(trace),
        span_id: hex(id),
        parent_span_id: hex(parent),
        name: name.into(),
        start_time_unix_nano: start,
        end_time_unix_nano: start + wall_ms * 1_000_000,
        ..Span::default()
    }
}

/// The same span, ended with an error.
pub fn failed(span: Span) -> Span {
    Span { status: Some(Status { code: 2, message: String::new() }), ..span }
}

/// The same span, with an attribute.
pub fn with_attribute(mut span: Span, key: &str, value: &str) -> Span {
    span.attributes.push(attribute(key, value));
    span
}

pub fn attribute(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value.into())) };
    KeyValue { key: key.into(), value: Some(value), ..KeyValue::default() }
}

pub fn number(key: &str, value: i64) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::IntValue(value)) };
    KeyValue { key: key.into(), value: Some(value), ..KeyValue::default() }
}

/// An export request of one service.
pub fn export(service: &str, spans: Vec<Span>) -> ExportTraceServiceRequest {
    let resource = Resource { attributes: vec![attribute("service.name", service)], ..Resource::default() };
    let scope_spans = vec![ScopeSpans { spans, ..ScopeSpans::default() }];
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() }],
    }
}

pub fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
