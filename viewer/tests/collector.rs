//! What a Collector sent by each of its ways, and the eBPF profiler's reporter through it (recorded by tests/clients/collector), against
//! what their senders know of it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::{Server, export};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde::Deserialize;
use serde_json::Value;

/// What a sender knows of what it sent of a service and a type.
#[derive(Deserialize)]
struct Numbers {
    service: String,
    r#type: String,
    total: i64,
    #[serde(rename = "self")]
    own: BTreeMap<String, i64>,
    spans: Option<BTreeMap<String, i64>>,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/clients/collector/fixtures")
}

/// They were recorded once, and are of all times.
fn server() -> Server {
    Server::with(&["--retain", "36500d"])
}

/// Sends what was recorded as it was sent: gRPC's messages are what HTTP's bodies are.
fn send(server: &Server, name: &str) -> (u16, String) {
    let json = fixtures().join(format!("{name}.json"));
    let (headers, path) = if json.exists() {
        (vec![("content-type", "application/json")], json)
    } else {
        let headers = vec![("content-type", "application/x-protobuf"), ("content-encoding", "gzip")];
        (headers, fixtures().join(format!("{name}.pb.gz")))
    };
    let answer = server.post("/v1development/profiles", &headers, &std::fs::read(path).unwrap());
    (answer.status, answer.text())
}

fn percent(text: &str) -> String {
    text.replace(':', "%3A")
}

#[test]
fn what_a_sender_knows_is_what_is_shown() {
    let numbers = std::fs::read(fixtures().join("numbers.json")).unwrap();
    let numbers: BTreeMap<String, Vec<Numbers>> = serde_json::from_slice(&numbers).unwrap();
    assert_eq!(numbers.len(), 6, "an SDK's and the eBPF profiler's, by gRPC, protobuf and JSON");
    for (name, known) in numbers {
        let server = server();
        let (status, text) = send(&server, &name);
        assert!(status == 200 && ["", "{}"].contains(&text.as_str()), "{name}: {status} {text}");
        for Numbers { service, r#type, total, own, spans } in known {
            let query = format!("service={}&type={}&since=all", percent(&service), percent(&r#type));
            let top = server.json(&format!("/api/top?{query}"));
            let functions = top["functions"].as_array().unwrap().iter();
            let shown: BTreeMap<String, i64> = functions
                .map(|row| (row["function"].as_str().unwrap().to_owned(), row["own"].as_i64().unwrap()))
                .filter(|(_, own)| *own > 0)
                .collect();
            assert_eq!((top["total"].as_i64(), &shown), (Some(total), &own), "{name}, {service}, {}", r#type);
            for (span, value) in spans.into_iter().flatten() {
                let flame = server.json(&format!("/api/flame?span={span}&{query}"));
                assert_eq!(flame["total"].as_i64(), Some(value), "{name}, {service}, span {span}");
            }
        }
        assert_eq!(server.json("/api/services")["refused"], Value::Array(vec![]), "{name}");
    }
}

#[test]
fn whole_numbers_of_a_resource_and_attributes_of_a_scope_are_labels() {
    let server = server();
    assert_eq!(send(&server, "sdk-json").0, 200);
    let series = server.post(
        "/querier.v1.QuerierService/Series",
        &[("content-type", "application/json"), ("accept", "*/*;allow-utf8-labelnames=true")],
        br#"{"start": 1, "end": 99999999999999, "matchers": ["{service_name=\"shop-json\"}"],
            "labelNames": ["process.pid", "profiler.kind", "service_namespace"]}"#,
    );
    let expected = r#"{"labelsSet":[{"labels":[{"name":"process.pid","value":"77"},{"name":"profiler.kind","value":"sampling"},{"name":"service_namespace","value":"demo"}]}]}"#;
    assert_eq!(series.text(), expected);
}

/// The same message, written as other rules of protobuf's JSON have it.
#[test]
fn json_is_read_by_the_rules_of_protobuf() {
    let text = std::fs::read_to_string(fixtures().join("sdk-json.json")).unwrap();
    let own = text.replace("resourceProfiles", "resource_profiles").replace("stringTable", "string_table");
    let numbers = text.replace("\"10000000\"", "1e7").replace("\"values\":[\"7\"]", "\"values\":[7.0]");
    let more = text
        .replacen('{', r#"{"newer":{"deep":[[{"a":null}]]},"#, 1)
        .replace("\"linkTable\"", "\"x\":null,\"linkTable\"");
    let nulls = text
        .replace("\"scope\":{}", "\"scope\":null")
        .replace("\"periodType\":{}", "\"periodType\":null,\"samples\":null");
    assert!([&own, &numbers, &more, &nulls].iter().all(|changed| **changed != text), "nothing was changed");
    let headers = [("content-type", "application/json")];
    for (what, text) in [("own names", own), ("numbers", numbers), ("newer fields", more), ("nulls", nulls)] {
        let server = server();
        let answer = server.post("/v1development/profiles", &headers, text.as_bytes());
        assert_eq!((answer.status, answer.text().as_str()), (200, "{}"), "{what}");
        let top = server.json("/api/top?service=shop-json&since=all");
        assert_eq!(top["total"], 140_000_000, "{what}");
        assert_eq!(server.json("/api/flame?span=00f067aa0ba902b7&since=all")["total"], 90_000_000, "{what}");
    }
    let server = server();
    for (from, to, says) in [
        ("\"stackIndex\":1", "\"stackIndex\":\"x\"", "\"stackIndex\" is \"x\", and allowed is a 32-bit integer"),
        (
            "\"stackIndex\":1",
            "\"stackIndex\":4294967296",
            "\"stackIndex\" is 4294967296, and allowed is a 32-bit integer",
        ),
        ("\"stackIndex\":1", "\"stackIndex\":1.5", "\"stackIndex\" is 1.5"),
        ("\"values\":[\"7\"]", "\"values\":[null]", "\"values\" is null in a list"),
        ("\"values\":[\"7\"]", "\"values\":7", "\"values\" is 7, and allowed is a list"),
        ("00f067aa0ba902b7", "00f067aa0ba902b", "\"spanId\" is something else, and allowed is bytes in hexadecimal"),
        ("\"sampleType\":{", "\"sampleType\":[{", "\"sampleType\" is a list, and allowed is an object"),
    ] {
        let answer = server.post("/v1development/profiles", &headers, text.replacen(from, to, 1).as_bytes());
        assert!(
            answer.status == 400 && answer.text().contains(&says.replace('"', "\\\"")),
            "{from}: {}",
            answer.text()
        );
    }
    let cut_off = server.post("/v1development/profiles", &headers, &text.as_bytes()[..text.len() - 1]);
    assert!(cut_off.status == 400 && cut_off.text().contains("EOF while parsing"), "{}", cut_off.text());
}

/// The eBPF profiler knows the thread of its samples, and a span may say it too.
#[test]
fn samples_without_a_span_join_one_of_their_thread_by_time() {
    // Two of the three samples of write, which have no link; the last was taken at the end of 2025.
    let last = 1_767_225_600_000_000_000;
    let text = |key: &str, text: &str| attribute(key, any_value::Value::StringValue(text.into()));
    let number = |key: &str, number| attribute(key, any_value::Value::IntValue(number));
    let spans = |container: &str, thread| {
        let span = Span {
            trace_id: vec![7; 16],
            span_id: vec![5; 8],
            name: "POST /order".into(),
            start_time_unix_nano: last - 60_000_000,
            end_time_unix_nano: last + 10,
            attributes: vec![number("thread.id", thread)],
            ..Span::default()
        };
        let mut request = export("cpp-json", vec![span]);
        let attributes = &mut request.resource_spans[0].resource.as_mut().unwrap().attributes;
        attributes.extend([number("process.pid", 4_242), text("container.id", container)]);
        request.encode_to_vec()
    };
    let headers = [("content-type", "application/x-protobuf")];
    let period = 50_000_000;
    for (container, thread, spans_first, joined) in [
        ("c0ffee", 4_243, true, true),
        ("c0ffee", 4_243, false, true),
        ("c0ffee", 4_244, false, false),
        ("decaf", 4_243, false, false),
    ] {
        let server = server();
        let send_spans = || assert_eq!(server.post("/v1/traces", &headers, &spans(container, thread)).status, 200);
        if spans_first {
            send_spans();
        }
        assert_eq!(send(&server, "ebpf-json").0, 200);
        if !spans_first {
            send_spans();
        }
        let flame = server.json("/api/flame?span=0505050505050505&since=all");
        // And one that the profiler knows no service of.
        let expected = if joined { 3 * period } else { 0 };
        let what = format!("{container} {thread} {spans_first}");
        assert_eq!((&flame["total"], flame.get("joined_by_time").is_some()), (&expected.into(), joined), "{what}");
        let page = server.page("/flame?span=0505050505050505&since=all");
        assert_eq!(page.contains("joined by time"), joined, "{what}");
        // What is linked stays where it is.
        let linked = server.json("/api/flame?span=00f067aa0ba902b7&since=all");
        assert_eq!((&linked["total"], linked.get("joined_by_time")), (&(6 * period).into(), None), "{what}");
        assert_eq!(server.json("/api/top?service=cpp-json&since=all")["total"], 9 * period);
    }
}

fn attribute(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
