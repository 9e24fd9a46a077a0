//! OTLP that multiplies: each request is refused or bounded, and the process stays within its memory.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::time::Instant;

use common::{PERIOD, Server, export, gzip, now, profile};
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::profiles::v1development as otlp;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

const PROFILES: &str = "/v1development/profiles";
const PROTOBUF: (&str, &str) = ("content-type", "application/x-protobuf");
const JSON: (&str, &str) = ("content-type", "application/json");
const GZIP: (&str, &str) = ("content-encoding", "gzip");

fn server() -> Server {
    Server::with(&["--memory", "128m"])
}

fn send(server: &Server, path: &str, kind: (&str, &str), body: &[u8]) -> (u16, String) {
    let answer = server.post(path, &[kind, GZIP], &gzip(body));
    (answer.status, answer.text())
}

/// Takes a good profile, and has never been larger than it may.
fn check(server: &Server, after: &str) {
    let answer = server.push("shop", &profile(&[(&["main:1"], &[], 1)]));
    assert_eq!(answer.status, 200, "after {after}: {}", answer.text());
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    let peak: u64 = peak.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(peak <= 128 << 10, "after {after}: {peak} KiB");
}

fn attribute(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

fn text(key: &str, text: &str) -> KeyValue {
    attribute(key, any_value::Value::StringValue(text.into()))
}

#[test]
fn json_that_multiplies_is_refused() {
    let server = server();
    let within =
        |inside: &str| format!("{{\"resourceProfiles\":[{{\"scopeProfiles\":[{{\"profiles\":[{inside}]}}]}}]}}");
    let samples = |samples: &str, times| within(&format!("{{\"samples\":[{}{{}}]}}", samples.repeat(times)));
    let deep = "{\"arrayValue\":{\"values\":[".repeat(50_000);
    let deep = format!("{{\"resourceProfiles\":[{{\"resource\":{{\"attributes\":[{{\"value\":{deep}");
    for (what, json, refused) in [
        ("empty profiles", within(&"{},".repeat(300_000)), 400..=413),
        ("empty profiles, and nothing else", within(&format!("{}{{}}", "{},".repeat(300_000))), 413..=413),
        ("empty samples", samples("{},", 300_000), 413..=413),
        ("numbers of one digit", samples("{\"values\":[1,2,3,4,5,6,7,8,9]},", 60_000), 200..=413),
        (
            "times",
            within(&format!("{{\"samples\":[{{\"timestampsUnixNano\":[{}0]}}]}}", "1,".repeat(500_000))),
            200..=413,
        ),
        ("depth", deep, 400..=400),
        ("depth of what is skipped", format!("{{\"x\":{}", "[".repeat(1_000_000)), 400..=400),
        ("escapes", format!("{{\"dictionary\":{{\"stringTable\":[\"{}\"]}}}}", "\\u0001".repeat(150_000)), 200..=413),
    ] {
        let start = Instant::now();
        let (status, answer) = send(&server, PROFILES, JSON, json.as_bytes());
        println!("{what}: {status} in {:?}", start.elapsed());
        assert!(refused.contains(&status), "{what}: {status} {}", &answer[..answer.len().min(200)]);
        check(&server, what);
    }
}

#[test]
fn labels_of_many_types_are_counted() {
    let server = server();
    // A resource of 60 kB, of ten thousand profiles of a type each.
    let attributes = (0..28).map(|number| text(&format!("label_{number}"), &"x".repeat(2_000))).collect();
    let strings: Vec<String> =
        ["".to_owned(), "main".into()].into_iter().chain((0..10_000).map(|kind| format!("type_{kind}"))).collect();
    let profiles = (2..10_002).map(|kind| otlp::Profile {
        sample_type: Some(otlp::ValueType { type_strindex: kind, unit_strindex: 1 }),
        time_unix_nano: now(),
        samples: vec![otlp::Sample { values: vec![PERIOD], ..Default::default() }],
        ..Default::default()
    });
    let request = ExportProfilesServiceRequest {
        resource_profiles: vec![otlp::ResourceProfiles {
            resource: Some(Resource { attributes, ..Resource::default() }),
            scope_profiles: vec![otlp::ScopeProfiles { profiles: profiles.collect(), ..Default::default() }],
            ..Default::default()
        }],
        dictionary: Some(otlp::ProfilesDictionary { string_table: strings, ..Default::default() }),
    };
    let (status, answer) = send(&server, PROFILES, PROTOBUF, &request.encode_to_vec());
    assert!(status == 413 && answer.contains("takes more than"), "{status} {answer}");
    check(&server, "labels of many types");
}

/// A text that thousands refer to is read as often as it is needed, and as much of it.
#[test]
fn long_texts_that_many_refer_to_take_no_time() {
    let server = server();
    let strings = vec![String::new(), "x".repeat(300_000)];
    let attributes = ["service.name", "service.instance.id", "container.id", "host.id", "host.name"].map(|key| {
        KeyValue { value: Some(AnyValue { value: Some(any_value::Value::StringValueStrindex(1)) }), ..text(key, "") }
    });
    let with = |profiles: Vec<otlp::Profile>, scopes: usize| ExportProfilesServiceRequest {
        resource_profiles: vec![otlp::ResourceProfiles {
            resource: Some(Resource { attributes: attributes.to_vec(), ..Resource::default() }),
            scope_profiles: vec![otlp::ScopeProfiles { profiles, ..Default::default() }; scopes],
            ..Default::default()
        }],
        dictionary: Some(otlp::ProfilesDictionary { string_table: strings.clone(), ..Default::default() }),
    };
    let long = otlp::Profile {
        sample_type: Some(otlp::ValueType { type_strindex: 1, unit_strindex: 1 }),
        time_unix_nano: now(),
        ..Default::default()
    };
    for (what, request, says) in [
        ("scopes", with(vec![], 20_000), ""),
        ("sample types", with(vec![long; 2_000], 1), "a sample type has 300000 bytes: allowed are 256"),
    ] {
        let (status, answer) = send(&server, PROFILES, PROTOBUF, &request.encode_to_vec());
        assert!(status == 200 && answer.contains(says), "{what}: {status} {answer}");
        check(&server, what);
    }
}

fn process() -> Vec<KeyValue> {
    vec![text("service.name", "shop"), attribute("process.pid", any_value::Value::IntValue(7))]
}

/// A profile of samples that say when they were taken in thread 1 of a process.
fn timed(time_unix_nano: u64, times: impl Iterator<Item = u64>) -> Vec<u8> {
    let strings = ["", "samples", "count", "cpu", "nanoseconds", "thread.id"];
    let value = Some(AnyValue { value: Some(any_value::Value::IntValue(1)) });
    let thread = otlp::KeyValueAndUnit { key_strindex: 5, value, ..Default::default() };
    let sample =
        otlp::Sample { attribute_indices: vec![1], timestamps_unix_nano: times.collect(), ..Default::default() };
    let profile = otlp::Profile {
        sample_type: Some(otlp::ValueType { type_strindex: 1, unit_strindex: 2 }),
        period_type: Some(otlp::ValueType { type_strindex: 3, unit_strindex: 4 }),
        period: PERIOD,
        time_unix_nano,
        samples: vec![sample],
        ..Default::default()
    };
    let request = ExportProfilesServiceRequest {
        resource_profiles: vec![otlp::ResourceProfiles {
            resource: Some(Resource { attributes: process(), ..Resource::default() }),
            scope_profiles: vec![otlp::ScopeProfiles { profiles: vec![profile], ..Default::default() }],
            ..Default::default()
        }],
        dictionary: Some(otlp::ProfilesDictionary {
            string_table: strings.map(String::from).to_vec(),
            attribute_table: vec![otlp::KeyValueAndUnit::default(), thread],
            ..Default::default()
        }),
    };
    request.encode_to_vec()
}

/// Spans of that thread, by id, start and end.
fn open_at_once(spans: impl Iterator<Item = (u64, u64, u64)>) -> Vec<u8> {
    let spans = spans.map(|(id, start_time_unix_nano, end_time_unix_nano)| Span {
        trace_id: vec![7; 16],
        span_id: id.to_be_bytes().to_vec(),
        name: "GET /".into(),
        start_time_unix_nano,
        end_time_unix_nano,
        attributes: vec![attribute("thread.id", any_value::Value::IntValue(1))],
        ..Span::default()
    });
    let mut request = export("shop", spans.collect());
    request.resource_spans[0].resource.as_mut().unwrap().attributes = process();
    request.encode_to_vec()
}

/// Samples of a thread, and spans of it that are all within each other, again and again.
#[test]
fn samples_that_join_again_and_again_are_bounded() {
    let server = server();
    let start = now() - 10_000_000_000;
    for round in 0..2 {
        let (status, answer) =
            send(&server, PROFILES, PROTOBUF, &timed(start + round, (0..20_000).map(|time| start + time * 1_000)));
        assert!(status == 200 && answer.is_empty(), "{status} {answer}");
    }
    let spans = |round: u64| {
        open_at_once((1..=500).map(|id: u64| (round << 32 | id, start + id * 30_000, start + 100_000_000)))
    };
    for round in 1..=2 {
        let begun = Instant::now();
        let (status, answer) = send(&server, "/v1/traces", PROTOBUF, &spans(round));
        println!("{status} in {:?}", begun.elapsed());
        assert!(status == 200 || status == 503, "{status} {answer}");
        check(&server, "samples that join");
    }
    // No sample is lost or there twice.
    let total = server.json("/api/top?service=shop&since=all")["total"].as_i64().unwrap();
    assert_eq!((total - 2 * PERIOD) / PERIOD, 2 * 20_000);
}

/// A thread that has more spans open at once than any program: what a sample takes to join one of them does not grow with their number.
#[test]
fn spans_that_are_open_at_once_take_no_memory_when_samples_join_them() {
    const SPANS: u64 = 100_000;
    let server = Server::start();
    let start = now() - 10_000_000_000;
    for first in (0..SPANS).step_by(1_000) {
        let spans = (first + 1..=first + 1_000).map(|id| (id, start + id, start + 1_000_000_000));
        let (status, answer) = send(&server, "/v1/traces", PROTOBUF, &open_at_once(spans));
        assert!(status == 200 && answer.is_empty(), "{status} {answer}");
    }
    let kib = |line: &str| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
        let found = status.lines().find(|found| found.starts_with(line)).unwrap();
        found.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    std::fs::write(format!("/proc/{}/clear_refs", server.pid()), "5").unwrap();
    let before = kib("VmRSS");
    let (status, answer) = send(&server, PROFILES, PROTOBUF, &timed(start, [start + SPANS + 1].into_iter()));
    assert!(status == 200 && answer.is_empty(), "{status} {answer}");
    let after = kib("VmHWM");
    println!("{before} KiB, {after} KiB when it joined");
    assert!(after < before + 3_000, "{before} KiB, {after} KiB when it joined");
    let innermost = server.json(&format!("/api/flame?span={SPANS:016x}&since=all"));
    assert_eq!(innermost["total"], PERIOD);
}
