//! Requests that multiply, nest, wait and lie: each is refused or bounded, and the server goes on within its --memory.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed; // a flag that orders nothing
use std::time::{Duration, Instant};

use common::{PERIOD, Server, attribute, export, gzip, now, profile, request, span, wall};
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

    // One stack of a hundred thousand frames in each of five thousand samples.
    let (status, text) =
        server.otlp("/v1development/profiles", &otlp_request(dictionary(100_000), vec![otlp_profile(5_000)]));
    assert_eq!((status, text.as_str()), (200, ""));
    server.check("a stack of many samples");

    // The tables of twenty thousand strings, shared by three hundred profiles.
    let mut many = dictionary(3);
    many.string_table.extend((0..20_000).map(|number| number.to_string()));
    let (status, text) = server.otlp("/v1development/profiles", &otlp_request(many, vec![otlp_profile(1); 300]));
    assert_eq!((status, text.as_str()), (200, ""));
    server.check("a dictionary of many profiles");

    // A service's name of a megabyte, of five hundred spans.
    let spans: Vec<Span> = (1..500)
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
    packed.sample[0].location_id = vec![1; 2 << 20];
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
    // A location of a hundred thousand lines in each of two thousand stacks.
    let mut lines = profile(&[(&["main:1", "work:2"], &[], 3)]);
    lines.location[0].line = vec![lines.location[0].line[0]; 50_000];
    let ids = lines.sample[0].location_id.clone();
    for id in 100..2_100 {
        lines.location.push(Location { id, line: lines.location[1].line.clone(), ..Default::default() });
        let mut sample = lines.sample[0].clone();
        sample.location_id = vec![id, ids[0], ids[1]];
        lines.sample.push(sample);
    }
    let (status, text) = server.push(&lines);
    assert_eq!(status, 200, "{text}");
    server.check("a location of many lines");

    // Spans without an id, of a service with a long name.
    let bad: Vec<Span> = vec![Span::default(); 4_000];
    let (status, _) = server.otlp("/v1/traces", &export(&"s".repeat(1 << 20), bad));
    assert_eq!(status, 200);
    let refused = server.0.json("/api/services")["refused"].clone();
    assert_eq!(refused.as_array().unwrap().iter().map(|row| row["count"].as_u64().unwrap()).sum::<u64>(), 4_000);
    assert!(refused.to_string().len() < 10_000);
    server.check("bad spans");
}

#[test]
fn many_bombs_at_once_take_turns_in_the_memory_there_is() {
    let server = Small::start();
    let bomb = gzip(&vec![b';'; 20 << 20]);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let answer = server.0.post("/ingest?name=hostile", &[GZIP], &bomb);
                assert!([413, 503].contains(&answer.status), "{} {}", answer.status, answer.text());
                assert_eq!(answer.status == 503, answer.headers.contains_key("retry-after"));
            });
        }
    });
    server.check("bombs");
}

#[test]
fn questions_are_bounded_as_uploads_are() {
    let server = Small::start();
    // Many names, each long, in stacks that share nothing.
    for round in 0..3 {
        let names: Vec<Vec<String>> = (0..150)
            .map(|stack| (0..20).map(|frame| format!("{round}_{stack}_{frame}_{}:1", "n".repeat(400))).collect())
            .collect();
        let stacks: Vec<Vec<&str>> = names.iter().map(|names| names.iter().map(String::as_str).collect()).collect();
        let rows: Vec<common::Row<'_>> = stacks.iter().map(|stack| (&stack[..], &[][..], 1)).collect();
        let answer = server.0.push("churn", &profile(&rows));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let asked = ["/api/flame", "/api/top", "/api/diff", "/folded", "/profile.pb.gz", "/flame", "/flame.svg"];
    std::thread::scope(|scope| {
        for path in asked.iter().cycle().take(14) {
            let server = &server;
            scope.spawn(move || {
                let answer = server.0.get(&format!("{path}?service=churn"));
                // A file has all frames of all stacks, and is refused where that is too much.
                let is_too_large = answer.status == 422 && answer.text().contains("choose less");
                let is_fine = [200, 503].contains(&answer.status) || is_too_large;
                assert!(is_fine, "{path} {}: {}", answer.status, answer.text());
            });
        }
    });
    // What was left out is one frame, so that the sum is right.
    assert_eq!(server.0.json("/api/flame?service=churn")["total"], 450 * PERIOD);
    server.check("heavy questions");

    let select = |selector: &str| {
        let query: String = selector.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = server.0.get(&format!("/pyroscope/render?query={query}"));
        (answer.status, answer.text())
    };
    let profile_type = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";
    let (status, text) = select(&format!("{profile_type}{{a=~`.{{9999}}`}}"));
    assert!(status == 400 && text.contains("would take more than"), "{status} {text}");
    let (status, text) = select(&format!("{profile_type}{{{}}}", "a=~`b`,".repeat(200)));
    assert!(status == 400 && text.contains("more than 20 conditions"), "{status} {text}");
    assert_eq!(server.0.get_with("/api/diff", ("sec-fetch-site", "cross-site")).status, 403);
    let attributes: String = (0..1_200).map(|key| format!("&attr.{key}=1")).collect();
    let answer = server.0.get(&format!("/api/flame?service=churn{attributes}"));
    assert!(answer.status == 400 && answer.text().contains("one more than 20"), "{}", answer.text());
}

#[test]
fn names_that_have_no_room_are_one_row() {
    let server = Small::start();
    // Each as long as may be, of a character that takes six in a page and three in a link.
    for round in 0..11 {
        let named = |number: usize| Span {
            name: format!("{number}{}", "\"".repeat(4_000)),
            ..span(&format!("{:032x}", number + 1), &format!("{:016x}", number + 1), "", "", 0, 1)
        };
        assert_eq!(server.0.trace("churn", (round * 400..(round + 1) * 400).map(named).collect()).status, 200);
    }
    let sum = |rows: &serde_json::Value| -> i64 {
        rows.as_array().unwrap().iter().map(|row| row["count"].as_i64().unwrap()).sum()
    };
    let names = server.0.json("/api/spans?service=churn");
    assert_eq!(names["rest"]["name"], "(too small to be shown)");
    assert_eq!(sum(&names["spans"]) + names["rest"]["count"].as_i64().unwrap(), 4_400);
    for page in ["/spans?service=churn", "/spans?service=churn&sort=name&type=memory"] {
        assert!(server.0.page(page).contains("(too small to be shown)"));
    }
    server.check("long names");
}

const STATES: [&str; 14] =
    ["cpu", "lock", "gil", "gvl", "io", "sleep", "await", "busy", "child", "name", "runtime", "gc", "quantum", ""];

#[test]
fn stacks_in_all_states_take_no_more_than_an_answer_may() {
    let server = Small::start();
    for round in 0..3 {
        let names: Vec<Vec<String>> = (0..150)
            .map(|stack| (0..20).map(|frame| format!("{round}_{stack}_{frame}_{}:1", "n".repeat(400))).collect())
            .collect();
        let stacks: Vec<Vec<&str>> = names.iter().map(|names| names.iter().map(String::as_str).collect()).collect();
        let rows: Vec<common::WallRow<'_>> =
            stacks.iter().flat_map(|stack| STATES.map(|state| (&stack[..], &[][..], state, 1, 10))).collect();
        let answer = server.0.push_as("wall", "churn", &wall(&rows));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let asked = ["/api/flame", "/api/top", "/api/diff", "/folded", "/flame"];
    std::thread::scope(|scope| {
        for path in asked.iter().cycle().take(10) {
            let server = &server;
            scope.spawn(move || {
                let answer = server.0.get(&format!("{path}?service=churn&type=wall"));
                let is_too_large = answer.status == 422 && answer.text().contains("choose less");
                let is_fine = [200, 503].contains(&answer.status) || is_too_large;
                assert!(is_fine, "{path} {}: {}", answer.status, answer.text());
            });
        }
    });
    let flame = server.0.json("/api/flame?service=churn&type=wall");
    assert_eq!(flame["total"], 450 * 14 * PERIOD);
    // The states of what was left out are those of one frame.
    let states: Vec<i64> = flame["states"].as_object().unwrap().values().map(|value| value.as_i64().unwrap()).collect();
    assert_eq!(states, [450 * PERIOD; 14]);
    assert_eq!(flame["frames"].as_array().unwrap().len(), flame["states_of_frames"].as_array().unwrap().len());
    server.check("stacks in all states");
}

#[test]
fn names_with_all_states_that_have_no_room_are_one_row() {
    let server = Small::start();
    for round in 0..2 {
        let id = |number: usize| (format!("{:032x}", number + 1), format!("{:016x}", number + 1));
        let numbers = round * 250..(round + 1) * 250;
        let named = |number: usize| {
            let (trace, id) = id(number);
            Span { name: format!("{number}{}", "\"".repeat(4_000)), ..span(&trace, &id, "", "", 0, 1_000) }
        };
        assert_eq!(server.0.trace("churn", numbers.clone().map(named).collect()).status, 200);
        let ids: Vec<String> = numbers.map(|number| id(number).1).collect();
        let labels: Vec<[(&str, &str); 1]> = ids.iter().map(|id| [("span_id", id.as_str())]).collect();
        let rows: Vec<common::WallRow<'_>> =
            labels.iter().flat_map(|labels| STATES.map(|state| (&["main:1"][..], &labels[..], state, 1, 10))).collect();
        let answer = server.0.push_as("wall", "churn", &wall(&rows));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let names = server.0.json("/api/spans?service=churn");
    assert_eq!(names["rest"]["name"], "(too small to be shown)");
    let rows = names["spans"].as_array().unwrap().iter().chain([&names["rest"]]);
    let io: i64 = rows.map(|row| row["states"]["io"].as_i64().unwrap()).sum();
    assert_eq!((io, names["states"]["io"].as_i64().unwrap()), (500 * PERIOD, 500 * PERIOD));
    for page in ["/spans?service=churn", "/spans?service=churn&sort=in.io&type=wall"] {
        assert!(server.0.page(page).contains("(too small to be shown)"));
    }
    server.check("long names with all states");
}

/// A large profile of 70,000 stacks, no two of which are alike.
fn distinct_stacks() -> Profile {
    let mut profile = profile(&[(&["main:1", "work:2"], &[], 1)]);
    for id in 3..=300 {
        let line = vec![Line { function_id: 1 + id % 2, line: i64::try_from(id).unwrap(), column: 0 }];
        profile.location.push(Location { id, line, ..Location::default() });
    }
    let sample = profile.sample[0].clone();
    // Innermost first; its last two tell a sample from all others, so that no two have a frame's stack in common.
    let stacks = (0..1_200_u64).map(|number| {
        let ends = (0..60).map(|at| 1 + (number * 7 + at * number) % 300).chain([1 + number % 300, 1 + number / 300]);
        spanprof_core::wire::pprof::Sample { location_id: ends.collect(), ..sample.clone() }
    });
    profile.sample = stacks.collect();
    // As it is sent it is large too.
    profile.string_table.push("x".repeat(256 << 10));
    profile
}

#[test]
fn a_large_upload_gets_in_beside_small_ones_which_are_answered_meanwhile() {
    let server = Small::start();
    let large = request(&LABELS, distinct_stacks().encode_to_vec());
    let address = server.0.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST {PUSH} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/proto\r\ncontent-length: {}\r\n\r\n",
        large.len()
    );
    let (first, rest) = large.split_at(large.len() - 1);
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(first).unwrap();
    let mut small = 0;
    let mut push = || {
        small += 1;
        assert_eq!(server.0.push("shop", &profile(&[(&["main:1"], &[], 1)])).status, 200);
    };
    // It is there but for a byte, and then is worked on.
    push();
    stream.write_all(rest).unwrap();
    let answer = std::thread::spawn(move || {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    push();
    while !answer.is_finished() {
        push();
    }
    let answer = answer.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let services = server.0.json("/api/services");
    let profiles = |service: &str| {
        services["services"].as_array().unwrap().iter().find(|row| row["service"] == service).unwrap()["profiles"]
            .clone()
    };
    assert_eq!((profiles("hostile"), profiles("shop")), (1.into(), small.into()));
    assert_eq!(server.0.json("/api/flame?service=hostile")["total"], 1_200 * PERIOD);
    server.check("a large upload beside small ones");
}

#[test]
fn nobody_speaks_for_another() {
    let server = Server::start();
    // A sample that names another service does not become that one's.
    let taken = profile(&[(&["evil:1"], &[("service_name", "victim"), ("__name__", "process_cpu")], 1)]);
    assert_eq!(server.push("attacker", &taken).status, 200);
    assert_eq!(server.push("victim", &profile(&[(&["main:1"], &[], 2)])).status, 200);
    assert_eq!(server.json("/api/flame?service=victim")["total"], 2 * PERIOD);
    assert_eq!(server.json("/api/flame?service=attacker")["total"], PERIOD);

    // The same ids of two services are two spans.
    let (trace, id) = ("1".repeat(32), "2".repeat(16));
    assert_eq!(server.trace("attacker", vec![span(&trace, &id, "", "GET /evil", 0, 9)]).status, 200);
    assert_eq!(server.trace("victim", vec![span(&trace, &id, "", "GET /cart", 0, 5)]).status, 200);
    let spans = server.json(&format!("/api/trace/{trace}"))["spans"].as_array().unwrap().len();
    assert_eq!(spans, 2);

    // A span that ends at the end of all times would never be forgotten.
    let mut endless = span(&trace, &"3".repeat(16), "", "endless", 0, 1);
    endless.end_time_unix_nano = (1 << 63) - 1;
    let answer = server.trace("attacker", vec![endless]);
    assert!(answer.status == 200 && answer.text().contains("ahead of this machine's clock"), "{}", answer.text());

    // Sums of the largest values stay numbers.
    let mut huge = profile(&[(&["main:1"], &[("span_id", &id), ("trace_id", &trace)], 1)]);
    huge.sample[0].value = vec![1 << 53];
    huge.sample = vec![huge.sample[0].clone(); 2_000];
    assert_eq!(server.push("victim", &huge).status, 200);
    for path in ["/api/flame?service=victim", "/api/top?service=victim", "/api/spans?service=victim", "/api/services"] {
        server.json(path);
    }
    server.json(&format!("/api/trace/{trace}"));
    server.json("/api/traces?service=victim&sort=cpu");
    assert!(server.json("/api/flame?service=victim")["total"].as_i64().unwrap() > 1 << 62);

    // A name that ends with a number is no second column.
    assert_eq!(server.push("svg", &profile(&[(&["main:1", "sleep 100:1"], &[], 3)])).status, 200);
    let svg = server.get("/flame.svg?service=svg").text();
    assert!(svg.contains("sleep\u{a0}100") && !svg.contains("%; +"), "{svg}");
}

#[test]
fn what_is_sent_again_counts_once() {
    let server = Server::start();
    let raw = gzip(&profile(&[(&["main:1"], &[], 1)]).encode_to_vec());
    let body = request(&LABELS, raw.clone());
    let other = request(&[LABELS[0], ("service_name", "other")], raw);
    for _ in 0..3 {
        assert_eq!(server.post(PUSH, &[PROTO], &body).status, 200);
        assert_eq!(server.post(PUSH, &[PROTO], &other).status, 200);
    }
    let profiles = otlp_request(dictionary(2), vec![otlp_profile(1), otlp_profile(1)]).encode_to_vec();
    let from = common::now() / 60_000_000_000 * 60;
    for _ in 0..2 {
        assert_eq!(server.post("/v1development/profiles", &[OTLP], &profiles).status, 200);
        let lines = server.post("/ingest?name=lines", &[], b"main;work 1\n");
        assert_eq!(lines.status, 200);
        let of_a_time = server.post(&format!("/ingest?name=of_a_time&from={from}&until={from}"), &[], b"main;work 1\n");
        assert_eq!(of_a_time.status, 200);
    }
    let services = server.json("/api/services")["services"].clone();
    let counts: std::collections::BTreeMap<_, _> = services
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["service"].as_str().unwrap(), row["profiles"].as_i64().unwrap()))
        .collect();
    // The lines have no time of their own, so the second ones may be another measurement.
    assert_eq!(counts, [("hostile", 1), ("lines", 2), ("of_a_time", 1), ("other", 1), ("unknown_service", 2)].into());
    let metrics = server.get("/metrics").text();
    assert!(metrics.contains("\nspanprof_profiles_repeated_total 7\n"), "{metrics}");
}

#[test]
fn a_profile_with_an_id_counts_once_in_whatever_batch_it_comes_again() {
    let server = Server::start();
    let with_id = |id: u8| otlp::Profile { profile_id: vec![id; 16], ..otlp_profile(1) };
    let (first, second, third) = (with_id(1), with_id(2), with_id(3));
    let batches =
        [vec![first.clone()], vec![second.clone(), first.clone()], vec![third, second.clone(), first], vec![second]];
    for batch in batches {
        let batch = otlp_request(dictionary(2), batch).encode_to_vec();
        assert_eq!(server.post("/v1development/profiles", &[OTLP], &batch).status, 200);
    }
    assert_eq!(server.json("/api/services")["services"][0]["profiles"], 3);
    let metrics = server.get("/metrics").text();
    assert!(metrics.contains("\nspanprof_profiles_repeated_total 4\n"), "{metrics}");
}

#[test]
fn an_id_that_says_too_little_drops_nothing() {
    // One id for two sample types, and zeros for none, without a time.
    let of_type = |kind, id: u8, time| otlp::Profile {
        profile_id: vec![id; 16],
        sample_type: Some(otlp::ValueType { type_strindex: kind, unit_strindex: 0 }),
        time_unix_nano: time,
        ..otlp_profile(1)
    };
    let time = otlp_profile(1).time_unix_nano;
    let server = Server::start();
    for (kinds, id, time) in [([1, 2], 1, time), ([1, 1], 0, 0), ([1, 2], 0, 0)] {
        let profiles = kinds.map(|kind| of_type(kind, id, time));
        let mut dictionary = dictionary(2);
        dictionary.string_table.extend(["first".to_owned(), "second".to_owned()]);
        // After the four that are there.
        let words = 3;
        let profiles = profiles.map(|mut profile| {
            profile.sample_type.as_mut().unwrap().type_strindex += words;
            profile
        });
        let batch = otlp_request(dictionary, profiles.to_vec()).encode_to_vec();
        let answer = server.post("/v1development/profiles", &[OTLP], &batch);
        assert!(answer.status == 200 && answer.text().is_empty(), "{}", answer.text());
    }
    let metrics = server.get("/metrics").text();
    assert!(metrics.contains("\nspanprof_profiles_repeated_total 0\n"), "{metrics}");
    assert!(metrics.contains("\nspanprof_profiles_stored_total 6\n"), "{metrics}");
}

#[test]
fn a_tenant_is_made_when_something_of_it_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("spanprof.db");
    let server = Server::with(&["--data", file.to_str().unwrap()]);
    for number in 0..40 {
        assert_eq!(server.get(&format!("/tenant/get{number}/ingest")).status, 405);
        let refused = server.post(&format!("/tenant/bad{number}/push.v1.PusherService/Push"), &[PROTO], b"hello");
        assert_eq!(refused.status, 400);
        let nothing = export("shop", vec![Span::default()]).encode_to_vec();
        assert_eq!(server.post(&format!("/tenant/none{number}/v1/traces"), &[OTLP], &nothing).status, 200);
        let empty = profile(&[]).encode_to_vec();
        let path = format!("/tenant/empty{number}/ingest?name=shop&format=pprof&spyName=gospy");
        assert_eq!(server.post(&path, &[], &empty).status, 200);
    }
    assert!(!folder.path().join("spanprof.db.tenants").exists());
    let body = request(&LABELS, profile(&[(&["main:1"], &[], 1)]).encode_to_vec());
    assert_eq!(server.post("/tenant/real/push.v1.PusherService/Push", &[PROTO], &body).status, 200);
    let metrics = server.get("/metrics").text();
    assert!(metrics.contains("\nspanprof_tenants 2\n"), "{metrics}");
    assert!(metrics.contains("reason=\"invalid\"} 80\n") || metrics.contains("reason=\"invalid\"} 40\n"), "{metrics}");
    assert_eq!(server.json("/tenant/real/api/services")["services"][0]["service"], "hostile");

    // Two processes on one file would lose what the other remembers.
    let second =
        common::spanprof().args(["--listen", "127.0.0.1:0", "--data", file.to_str().unwrap()]).output().unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(said.contains("another spanprof uses it") && said.lines().count() == 1, "{said}");
}

/// A server with so few files that it takes 32 connections at once, and its address.
fn crowded() -> (Server, String) {
    let script = format!("ulimit -n 64; exec {} \"$@\"", env!("CARGO_BIN_EXE_spanprof"));
    let mut command = Command::new("bash");
    command.args(["-c", &script, "bash"]);
    let server = Server::run(command, &[]);
    let address = server.url.rsplit('/').next().unwrap().to_owned();
    (server, address)
}

/// What one address may have of the 32 places.
const PLACES: usize = 32 / 4 * 3;

fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    loop {
        match stream.read(&mut [0; 1_024]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn connections_that_say_nothing_make_room_for_others() {
    let (_server, address) = crowded();
    let half = || {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(b"GET /ready HTTP/1.1\r\nhost: localhost\r\n").unwrap();
        stream
    };
    let held: Vec<TcpStream> = (0..80).map(|_| half()).collect();
    let answer = loop {
        let mut answer = String::new();
        let mut stream = half();
        // Where it comes too soon after the others it is told to try again.
        if stream.write_all(b"connection: close\r\n\r\n").is_ok()
            && stream.read_to_string(&mut answer).is_ok()
            && !answer.is_empty()
        {
            assert!(
                answer.starts_with("HTTP/1.1 200") || answer.contains("as many connections as it takes"),
                "{answer}"
            );
            if answer.starts_with("HTTP/1.1 200") {
                break answer;
            }
        }
    };
    assert!(answer.ends_with("ready"), "{answer}");
    drop(held);
}

/// How a connection over HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A question over HTTP/2, the `number`th of its connection.
fn question(path: &str, number: u32) -> Vec<u8> {
    let length = |text: &[u8]| u8::try_from(text.len()).unwrap();
    let head = [b"\x82\x86\x04", &[length(path.as_bytes())][..], path.as_bytes(), b"\x01\x09localhost"].concat();
    [&[0, 0, length(&head), 1, 5][..], &(2 * number + 1).to_be_bytes(), &head].concat()
}

/// Over HTTP/2: a window of 0 for the answer, then one question.
fn answer_never_goes() -> Vec<u8> {
    [PREFACE, b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0", &question("/api/services", 0)].concat()
}

#[test]
fn requests_that_wait_for_their_client_make_room_for_others() {
    let body_never_comes = b"POST /ingest?name=a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n".to_vec();
    for request in [body_never_comes, answer_never_goes()] {
        let (server, address) = crowded();
        let hold = || {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.write_all(&request).unwrap();
            stream
        };
        let mut held: Vec<TcpStream> = (0..PLACES).map(|_| hold()).collect();
        let answer = server.push("shop", &profile(&[(&["main:1"], &[], 1)]));
        assert_eq!(answer.status, 200, "{}", answer.text());
        // All places were taken, and are taken again.
        while held.iter_mut().filter_map(|stream| is_closed(stream).then(|| *stream = hold())).count() == 0 {
            std::thread::yield_now();
        }
        assert_eq!(server.get("/ready").text(), "ready");
        assert_eq!(server.json("/api/services")["services"][0]["service"], "shop");
    }
}

#[test]
fn connections_that_move_a_byte_now_and_then_make_room_for_others() {
    let head = b"POST /ingest?name=a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n";
    let ping = [&b"\0\0\x08\x06\0\0\0\0\0"[..], &[0; 8]].concat();
    let settings = [PREFACE, b"\0\0\0\x04\0\0\0\0\0"].concat();
    // What is sent first, and then again and again: a body, a head, pings beside an answer that may not go, questions, and
    // those of one who answers no ping, so that it never hears when to go.
    type Again<'a> = &'a (dyn Fn(u32) -> Vec<u8> + Sync);
    let slow: [(&[u8], Again<'_>); 5] = [
        (head, &|_| b"x".to_vec()),
        (b"GET /ready HTTP/1.1\r\nhost: localhost\r\nx-slow: ", &|_| b"x".to_vec()),
        (&answer_never_goes(), &|_| ping.clone()),
        (b"", &|_| b"GET /ready HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec()),
        (&settings, &|number| question("/ready", number)),
    ];
    for (first, again) in slow {
        let (server, address) = crowded();
        let hold = || {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.write_all(first).unwrap();
            stream
        };
        let (done, start) = (AtomicBool::new(false), Instant::now());
        let mut held: Vec<(TcpStream, u32)> = (0..PLACES).map(|_| (hold(), 0)).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) && start.elapsed() < Duration::from_secs(30) {
                    for (stream, number) in &mut held {
                        if stream.write_all(&again(*number)).is_err() || is_closed(stream) {
                            (*stream, *number) = (hold(), 0);
                        } else {
                            *number += 1;
                        }
                    }
                    std::thread::sleep(Duration::from_millis(200));
                }
            });
            // All places are taken, and are taken again. Who comes too soon after the others is told to try again.
            for _ in 0..3 {
                let push = || server.push("shop", &profile(&[(&["main:1"], &[], 1)]));
                let answers: Vec<u16> = (0..5).map(|_| push().status).take_while(|status| *status != 200).collect();
                assert!(answers.len() < 5, "{}: {answers:?}", String::from_utf8_lossy(first));
            }
            done.store(true, Relaxed);
        });
    }
}
