//! Bad input: refused in words, counted, and nothing else harmed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{PERIOD, Server, export, gzip, profile, request, span};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use spanprof_core::wire::pprof::{Line, Location, Profile, Sample};
use spanprof_core::wire::push::PushRequest;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const ROOT: &str = "00f067aa0ba902b7";
const PUSH: &str = "/push.v1.PusherService/Push";
const PROTO: (&str, &str) = ("content-type", "application/proto");
const LABELS: [(&str, &str); 2] = [("__name__", "process_cpu"), ("service_name", "shop")];

fn good() -> Profile {
    profile(&[(&["main:1", "cart:2"], &[("span_id", ROOT), ("span_name", "GET /cart")], 4)])
}

/// A server that holds one good profile; every test ends by asking whether it still does, and takes another.
struct Unharmed(Server);

impl Unharmed {
    fn start() -> Self {
        let server = Server::start();
        assert_eq!(server.push("shop", &good()).status, 200);
        Self(server)
    }

    fn check(&self, refused: usize) {
        assert_eq!(self.0.json(&format!("/api/flame?span={ROOT}"))["total"], 4 * PERIOD);
        let services = self.0.json("/api/services");
        let counted: u64 =
            services["refused"].as_array().unwrap().iter().map(|row| row["count"].as_u64().unwrap()).sum();
        assert_eq!(counted, refused as u64, "{services}");
        assert_eq!(services["services"].as_array().unwrap().len(), 1, "{services}");
        let page = self.0.page("/");
        assert!(page.contains("Refused since the start"), "{page}");
        assert_eq!(self.0.push("shop", &good()).status, 200);
        assert_eq!(self.0.json(&format!("/api/flame?span={ROOT}"))["total"], 8 * PERIOD);
    }

    /// Connect writes errors as JSON.
    fn assert_push_refused(&self, raw: Vec<u8>, says: &str) {
        let answer = self.0.post(PUSH, &[PROTO], &request(&LABELS, raw));
        assert_eq!((answer.status, answer.kind.as_str()), (400, "application/json"), "{says}: {}", answer.text());
        let error: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(error["code"], "invalid_argument");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(says), "{says}: {message}");
    }
}

#[test]
fn a_profile_with_anything_wrong_in_it_is_refused_whole() {
    let server = Unharmed::start();
    let mut cases: Vec<(Profile, &str)> = Vec::new();
    let mut case = |says: &'static str, change: &dyn Fn(&mut Profile)| {
        let mut profile = good();
        change(&mut profile);
        cases.push((profile, says));
    };
    case("string 999, and the profile has", &|profile| profile.function[0].name = 999);
    case("string -1, and the profile has", &|profile| profile.sample[0].label[0].key = -1);
    case("string 77", &|profile| profile.sample_type[0].unit = 77);
    case("string 78", &|profile| profile.period_type.as_mut().unwrap().r#type = 78);
    case("first string is not empty", &|profile| profile.string_table[0] = "x".into());
    case("location 9, which the profile does not have", &|profile| profile.sample[0].location_id[0] = 9);
    case("function 9, which the profile does not have", &|profile| profile.location[0].line[0].function_id = 9);
    case("location id 1 twice", &|profile| profile.location[1].id = 1);
    case("function id 0 twice, or it is 0", &|profile| profile.function[0].id = 0);
    case("neither a line nor an address", &|profile| profile.location[0].line.clear());
    case("a sample has 2 values, and the profile 1 sample types", &|profile| profile.sample[0].value.push(1));
    case("value is 9007199254740993, and at most", &|profile| profile.sample[0].value[0] = (1 << 53) + 1);
    case("no sample with a positive value", &|profile| profile.sample[0].value[0] = -5);
    case("no sample type", &|profile| {
        profile.sample_type.clear();
        profile.sample[0].value.clear();
    });
    case("older than what is kept", &|profile| profile.time_nanos = 1);
    case("ahead of this machine's clock", &|profile| profile.time_nanos = i64::MAX);
    let count = cases.len();
    for (profile, says) in cases {
        server.assert_push_refused(profile.encode_to_vec(), says);
    }
    server.check(count);
}

#[test]
fn bytes_that_are_no_profile_are_refused() {
    let server = Unharmed::start();
    let good = good().encode_to_vec();
    server.assert_push_refused(good[..good.len() - 3].to_vec(), "no protobuf, or cut off");
    server.assert_push_refused(b"hello".to_vec(), "no protobuf, or cut off");
    server.assert_push_refused(gzip(&good)[..40].to_vec(), "the profile is not gzip");
    server.assert_push_refused(Vec::new(), "no sample type");
    // A string table entry that is no UTF-8.
    server.assert_push_refused(vec![0x32, 0, 0x32, 2, 0xff, 0xfe], "the profile is no pprof");
    server.check(5);
}

#[test]
fn a_profile_that_is_larger_than_it_seems_is_refused() {
    let server = Unharmed::start();
    let bomb = gzip(&vec![0; 17 << 20]);
    assert!(bomb.len() < 200_000);
    let answer = server.0.post(PUSH, &[PROTO], &request(&LABELS, bomb));
    assert_eq!(answer.status, 413);
    assert!(
        answer.text().contains("resource_exhausted") && answer.text().contains("larger than 16 MiB"),
        "{}",
        answer.text()
    );
    // Two bytes a sample here, a hundred times that in memory.
    let many = gzip(&[0x12, 0].repeat(1_200_000));
    let answer = server.0.post(PUSH, &[PROTO], &request(&LABELS, many));
    assert!(answer.status == 413 && answer.text().contains("bytes of memory, decoded"), "{}", answer.text());
    server.check(2);
}

#[test]
fn a_body_of_100_mb_is_refused_in_words() {
    let server = Unharmed::start();
    let answer = server.0.post(PUSH, &[PROTO], &vec![b'x'; 100_000_000]);
    assert_eq!(answer.status, 413);
    assert!(answer.text().contains("the body is larger than 16 MiB"), "{}", answer.text());
    server.check(1);
}

#[test]
fn a_request_that_is_not_spoken_here_is_refused() {
    let server = Unharmed::start();
    let body = request(&LABELS, good().encode_to_vec());
    for (headers, status, says) in [
        (
            vec![("content-type", "text/plain")],
            415,
            "content type \\\"text/plain\\\" is not taken; send application/proto",
        ),
        (vec![], 415, "content type \\\"\\\" is not taken"),
        (vec![PROTO, ("content-encoding", "zstd")], 415, "content encoding \\\"zstd\\\" is not taken; send gzip"),
        (vec![PROTO, ("content-encoding", "gzip")], 400, "the body is not gzip"),
        (vec![("content-type", "application/json")], 400, "no PushRequest in JSON"),
    ] {
        let answer = server.0.post(PUSH, &headers, &body);
        assert_eq!(answer.status, status, "{headers:?}");
        assert!(answer.text().contains(says), "{headers:?}: {}", answer.text());
    }
    let empty = server.0.post(PUSH, &[PROTO], &PushRequest::default().encode_to_vec());
    assert!(empty.status == 400 && empty.text().contains("the request holds no profile"));
    let nameless = server.0.post(PUSH, &[PROTO], &request(&LABELS[1..], good().encode_to_vec()));
    assert!(
        nameless.status == 400 && nameless.text().contains("series 0: the label __name__ is missing"),
        "{}",
        nameless.text()
    );
    server.check(7);
    assert_eq!(server.0.get(PUSH).status, 405);
}

#[test]
fn one_bad_profile_keeps_its_request_out() {
    let server = Unharmed::start();
    let mut body = PushRequest::decode(request(&LABELS, good().encode_to_vec()).as_slice()).unwrap();
    body.series.extend(PushRequest::decode(request(&LABELS, b"hello".to_vec()).as_slice()).unwrap().series);
    assert_eq!(server.0.post(PUSH, &[PROTO], &body.encode_to_vec()).status, 400);
    server.check(1);
}

#[test]
fn each_service_is_told_what_of_it_was_refused() {
    let server = Server::start();
    let mut old = good();
    old.time_nanos = 1;
    for (service, profile, times) in [("shop", good(), 1), ("shop", old, 2), ("bank", good(), 1)] {
        (0..times).for_each(|_| drop(server.push(service, &profile)));
    }
    assert_eq!(server.post("/ingest?name=bank&format=trie", &[], b"x").status, 415);
    let late = Span { start_time_unix_nano: 5, end_time_unix_nano: 6, ..span(TRACE, ROOT, "", "late", 0, 1) };
    assert_eq!(server.trace("shop", vec![late]).status, 200);
    let answer = server.json("/api/services");
    let rows: Vec<_> = answer["services"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["service"].as_str().unwrap(), row["refused"].as_u64().unwrap()))
        .collect();
    assert_eq!(rows, [("bank", 1), ("shop", 3)]);
    let why: Vec<_> = answer["refused"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            (
                row["what"].as_str().unwrap(),
                row["service"].as_str(),
                row["reason"].as_str().unwrap(),
                row["count"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        why,
        [
            ("profiles", Some("shop"), "time", 2),
            ("profiles", Some("bank"), "content_type", 1),
            ("traces", Some("shop"), "time", 1)
        ]
    );
    let page = server.page("/");
    assert!(page.contains("href=\"./#refused\">3</a>") && page.contains("id=\"refused\""), "{page}");
}

#[test]
fn few_bytes_that_mean_many_frames_are_refused() {
    let server = Unharmed::start();
    // One location of a thousand lines at the end of each of three thousand stacks.
    let mut wide = good();
    wide.location[0].line = vec![wide.location[0].line[0]; 999];
    let big = wide.location[0].id;
    let function_id = wide.function[0].id;
    wide.sample = (0..3_000)
        .map(|number| {
            let line = vec![Line { function_id, line: number, column: 0 }];
            let id = 1_000 + u64::try_from(number).unwrap();
            wide.location.push(Location { id, line, ..Location::default() });
            Sample { location_id: vec![big, id], value: vec![PERIOD], ..Sample::default() }
        })
        .collect();
    let answer = server.0.push("shop", &wide);
    assert_eq!(answer.status, 413);
    assert!(answer.text().contains("bytes of memory that one may"), "{}", answer.text());
    // And a stack of a hundred million of them is as deep as any other.
    wide.location.truncate(1);
    wide.location[0].line = vec![wide.location[0].line[0]; 100_000];
    wide.sample = vec![Sample { location_id: vec![big; 1_000], value: vec![PERIOD], ..Sample::default() }];
    assert_eq!(server.0.push("deep", &wide).status, 200);
    assert_eq!(server.0.get("/folded?service=deep").text().split(';').count(), 1_000);
}

#[test]
fn ten_thousand_series_are_bounded_and_harm_nothing() {
    let server = Unharmed::start();
    let users: Vec<String> = (0..10_000).map(|number| format!("user {number}")).collect();
    let labels: Vec<[(&str, &str); 1]> = users.iter().map(|user| [("user", user.as_str())]).collect();
    let rows: Vec<common::Row<'_>> = labels.iter().map(|label| (&["main:1"][..], &label[..], 1)).collect();
    let answer = server.0.push("wide", &profile(&rows));
    assert_eq!(answer.status, 413);
    assert!(answer.text().contains("make more than 5000 series"), "{}", answer.text());
    server.check(1);
    assert_eq!(server.0.push("shop", &profile(&rows[..1_000])).status, 200);
    assert_eq!(server.0.json("/api/flame?service=shop&label.user=user%20999")["total"], PERIOD);
}

#[test]
fn traces_that_cannot_be_are_refused() {
    let server = Unharmed::start();
    let post = |kind: &str, body: &[u8]| server.0.post("/v1/traces", &[("content-type", kind)], body);
    let garbage = post("application/x-protobuf", b"garbage");
    assert_eq!((garbage.status, garbage.kind.as_str()), (400, "application/x-protobuf"));
    assert!(garbage.text().contains("the request is no protobuf"));
    let json = post("application/json", b"{\"resourceSpans\": 5}");
    assert_eq!((json.status, json.kind.as_str()), (400, "application/json"));
    assert!(json.text().contains("no ExportTraceServiceRequest"), "{}", json.text());
    assert_eq!(post("text/plain", b"").status, 415);
    server.check(3);
}

#[test]
fn a_bad_span_is_left_out_and_said() {
    let server = Server::start();
    let good = span(TRACE, ROOT, "", "GET /cart", 0, 600);
    let nameless = span("abcd", ROOT, "", "bad trace", 0, 1);
    let mut old = span(TRACE, "00f067aa0ba902b8", "", "old", 0, 1);
    (old.start_time_unix_nano, old.end_time_unix_nano) = (5, 6);
    let mut long = span(TRACE, "00f067aa0ba902b9", "", "took two hours", 0, 1);
    long.start_time_unix_nano -= 7_200_000_000_000;
    let body = serde_json::to_vec(&export("shop", vec![nameless, good, old, long])).unwrap();
    let answer = server.post("/v1/traces", &[("content-type", "application/json")], &body);
    assert_eq!(answer.status, 200);
    let answer: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(answer["partialSuccess"]["rejectedSpans"], "2");
    assert_eq!(
        answer["partialSuccess"]["errorMessage"],
        "span \"bad trace\": the trace id is not 16 bytes, or all zeros"
    );
    assert_eq!(server.json(&format!("/api/trace/{TRACE}"))["spans"].as_array().unwrap().len(), 2);
}

#[test]
fn pages_of_others_are_kept_out() {
    let server = Server::start();
    let answer = server.get_with("/api/services", ("host", "evil.example"));
    assert_eq!(answer.status, 403);
    assert!(
        answer.text().contains("not to \"evil.example\"") && answer.text().contains("--allow-host"),
        "{}",
        answer.text()
    );
    assert_eq!(server.get_with("/", ("origin", "http://evil.example")).status, 403);
    let body = request(&LABELS, good().encode_to_vec());
    assert_eq!(server.post(PUSH, &[PROTO, ("origin", "null")], &body).status, 403);
    let allowed = Server::with(&["--allow-host", "profiles.example"]);
    assert_eq!(allowed.get_with("/ready", ("host", "profiles.example:80")).status, 200);
}

#[test]
fn every_answer_carries_the_policy() {
    let server = Server::start();
    for path in ["/", "/nowhere", "/api/services", "/assets/flame.js", "/flame?span=x"] {
        let headers = server.get(path).headers;
        let policy = &headers["content-security-policy"];
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'") && !policy.contains("unsafe"),
            "{path}"
        );
        assert_eq!(headers["x-content-type-options"], "nosniff");
    }
}

#[test]
fn a_question_far_too_large_is_answered_and_not_cut_off() {
    let server = Server::start();
    for megabytes in [1, 12, 40] {
        let answer = server.post("/querier.v1.QuerierService/LabelNames", &[PROTO], &vec![0; megabytes << 20]);
        assert_eq!(answer.status, 413, "{megabytes}: {}", answer.text());
    }
}
