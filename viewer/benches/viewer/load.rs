//! What is sent: profiles of 15 seconds and batches of spans, made before anything is measured.

use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use spanprof_core::wire::pprof::{Function, Label, Line, Location, Profile, Sample, ValueType};

use crate::common::{PERIOD, Server, export, gzip, now, request, with_attribute};

const PROFILES: u64 = 240;
const SAMPLES_A_SPAN: u64 = 5;
const STACKS: u64 = 2_000;
const FUNCTIONS: u64 = 2_000;
const DEPTH: u64 = 40;
const NAMES: u64 = 40;
/// What the SDKs' batch processors send at once.
const BATCH: usize = 512;

/// Requests, ready to be sent.
pub struct Load {
    spans: u64,
    profiles: Vec<Vec<u8>>,
    traces: Vec<Vec<u8>>,
}

impl Load {
    /// So many spans, with five samples each.
    pub fn new(spans: u64) -> Self {
        let start = now() - 3_590_000_000_000;
        let each = spans / PROFILES;
        let spans = each * PROFILES;
        let window = |number: u64| start + number * 15_000_000_000;
        let profiles =
            (0..PROFILES).map(|number| profile(window(number), number * each..(number + 1) * each)).collect();
        let all: Vec<Span> = (0..spans).map(|number| span(window(number / each), number)).collect();
        let traces = all.chunks(BATCH).map(|batch| gzip(&export("shop", batch.to_vec()).encode_to_vec())).collect();
        Self { spans, profiles, traces }
    }

    pub fn spans(&self) -> u64 {
        self.spans
    }

    pub fn samples(&self) -> u64 {
        self.spans * SAMPLES_A_SPAN
    }

    /// The id of a span in the middle.
    pub fn a_span(&self) -> String {
        span_id(self.spans / 2)
    }

    pub fn push(&self, server: &Server) {
        let headers = [("content-type", "application/proto"), ("content-encoding", "gzip")];
        for body in &self.profiles {
            let answer = server.post("/push.v1.PusherService/Push", &headers, body);
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }

    pub fn trace(&self, server: &Server) {
        let headers = [("content-type", "application/x-protobuf"), ("content-encoding", "gzip")];
        for body in &self.traces {
            let answer = server.post("/v1/traces", &headers, body);
            assert!(answer.status == 200 && answer.body.is_empty(), "{}", answer.text());
        }
    }
}

/// Ids look random, as those of SDKs do: they are scattered over the index.
fn scatter(number: u64) -> u64 {
    (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn span_id(number: u64) -> String {
    format!("{:016x}", scatter(number))
}

fn trace_id(number: u64) -> String {
    format!("{:016x}{:016x}", scatter(number ^ 0x5555), scatter(number))
}

fn name(number: u64) -> String {
    format!("GET /route/{}", number % NAMES)
}

fn span(start: u64, number: u64) -> Span {
    let wall = 5_000_000 + scatter(number) % 200_000_000;
    let span = Span {
        trace_id: crate::common::hex(&trace_id(number)),
        span_id: crate::common::hex(&span_id(number)),
        name: name(number),
        flags: 0x101,
        kind: 2,
        start_time_unix_nano: start + scatter(number) % 14_000_000_000,
        end_time_unix_nano: start + scatter(number) % 14_000_000_000 + wall,
        ..Span::default()
    };
    let span = with_attribute(span, "http.request.method", "GET");
    let span = with_attribute(span, "http.route", &name(number)[4..]);
    let span = with_attribute(span, "http.response.status_code", "200");
    with_attribute(span, "pyroscope.profile.id", &span_id(number))
}

/// Frame `depth` of a stack: a common start, one of twenty middles, an end of its own.
fn function(stack: u64, depth: u64) -> u64 {
    match depth {
        0..15 => depth,
        15..30 => 15 + (stack % 20) * 15 + (depth - 15),
        _ => 315 + (stack * 10 + (depth - 30)) % (FUNCTIONS - 315),
    }
}

fn profile(time: u64, spans: std::ops::Range<u64>) -> Vec<u8> {
    let mut strings: Vec<String> =
        ["", "cpu", "nanoseconds", "span_id", "trace_id", "span_name"].map(String::from).into();
    let mut string = |text: String| {
        strings.push(text);
        i64::try_from(strings.len() - 1).unwrap()
    };
    let names: Vec<i64> = (0..NAMES).map(|number| string(name(number))).collect();
    let mut profile = Profile {
        sample_type: vec![ValueType { r#type: 1, unit: 2 }],
        period_type: Some(ValueType { r#type: 1, unit: 2 }),
        period: PERIOD,
        time_nanos: i64::try_from(time).unwrap(),
        ..Profile::default()
    };
    for number in 0..FUNCTIONS {
        let name = string(format!("module_{}.function_{number}", number % 50));
        let filename = string(format!("/srv/shop/module_{}/file_{number}.py", number % 50));
        profile.function.push(Function { id: number + 1, name, filename, ..Function::default() });
        let line = vec![Line { function_id: number + 1, line: 10, column: 0 }];
        profile.location.push(Location { id: number + 1, line, ..Location::default() });
    }
    for number in spans {
        let (span, trace) = (string(span_id(number)), string(trace_id(number)));
        let label = |key, str| Label { key, str, num: 0, num_unit: 0 };
        let labels = [label(3, span), label(4, trace), label(5, names[usize::try_from(number % NAMES).unwrap()])];
        for sample in 0..SAMPLES_A_SPAN {
            let stack = scatter(number * SAMPLES_A_SPAN + sample) % STACKS;
            let location_id = (0..DEPTH).rev().map(|depth| function(stack, depth) + 1).collect();
            profile.sample.push(Sample { location_id, value: vec![PERIOD], label: labels.to_vec() });
        }
    }
    profile.string_table = strings;
    gzip(&request(&[("__name__", "process_cpu"), ("service_name", "shop")], gzip(&profile.encode_to_vec())))
}
