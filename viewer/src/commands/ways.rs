//! Ways of sending beside Push, which other clients take: for `spanprof doctor`, which tries each of them.

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::profiles::v1development as otlp;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use spanprof_core::wire::pprof::{Function, Label, Line, Location, Profile, Sample, ValueType};

use crate::clock::{self, MILLISECOND, SECOND};
use crate::selection::DOCTOR;

/// Whose all of it is said to be, and in a span of which name.
pub(super) const SERVICE: &str = DOCTOR;
pub(super) const SPAN: &str = "doctor";
/// What a sample of it weighs.
pub(super) const PERIOD: i64 = 10 * MILLISECOND;
/// What Grafana's Java agent sent of a program in tests/clients/java; a server must read it to know what it is.
const RECORDING: &[u8] = include_bytes!("doctor.jfr.gz");
const FORM: &str = "multipart/form-data; boundary=spanprof-doctor";
const BYTES: &str = "application/octet-stream";
const PROTOBUF: &str = "application/x-protobuf";

/// A way of sending.
pub(super) struct Way {
    /// What it is, and whose it is.
    pub(super) name: &'static str,
    /// Path and query.
    pub(super) path: String,
    pub(super) content_type: &'static str,
    pub(super) body: Vec<u8>,
    /// The span that a question finds it by.
    pub(super) span_id: Option<u64>,
}

/// All of them; `span_id` and the next ones are of spans that nobody else asks for.
pub(super) fn all(span_id: u64) -> [Way; 7] {
    let now = clock::now();
    let ids = [1, 2, 3].map(|number| span_id.wrapping_add(16 * number));
    let ingest = |format: &str| {
        let (from, until) = (now / SECOND - 1, now / SECOND);
        format!("/ingest?name={SERVICE}&from={from}&until={until}&spyName=spanprof-doctor{format}")
    };
    let way = |name, path, content_type, body, span_id| Way { name, path, content_type, body, span_id };
    [
        way("/ingest, pprof in a form", ingest(""), FORM, form("profile", &pprof(ids[0])), Some(ids[0])),
        way("/ingest, pprof", ingest("&format=pprof"), BYTES, pprof(ids[1]), Some(ids[1])),
        way("/ingest, folded", ingest("&format=folded&sampleRate=100"), "text/plain", b"test 1\n".to_vec(), None),
        way("/ingest, JFR", ingest("&format=jfr"), FORM, form("jfr", RECORDING), None),
        way("OTLP profiles", "/v1development/profiles".into(), PROTOBUF, profiles(ids[2]), Some(ids[2])),
        way("OTLP traces", "/v1/traces".into(), PROTOBUF, traces(span_id, now), None),
        way("OTLP traces, JSON", "/v1/traces".into(), "application/json", traces_in_json(span_id, now), None),
    ]
}

fn form(field: &str, bytes: &[u8]) -> Vec<u8> {
    let head = format!(
        "--spanprof-doctor\r\nContent-Disposition: form-data; name=\"{field}\"; filename=\"{field}\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    [head.as_bytes(), bytes, b"\r\n--spanprof-doctor--\r\n"].concat()
}

/// One sample of one period in a span.
fn pprof(span_id: u64) -> Vec<u8> {
    let texts = ["", "cpu", "nanoseconds", "test", "spanprof", "span_id", &hex(span_id), "span_name", SPAN];
    let cpu = ValueType { r#type: 1, unit: 2 };
    let label = |key, str| Label { key, str, ..Label::default() };
    Profile {
        sample_type: vec![cpu],
        period_type: Some(cpu),
        period: PERIOD,
        time_nanos: clock::now(),
        duration_nanos: SECOND,
        function: vec![Function { id: 1, name: 3, filename: 4, ..Function::default() }],
        location: vec![Location {
            id: 1,
            line: vec![Line { function_id: 1, line: 1, column: 0 }],
            ..Location::default()
        }],
        sample: vec![Sample { location_id: vec![1], value: vec![PERIOD], label: vec![label(5, 6), label(7, 8)] }],
        string_table: texts.map(String::from).into(),
        ..Profile::default()
    }
    .encode_to_vec()
}

/// The same as OTLP has it.
fn profiles(span_id: u64) -> Vec<u8> {
    let texts = ["", "samples", "count", "cpu", "nanoseconds", "test", "spanprof"];
    let dictionary = otlp::ProfilesDictionary {
        mapping_table: vec![otlp::Mapping::default()],
        function_table: vec![
            otlp::Function::default(),
            otlp::Function { name_strindex: 5, filename_strindex: 6, ..otlp::Function::default() },
        ],
        location_table: vec![
            otlp::Location::default(),
            otlp::Location {
                lines: vec![otlp::Line { function_index: 1, line: 1, column: 0 }],
                ..otlp::Location::default()
            },
        ],
        link_table: vec![
            otlp::Link::default(),
            otlp::Link { trace_id: trace_id(span_id), span_id: span_id.to_be_bytes().into() },
        ],
        stack_table: vec![otlp::Stack::default(), otlp::Stack { location_indices: vec![1] }],
        attribute_table: vec![otlp::KeyValueAndUnit::default()],
        string_table: texts.map(String::from).into(),
    };
    let value = |type_strindex, unit_strindex| Some(otlp::ValueType { type_strindex, unit_strindex });
    let now = clock::now().unsigned_abs();
    let profile = otlp::Profile {
        sample_type: value(1, 2),
        period_type: value(3, 4),
        period: PERIOD,
        time_unix_nano: now,
        duration_nano: SECOND.unsigned_abs(),
        profile_id: trace_id(span_id),
        samples: vec![otlp::Sample { stack_index: 1, link_index: 1, values: vec![1], ..otlp::Sample::default() }],
        ..otlp::Profile::default()
    };
    let scope_profiles = vec![otlp::ScopeProfiles { profiles: vec![profile], ..otlp::ScopeProfiles::default() }];
    let resource_profiles =
        vec![otlp::ResourceProfiles { resource: resource(), scope_profiles, ..otlp::ResourceProfiles::default() }];
    ExportProfilesServiceRequest { resource_profiles, dictionary: Some(dictionary) }.encode_to_vec()
}

fn resource() -> Option<Resource> {
    let value = Some(AnyValue { value: Some(any_value::Value::StringValue(SERVICE.into())) });
    let attributes = vec![KeyValue { key: "service.name".into(), value, ..KeyValue::default() }];
    Some(Resource { attributes, ..Resource::default() })
}

fn traces(span_id: u64, now: i64) -> Vec<u8> {
    let span = Span {
        trace_id: trace_id(span_id),
        span_id: span_id.to_be_bytes().into(),
        name: SPAN.into(),
        kind: 2,
        start_time_unix_nano: (now - SECOND).unsigned_abs(),
        end_time_unix_nano: now.unsigned_abs(),
        ..Span::default()
    };
    let scope_spans = vec![ScopeSpans { spans: vec![span], ..ScopeSpans::default() }];
    let resource_spans = vec![ResourceSpans { resource: resource(), scope_spans, ..ResourceSpans::default() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

/// By the rules of protobuf's JSON, with ids in hex as OTLP has them.
fn traces_in_json(span_id: u64, now: i64) -> Vec<u8> {
    let span = serde_json::json!({
        "traceId": format!("{:032x}", u128::from(span_id)),
        "spanId": hex(span_id),
        "name": SPAN,
        "kind": 2,
        "startTimeUnixNano": (now - SECOND).to_string(),
        "endTimeUnixNano": now.to_string(),
    });
    let name = serde_json::json!({ "key": "service.name", "value": { "stringValue": SERVICE } });
    let of_service = serde_json::json!({ "resource": { "attributes": [name] }, "scopeSpans": [{ "spans": [span] }] });
    serde_json::json!({ "resourceSpans": [of_service] }).to_string().into_bytes()
}

fn hex(span_id: u64) -> String {
    format!("{span_id:016x}")
}

fn trace_id(span_id: u64) -> Vec<u8> {
    u128::from(span_id).to_be_bytes().into()
}
