//! Requests that multiply, nest, wait and lie: each is refused or bounded, and the server goes on within its --memory.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{PERIOD, Server, attribute, export, gzip, now, profile, request, span};
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue, any_value};
use opentelemetry_proto::tonic::profiles::v1development as otlp;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::Link;
use prost::Message as _;
use spanprof_core::wire::pprof::{Label, Line, Location, Mapping, Profile};

const PUSH: &str = "/push.v1.PusherService/Push";
const PROTO: (&str, &str) = ("content-type", "application/proto");
const OTLP: (&str, &str) = ("content-type", "application/x-protobuf");
const GZIP: (&str, &str) = ("content-encoding", "gzip");
const LABELS: [(&str, &str); 2] = [("__name__", "process_cpu"), ("service_name", "hostile")];

/// A server with little memory, which must never take more.
struct Small(Server);

impl Small {
    fn start() -> Self {
        Self(Server::with(&["--memory", "128m"]))
    }

    /// Takes a good profile, and has never been larger than it may.
    fn check(&self, after: &str) {
        let answer = self.0.push("shop", &profile(&[(&["main:1"], &[], 1)]));
        assert_eq!(answer.status, 200, "after {after}: {}", answer.text());
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.pid())).unwrap();
        let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        let peak: u64 = peak.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(peak <= 128 << 10, "after {after}: {peak} KiB");
    }

    fn push(&self, profile: &Profile) -> (u16, String) {
        let packed = gzip(&request(&LABELS, gzip(&profile.encode_to_vec())));
        let answer = self.0.post(PUSH, &[PROTO, GZIP], &packed);
        (answer.status, answer.text())
    }

    fn otlp(&self, path: &str, message: &impl prost::Message) -> (u16, String) {
        let answer = self.0.post(path, &[OTLP, GZIP], &gzip(&message.encode_to_vec()));
        (answer.status, answer.text())
    }
}

fn i64_of(index: usize) -> i64 {
    i64::try_from(index).unwrap()
}

/// A profile with one more string, and that string's number.
fn with_string(text: String) -> (Profile, i64) {
    let mut profile = profile(&[(&["main:1", "work:2"], &[], 3)]);
    profile.string_table.push(text);
    let index = i64_of(profile.string_table.len() - 1);
    (profile, index)
}

/// Tables for OTLP profiles: stack 1 has so many frames.
fn dictionary(frames: usize) -> otlp::ProfilesDictionary {
    otlp::ProfilesDictionary {
        string_table: ["", "cpu", "nanoseconds", "work"].map(String::from).into(),
        function_table: vec![otlp::Function::default(), otlp::Function { name_strindex: 3, ..Default::default() }],
        location_table: vec![
            otlp::Location::default(),
            otlp::Location {
                lines: vec![otlp::Line { function_index: 1, ..Default::default() }],
                ..Default::default()
            },
        ],
        stack_table: vec![otlp::Stack::default(), otlp::Stack { location_indices: vec![1; frames] }],
        ..Default::default()
    }
}

fn otlp_profile(samples: usize) -> otlp::Profile {
    let kind = Some(otlp::ValueType { type_strindex: 1, unit_strindex: 2 });
    let sample = otlp::Sample { stack_index: 1, values: vec![PERIOD], ..Default::default() };
    otlp::Profile {
        sample_type: kind,
        period_type: kind,
        period: PERIOD,
        time_unix_nano: now(),
        samples: vec![sample; samples],
        ..Default::default()
    }
}

fn otlp_request(dictionary: otlp::ProfilesDictionary, profiles: Vec<otlp::Profile>) -> ExportProfilesServiceRequest {
    let scope_profiles = vec![otlp::ScopeProfiles { profiles, ..Default::default() }];
    ExportProfilesServiceRequest {
        resource_profiles: vec![otlp::ResourceProfiles { scope_profiles, ..Default::default() }],
        dictionary: Some(dictionary),
    }
}

#[test]
fn what_is_referred_to_often_is_kept_once() {
    let server = Small::start();
    // A string of a megabyte, named by thousands of functions and by as many locations' files.
    let (mut functions, index) = with_string("x".repeat(1 << 20));
    for id in 3..4_000 {
        functions.function.push(spanprof_core::wire::pprof::Function {
            id,
            name: index,
            filename: index,
            ..Default::default()
        });
        functions.location.push(Location {
            id,
            line: vec![Line { function_id: id, line: 1, column: 0 }],
            ..Default::default()
        });
    }
    functions.sample[0].location_id = (3..900).collect();
    assert_eq!(server.push(&functions).0, 200);
    let flame = server.0.json("/api/flame?service=hostile");
    assert_eq!(
        flame["functions"][1]["function"].as_str().or(flame["functions"][1]["name"].as_str()).unwrap().len(),
        4_096
    );
    server.check("a name of many functions");

    let (mut mapped, index) = with_string("y".repeat(1 << 20));
    mapped.mapping.push(Mapping { id: 1, filename: index, ..Default::default() });
    for id in 3..4_000 {
        mapped.location.push(Location { id, mapping_id: 1, address: id, ..Default::default() });
    }
    mapped.sample[0].location_id = (3..900).collect();
    assert_eq!(server.push(&mapped).0, 200);
    server.check("a file of many locations");

    // One stack of a hundred thousand frames in each of twenty thousand samples.
    let (status, text) =
        server.otlp("/v1development/profiles", &otlp_request(dictionary(100_000), vec![otlp_profile(20_000)]));
    assert_eq!((status, text.as_str()), (200, ""));
    server.check("a stack of many samples");

    // The tables of twenty thousand strings, shared by a thousand profiles.
    let mut many = dictionary(3);
    many.string_table.extend((0..20_000).map(|number| number.to_string()));
    let (status, text) = server.otlp("/v1development/profiles", &otlp_request(many, vec![otlp_profile(1); 1_000]));
    assert_eq!((status, text.as_str()), (200, ""));
    server.check("a dictionary of many profiles");

    // A service's name of a megabyte, of two thousand spans.
    let spans: Vec<Span> = (1..2_000)
        .map(|number: u64| {
            let id = format!("{number:016x}");
            span(&id.repeat(2), &id, "", "GET /", 0, 1)
        })
        .collect();
    let (status, text) = server.otlp("/v1/traces", &export(&"s".repeat(1 << 20), spans));
    assert!(status == 200 || status == 413, "{status} {text}");
    server.check("a service of many spans");
    let longest = server.0.json("/api/services")["services"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["service"].as_str().unwrap().len())
        .max();
    assert!(longest <= Some(2_048), "{longest:?}");
}

#[test]
fn what_grows_when_it_is_decoded_is_refused_by_the_bytes_that_it_would_take() {
    let server = Small::start();
    let refused = |(status, text): (u16, String), what: &str| {
        assert_eq!(status, 413, "{what}: {text}");
        assert!(text.contains("bytes"), "{what}: {text}");
        server.check(what);
    };
    // A byte of a packed list is a number of eight.
    let mut packed = profile(&[(&["main:1"], &[], 1)]);
    packed.sample[0].location_id = vec![1; 4 << 20];
    refused(server.push(&packed), "packed numbers");

    // Five thousand label sets of eighty kilobytes.
    let (mut labelled, _) = with_string("v".repeat(2_000));
    let value = i64_of(labelled.string_table.len() - 1);
    let keys: Vec<i64> = (0..26)
        .map(|key| {
            labelled.string_table.push(format!("key{key}"));
            i64_of(labelled.string_table.len() - 1)
        })
        .collect();
    let sample = labelled.sample[0].clone();
    labelled.sample = (0..4_990)
        .map(|number| {
            labelled.string_table.push(number.to_string());
            let own = Label { key: keys[0], str: i64_of(labelled.string_table.len() - 1), num: 0, num_unit: 0 };
            let mut sample = sample.clone();
            sample.label =
                keys[1..].iter().map(|key| Label { key: *key, str: value, num: 0, num_unit: 0 }).chain([own]).collect();
            sample
        })
        .collect();
    refused(server.push(&labelled), "label sets");

    let traced = |change: &dyn Fn(&mut Span)| {
        let mut span = span(&"1".repeat(32), &"2".repeat(16), "", "GET /", 0, 1);
        change(&mut span);
        export("hostile", vec![span])
    };
    let nothing = AnyValue { value: Some(any_value::Value::BoolValue(true)) };
    let array = AnyValue { value: Some(any_value::Value::ArrayValue(ArrayValue { values: vec![nothing; 200_000] })) };
    let array = traced(&|span| span.attributes = vec![KeyValue { value: Some(array.clone()), ..attribute("a", "") }]);
    let (status, text) = server.otlp("/v1/traces", &array);
    // The span is left out where the request has room.
    assert!((status == 413 || status == 200) && text.contains("bytes"), "{status} {text}");
    server.check("an array of attributes");
    let links = traced(&|span| {
        span.links = vec![Link { attributes: vec![KeyValue::default(); 200_000], ..Link::default() }];
    });
    refused(server.otlp("/v1/traces", &links), "attributes of links");
    let ends = traced(&|span| {
        span.attributes = (0..300).map(|key| attribute(&key.to_string(), &"\u{1}".repeat(4_096))).collect()
    });
    let (status, text) = server.otlp("/v1/traces", &ends);
    assert!(status == 200 && text.contains("bytes"), "{status} {text}");
    server.check("control characters");

    // Messages in each other, deeper than any stack.
    let mut nested = Vec::new();
    for _ in 0..200_000 {
        let mut level = vec![0x0a];
        prost::encoding::encode_varint(nested.len() as u64, &mut level);
        if nested.len() > 100_000 {
            break;
        }
        level.extend_from_slice(&nested);
        nested = level;
        if nested.len() > 20_000 {
            break;
        }
    }
    assert_eq!(server.0.post("/v1/traces", &[OTLP], &nested).status, 400);
    server.check("messages in each other");
}

#[test]
fn work_that_multiplies_ends_soon() {
    let server = Small::start();
    // A location of a hundred thousand lines in each of twenty thousand stacks.
    let mut lines = profile(&[(&["main:1", "work:2"], &[], 3)]);
    lines.location[0].line = vec![lines.location[0].line[0]; 50_000];
    let ids = lines.sample[0].location_id.clone();
    for id in 100..20_100 {
        lines.location.push(Location { id, line: lines.location[1].line.clone(), ..Default::default() });
        let mut sample = lines.sample[0].clone();
        sample.location_id = vec![id, ids[0], ids[1]];
        lines.sample.push(sample);
    }
    let (status, text) = server.push(&lines);
    assert!(status == 413, "{status} {text}");
    server.check("a location of many lines");

    // Spans without an id, of a service with a long name.
    let bad: Vec<Span> = vec![Span::default(); 4_000];
    let (status, _) = server.otlp("/v1/traces", &export(&"s".repeat(1 << 20), bad));
    assert_eq!(status, 200);
    let refused = server.0.json("/api/services")["refused"].clone();
    assert_eq!(refused.as_array().unwrap().iter().map(|row| row["count"].as_u64().unwrap()).sum::<u64>(), 4_001);
    assert!(refused.to_string().len() < 10_000);
    server.check("bad spans");
}

#[test]
fn many_bombs_at_once_take_turns_in_the_memory_there_is() {
    let server = Small::start();
    let bomb = gzip(&vec![b';'; 30 << 20]);
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let answer = server.0.post("/ingest?name=hostile", &[GZIP], &bomb);
                assert!([413, 503].contains(&answer.status), "{} {}", answer.status, answer.text());
                assert_eq!(answer.status == 503, answer.headers.contains_key("retry-after"));
            });
        }
    });
    server.check("bombs");
}
