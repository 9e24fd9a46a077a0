//! What the property tests and fuzz/ call: each takes any bytes and panics if a promise is broken. No public interface.

#![allow(clippy::expect_used, reason = "a broken promise ends the test")]

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::Keeper;
use super::Kept;
use super::Permits;
use super::ingest;
use super::jfr;
use super::labels::Labels;
use super::otlp;
use super::pprof;
use super::push;
use super::receiver::Receiver;
use crate::http::allowed::Allowed;
use crate::http::body::Format;
use crate::http::refusal::Refusal;
use crate::store::{Profile, StorageLimits, Store};
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;

/// What is taken is stored as well, where the least --memory has room.
static RECEIVER: LazyLock<Receiver> = LazyLock::new(|| {
    let limits = StorageLimits::new(16 << 20);
    let store = Store::open(None, &limits).expect("a store in memory opens");
    let keeper = Keeper::Known(Kept { store, profilers: Arc::default(), _owner: None });
    Receiver::new(keeper, Arc::default(), Duration::MAX, &Permits::new(256 << 20))
});

/// A profile, plain or gzip, makes rows that refer to each other rightly, or a refusal.
pub(crate) fn profile(data: &[u8]) {
    let labels = Labels::read([("__name__", "process_cpu"), ("service_name", "shop")]);
    let labels = labels.expect("these are labels");
    match pprof::read(data, &labels, (i64::MIN, i64::MAX), &mut Allowed::plenty()) {
        Ok(profile) => check(profile),
        Err(refusal) => check_refusal(&refusal),
    }
}

/// A PushRequest in JSON, OTLP's traces and profiles in both formats: the first byte says which.
pub(crate) fn request(data: &[u8]) {
    let Some((which, body)) = data.split_first() else { return };
    let formats = [Format::Protobuf, Format::Json];
    let format = formats[usize::from(which & 1)];
    let refused = match which >> 1 & 3 {
        0 => otlp::take_any::<ExportTraceServiceRequest>(body, format, &RECEIVER),
        1 => otlp::take_any::<ExportProfilesServiceRequest>(body, format, &RECEIVER),
        _ => push::take_any(body, format, &RECEIVER),
    };
    if let Err(refusal) = refused {
        check_refusal(&refusal);
    }
}

/// A recording of Java Flight Recorder: two bytes say how many bytes its snapshot of labels has, which is before it.
pub(crate) fn recording(data: &[u8]) {
    let Some((length, rest)) = data.split_first_chunk() else { return };
    let (labels, recording) = rest.split_at(usize::from(u16::from_be_bytes(*length)).min(rest.len()));
    let upload = jfr::Upload {
        recording,
        labels,
        service: "shop",
        series: &[],
        start: None,
        sample_rate: None,
        mark: None,
        times: (i64::MIN, i64::MAX),
    };
    match jfr::read(&upload, &mut Allowed::plenty()) {
        Ok(profiles) => profiles.into_iter().for_each(check),
        Err(refusal) => check_refusal(&refusal),
    }
}

/// A line as the query of /ingest, the rest as its body.
pub(crate) fn ingested(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (query, body) = data.split_at(end);
    let body = body.get(1..).unwrap_or_default();
    if let Err(refusal) = ingest::take_any(&String::from_utf8_lossy(query), body, &RECEIVER) {
        check_refusal(&refusal);
    }
}

fn check_refusal(refusal: &Refusal) {
    assert!(refusal.status().is_client_error(), "{refusal:?}");
    assert!(!refusal.message().is_empty() && refusal.message().len() < 4_096, "{refusal:?}");
}

fn check(profile: Profile) {
    for (at, node) in profile.stacks.iter().enumerate() {
        assert!(node.parent <= at && node.function < profile.functions.len(), "{node:?} at {at}");
    }
    for sample in profile.parts.iter().flat_map(|part| &part.samples) {
        assert!((1..=profile.stacks.len()).contains(&sample.stack), "{sample:?}");
        assert!(sample.value > 0 && sample.count > 0, "{sample:?}");
    }
    RECEIVER.insert_profiles(vec![profile]).expect("what was read can be stored");
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
    use opentelemetry_proto::tonic::resource::v1::Resource;
    use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
    use std::io::Read as _;

    use flate2::read::MultiGzDecoder;
    use proptest::prelude::*;
    use prost::Message as _;
    use spanprof_core::wire::pprof::{Function, Label, Line, Location, Mapping, Profile as Pprof, Sample, ValueType};

    use super::*;

    /// What mostly holds, and one time in sixty does not.
    fn mostly<T: std::fmt::Debug + Clone + 'static>(
        right: impl Strategy<Value = T> + 'static,
        wrong: impl Strategy<Value = T> + 'static,
    ) -> impl Strategy<Value = T> {
        prop_oneof![59 => right, 1 => wrong]
    }

    /// A profile of three functions and three locations, which mostly refers to what is there.
    fn profiles() -> impl Strategy<Value = Pprof> {
        let string = || mostly(0_i64..8, any::<i64>());
        let id = || mostly(1_u64..4, any::<u64>());
        let weight = || mostly(0_i64..9, any::<i64>());
        let label = (prop_oneof![6 => 3_i64..5, 1 => 5_i64..8], string());
        let sample = (
            prop::collection::vec(id(), 0..5),
            mostly(
                prop::collection::vec(prop_oneof![weight(), any::<i64>()], 2),
                prop::collection::vec(weight(), 0..4),
            ),
            prop::collection::vec(label, 0..3),
        );
        let lines = prop::collection::vec((id(), any::<i64>()), 0..3);
        (
            prop::collection::vec(sample, 0..9),
            prop::collection::vec((mostly(Just(0), id()), any::<u64>(), lines), 3),
            prop::collection::vec((mostly(Just(0), id()), string(), string()), 3),
            prop::collection::vec("[a-z_]{0,9}|[0-9a-f]{16}", 3),
            (string(), string(), weight(), any::<i64>()),
        )
            .prop_map(|(samples, locations, functions, strings, (kind, unit, period, time_nanos))| {
                let named = ["", "samples", "count", "span_id", "trace_id"].map(String::from);
                let value_type = |r#type, unit| ValueType { r#type, unit };
                Pprof {
                    sample_type: vec![value_type(1, 2), value_type(kind, unit)],
                    sample: samples
                        .into_iter()
                        .map(|(location_id, value, labels)| Sample {
                            location_id,
                            value,
                            label: labels
                                .into_iter()
                                .map(|(key, str)| Label { key, str, num: 0, num_unit: 0 })
                                .collect(),
                        })
                        .collect(),
                    mapping: vec![Mapping { id: 1, filename: kind, ..Mapping::default() }],
                    // An id of 0 stands for the one that is due.
                    location: (1..)
                        .zip(locations)
                        .map(|(due, (id, address, lines))| Location {
                            id: if id == 0 { due } else { id },
                            mapping_id: address % 2,
                            address: address | 1,
                            line: lines
                                .into_iter()
                                .map(|(function_id, line)| Line { function_id, line, column: 0 })
                                .collect(),
                            is_folded: false,
                        })
                        .collect(),
                    function: (1..)
                        .zip(functions)
                        .map(|(due, (id, name, filename))| Function {
                            id: if id == 0 { due } else { id },
                            name,
                            filename,
                            ..Function::default()
                        })
                        .collect(),
                    string_table: named.into_iter().chain(strings).collect(),
                    time_nanos,
                    period_type: Some(value_type(kind, unit)),
                    period,
                    ..Pprof::default()
                }
            })
    }

    /// An export of spans with any ids, times and names.
    fn exports() -> impl Strategy<Value = ExportTraceServiceRequest> {
        let bytes = |length| prop::collection::vec(any::<u8>(), length);
        let span = (bytes(0..18), bytes(0..10), bytes(0..10), ".{0,9}", any::<u64>(), any::<u64>(), any::<i32>());
        (prop::collection::vec(span, 0..5), ".{0,9}", ".{0,9}").prop_map(|(spans, key, text)| {
            let value = Some(AnyValue { value: Some(any_value::Value::StringValue(text)) });
            let attributes = vec![KeyValue { key, value, ..KeyValue::default() }];
            let spans = spans.into_iter().map(|(trace_id, span_id, parent_span_id, name, start, end, kind)| Span {
                trace_id,
                span_id,
                parent_span_id,
                name,
                start_time_unix_nano: start,
                end_time_unix_nano: end,
                kind,
                attributes: attributes.clone(),
                ..Span::default()
            });
            let scope_spans = vec![ScopeSpans { spans: spans.collect(), ..ScopeSpans::default() }];
            let resource = Some(Resource { attributes: attributes.clone(), ..Resource::default() });
            let resource_spans = vec![ResourceSpans { resource, scope_spans, ..ResourceSpans::default() }];
            ExportTraceServiceRequest { resource_spans }
        })
    }

    /// The bytes with some changed, and cut off.
    fn harmed(
        mut bytes: Vec<u8>,
        changes: Vec<(prop::sample::Index, u8)>,
        end: Option<prop::sample::Index>,
    ) -> Vec<u8> {
        if !bytes.is_empty() {
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let end = end.map_or(bytes.len(), |end| end.index(bytes.len()) + 1);
            bytes.truncate(end);
        }
        bytes
    }

    /// What viewer/tests/java.rs compares with Java's tools.
    static RECORDINGS: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
        let read = |name: &str| {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/java").join(name);
            std::fs::read(path).expect("it is there")
        };
        let upload = read("labelled.upload");
        let packed = |name: &str| {
            let head = format!("name=\"{name}\"");
            let start = upload.windows(head.len()).position(|part| part == head.as_bytes()).expect("it is in the form");
            let start =
                start + upload[start..].windows(4).position(|part| part == b"\r\n\r\n").expect("its head ends") + 4;
            let end = upload[start..].windows(4).position(|part| part == b"\r\n--").expect("it ends");
            let mut bytes = Vec::new();
            MultiGzDecoder::new(&upload[start..start + end]).read_to_end(&mut bytes).expect("it is gzip");
            bytes
        };
        let labels = packed("labels");
        let length = u16::try_from(labels.len()).expect("it is short").to_be_bytes();
        let mut java = vec![0, 0];
        MultiGzDecoder::new(&read("jdk.jfr.gz")[..]).read_to_end(&mut java).expect("it is gzip");
        [[&length[..], &labels, &packed("jfr")].concat(), java]
    });

    fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
        prop::collection::vec(any::<(prop::sample::Index, u8)>(), 0..4)
    }

    proptest! {
        #[test]
        fn any_bytes_are_rows_or_a_refusal(data in prop::collection::vec(any::<u8>(), 0..300)) {
            profile(&data);
            request(&data);
            ingested(&data);
        }

        #[test]
        fn any_profile_is_rows_or_a_refusal(pprof in profiles(), changes in changes(), end in any::<Option<prop::sample::Index>>()) {
            let bytes = pprof.encode_to_vec();
            profile(&bytes);
            profile(&harmed(bytes, changes, end));
        }

        #[test]
        fn any_export_of_spans_is_stored_or_refused(
            export in exports(), changes in changes(), end in any::<Option<prop::sample::Index>>(),
        ) {
            let json = serde_json::to_vec(&export).expect("it is JSON");
            for (format, bytes) in [(0, export.encode_to_vec()), (1, json)] {
                let framed = |bytes: &[u8]| [&[format], bytes].concat();
                request(&framed(&bytes));
                request(&framed(&harmed(bytes, changes.clone(), end)));
            }
        }

        #[test]
        fn any_folded_lines_are_stored_or_refused(query in "name=[a-z{}=,]{0,12}(&(units|sampleRate|from|format)=[a-z0-9-]{0,9}){0,3}", lines in "([a-z;: ]{0,12}[0-9-]{0,20}\n?){0,6}") {
            ingested(format!("{query}\n{lines}").as_bytes());
        }
    }
    proptest! {
        // They are long.
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn any_recording_is_rows_or_a_refusal(
            which in 0..2_usize, changes in changes(), end in any::<Option<prop::sample::Index>>(),
        ) {
            // The first is what a client sent, with its snapshot; the second Java's own.
            recording(&harmed(RECORDINGS[which].clone(), changes, end));
        }
    }
}
