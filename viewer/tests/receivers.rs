//! What other clients than ours send: `/ingest` in its formats, and OTLP profiles.

mod common;

use common::{PERIOD, Server, attribute, gzip, hex, now, profile};
use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use opentelemetry_proto::tonic::profiles::v1development::{
    Function, Line, Link, Location, Profile, ProfilesDictionary, ResourceProfiles, Sample, ScopeProfiles, Stack,
    ValueType,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use serde_json::json;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// A form of the given fields.
fn form(fields: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, bytes) in fields {
        body.extend(
            format!("--edge\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"x\"\r\n\r\n").bytes(),
        );
        body.extend(*bytes);
        body.extend(b"\r\n");
    }
    body.extend(b"--edge--\r\n");
    body
}

const FORM: (&str, &str) = ("content-type", "multipart/form-data; boundary=edge");

#[test]
fn ingest_takes_pprof_in_a_form_and_as_the_body() {
    let server = Server::start();
    let bytes = profile(&[(&["main:1", "work:2"], &[("span_id", SPAN)], 7)]).encode_to_vec();
    let path = "/ingest?name=shop%7Bregion%3Deu%7D&format=pprof&spyName=gospy&sampleRate=100&from=1&until=2";
    let fields: [(&str, &[u8]); 2] = [("profile", &gzip(&bytes)), ("sample_type_config", b"{}")];
    let answer = server.post(path, &[FORM], &form(&fields));
    assert_eq!((answer.status, answer.text().as_str()), (200, ""), "{}", answer.text());
    assert_eq!(server.post(path, &[], &bytes).status, 200);
    let flame = server.json(&format!("/api/flame?span={SPAN}"));
    assert_eq!(flame["total"], 14 * PERIOD);
    assert_eq!(flame["profile_type"], "process_cpu:cpu:nanoseconds:cpu:nanoseconds");
    let labels = json!({ "name": "region", "start": 1, "end": "99999999999999" }).to_string();
    let values = server.post(
        "/querier.v1.QuerierService/LabelValues",
        &[("content-type", "application/json")],
        labels.as_bytes(),
    );
    assert_eq!(values.text(), "{\"names\":[\"eu\"]}");
}

#[test]
fn a_large_form_is_taken() {
    let server = Server::start();
    let bytes = profile(&[(&["main:1"], &[("pad", &"x".repeat(2_000))], 7)]).encode_to_vec();
    let padding = vec![b' '; 3 << 20];
    let fields: [(&str, &[u8]); 2] = [("profile", &bytes), ("prev_profile", &padding)];
    assert_eq!(server.post("/ingest?name=shop&format=pprof", &[FORM], &form(&fields)).status, 200);
}

#[test]
fn ingest_takes_folded_stacks_and_lines() {
    let server = Server::start();
    let from = now() / 1_000_000_000 - 20;
    let path = format!("/ingest?name=shop&from={from}&until={}&sampleRate=50", from + 10);
    assert_eq!(server.post(&path, &[], b"main;work 3\nmain;other function 2\n\n").status, 200);
    assert_eq!(server.post(&format!("{path}&format=lines"), &[], b"main;work\nmain;work\n").status, 200);
    assert_eq!(server.get("/folded?service=shop").text(), "main;other function 40000000\nmain;work 100000000\n");
    assert_eq!(server.post("/ingest?name=shop&units=bytes&format=folded", &[], b"main 512\n").status, 200);
    let memory = server.json("/api/flame?service=shop&type=memory");
    assert_eq!((&memory["total"], &memory["unit"]), (&json!(512), &json!("bytes")));
}

#[test]
fn ingest_refuses_in_words() {
    let server = Server::start();
    let fields: [(&str, &[u8]); 1] = [("other", b"x")];
    let bad_form = form(&fields);
    for (query, headers, body, status, says) in [
        (
            "name=shop&format=trie",
            vec![],
            &b"x"[..],
            415,
            "format \"trie\" is not taken; send pprof, jfr, folded or lines",
        ),
        (
            "name=shop&format=jfr",
            vec![],
            b"FLR",
            400,
            "the recording is cut off, or no recording of Java Flight Recorder",
        ),
        ("format=pprof", vec![], b"", 400, "\"name\" is missing"),
        ("name=shop%7Ba", vec![], b"a 1", 400, "allowed is app or app{label=value"),
        ("name=shop", vec![], b"main;work x", 400, "line 1: \"main;work x\" is not a;b;c 12"),
        ("name=shop", vec![], b"\xff\xfe 1", 400, "not UTF-8"),
        ("name=shop&units=bananas", vec![], b"a 1", 400, "allowed are samples, objects and bytes"),
        ("name=shop&sampleRate=often", vec![], b"a 1", 400, "sampleRate = \"often\""),
        ("name=shop&from=yesterday", vec![], b"a 1", 400, "Unix seconds"),
        ("name=shop&from=1", vec![], b"a 1", 400, "older than what is kept"),
        ("name=shop&format=pprof", vec![], b"garbage", 400, "the profile is no protobuf"),
        ("name=shop&format=pprof", vec![FORM], b"garbage", 400, "the form cannot be read"),
        ("name=shop&format=pprof", vec![FORM], &bad_form, 400, "no field \"profile\""),
    ] {
        let answer = server.post(&format!("/ingest?{query}"), &headers, body);
        assert!(
            answer.status == status && answer.text().contains(says),
            "{query}: {} {}",
            answer.status,
            answer.text()
        );
    }
    let refused = server.json("/api/services")["refused"].clone();
    assert_eq!(refused.as_array().unwrap().iter().map(|row| row["count"].as_i64().unwrap()).sum::<i64>(), 13);
}

/// main > work, seven times in a span, thrice outside.
fn otlp() -> ExportProfilesServiceRequest {
    let strings = ["", "samples", "count", "cpu", "nanoseconds", "main", "work", "app.rb"];
    let function = |name| Function { name_strindex: name, filename_strindex: 7, ..Function::default() };
    let location = |function_index, line| Location {
        lines: vec![Line { function_index, line, column: 0 }],
        ..Location::default()
    };
    let link = |trace: &str, span: &str| Link { trace_id: hex(trace), span_id: hex(span) };
    let dictionary = ProfilesDictionary {
        string_table: strings.map(String::from).to_vec(),
        function_table: vec![Function::default(), function(5), function(6)],
        location_table: vec![Location::default(), location(1, 3), location(2, 4)],
        stack_table: vec![Stack::default(), Stack { location_indices: vec![2, 1] }],
        link_table: vec![Link::default(), link(TRACE, SPAN)],
        ..ProfilesDictionary::default()
    };
    let sample = |link_index, values, times| Sample {
        stack_index: 1,
        link_index,
        values,
        timestamps_unix_nano: times,
        ..Sample::default()
    };
    let profile = Profile {
        sample_type: Some(ValueType { type_strindex: 1, unit_strindex: 2 }),
        period_type: Some(ValueType { type_strindex: 3, unit_strindex: 4 }),
        period: PERIOD,
        time_unix_nano: now(),
        samples: vec![sample(1, vec![7], vec![]), sample(0, vec![], vec![1, 2, 3])],
        ..Profile::default()
    };
    let attributes = vec![attribute("service.name", "shop"), attribute("service.namespace", "demo")];
    ExportProfilesServiceRequest {
        resource_profiles: vec![ResourceProfiles {
            resource: Some(Resource { attributes, ..Resource::default() }),
            scope_profiles: vec![ScopeProfiles { profiles: vec![profile], ..ScopeProfiles::default() }],
            ..ResourceProfiles::default()
        }],
        dictionary: Some(dictionary),
    }
}

#[test]
fn otlp_profiles_become_cpu_of_spans() {
    let server = Server::start();
    let path = "/v1development/profiles";
    let headers = [("content-type", "application/x-protobuf"), ("content-encoding", "gzip")];
    let answer = server.post(path, &headers, &gzip(&otlp().encode_to_vec()));
    assert_eq!((answer.status, answer.kind.as_str(), answer.body.len()), (200, "application/x-protobuf", 0));
    let flame = server.json(&format!("/api/flame?span={SPAN}"));
    assert_eq!((&flame["total"], &flame["samples"]), (&json!(7 * PERIOD), &json!(7)));
    assert_eq!(flame["profile_type"], "process_cpu:cpu:nanoseconds:cpu:nanoseconds");
    assert_eq!(server.get("/folded?service=shop").text(), "main;work 100000000\n");
    assert_eq!(server.json(&format!("/api/trace/{TRACE}"))["spans"][0]["span"], SPAN);
}

type Break = fn(&mut ExportProfilesServiceRequest);

#[test]
fn an_otlp_profile_with_a_wrong_number_is_left_out_and_said() {
    let server = Server::start();
    let breaks: [(Break, &str); 5] = [
        (|request| sample_of(request).stack_index = 9, "no stack 9"),
        (|request| sample_of(request).link_index = -1, "no link -1"),
        (|request| request.dictionary.as_mut().unwrap().string_table.truncate(3), "no string"),
        (|request| request.dictionary.as_mut().unwrap().function_table.truncate(1), "refers to function"),
        (|request| profile_of(request).time_unix_nano = 1, "older than what is kept"),
    ];
    for (change, says) in breaks {
        let mut request = otlp();
        change(&mut request);
        let headers = [("content-type", "application/x-protobuf")];
        let answer = server.post("/v1development/profiles", &headers, &request.encode_to_vec());
        let partial = ExportProfilesServiceResponse::decode(answer.body.as_slice()).unwrap().partial_success.unwrap();
        assert_eq!((answer.status, partial.rejected_profiles), (200, 1));
        assert!(partial.error_message.contains(says), "{}", partial.error_message);
    }
    assert_eq!(server.json("/api/services")["services"].as_array().unwrap().len(), 0);
}

fn profile_of(request: &mut ExportProfilesServiceRequest) -> &mut Profile {
    &mut request.resource_profiles[0].scope_profiles[0].profiles[0]
}

fn sample_of(request: &mut ExportProfilesServiceRequest) -> &mut Sample {
    &mut profile_of(request).samples[0]
}
