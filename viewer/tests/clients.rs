//! What Grafana's clients sent, byte for byte: `uploads/CLIENT` holds requests that tests/clients/record.py kept, and in sums.json
//! what `go tool pprof` says of each (tests/clients/numbers.py). The viewer must say the same.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use common::{Answer, Server, now};
use prost::Message as _;
use serde::Deserialize;
use spanprof_core::wire::pprof::{Function, Label, Line, Location, Profile as Pprof, Sample, ValueType};

const SPAN: &str = "00f067aa0ba902b7";

/// Of a sample type, what pprof says.
#[derive(Deserialize)]
struct Sums {
    total: i64,
    /// Flat and cumulative.
    functions: BTreeMap<String, (i64, i64)>,
    spans: BTreeMap<String, i64>,
}

type Uploads = BTreeMap<String, BTreeMap<String, Sums>>;

fn folder(client: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/uploads").join(client)
}

fn sums(client: &str) -> Uploads {
    serde_json::from_slice(&std::fs::read(folder(client).join("sums.json")).unwrap()).unwrap()
}

/// Uploads are as old as they are.
fn server() -> Server {
    Server::with(&["--retain", "36500d"])
}

/// Sends a recorded request again.
fn send(server: &Server, client: &str, upload: &str) -> Answer {
    let bytes = std::fs::read(folder(client).join(upload)).unwrap();
    let end = bytes.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let path = lines.next().unwrap().split(' ').nth(1).unwrap();
    let headers: Vec<_> = lines.map(|line| line.split_once(": ").unwrap()).collect();
    let headers: Vec<_> = headers.into_iter().filter(|(name, _)| *name != "content-length").collect();
    server.post(path, &headers, &bytes[end + 4..])
}

/// Sends each upload to a viewer of its own and compares all functions and spans. `types` are Pyroscope's names by pprof's. Returns
/// those that came.
fn assert_same(client: &str, types: &[(&str, &str)]) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    for (upload, sums) in sums(client) {
        let server = server();
        let answer = send(&server, client, &upload);
        assert_eq!(answer.status, 200, "{client}/{upload}: {}", answer.text());
        for (sample_type, sums) in sums.into_iter().filter(|(_, sums)| sums.total > 0) {
            let of_it = |(name, kind): &&(&str, &str)| {
                *name == sample_type && {
                    // Two profiles may have sample types of one name.
                    let flame = server.json(&format!("/api/flame?type={kind}&since=all"));
                    flame["total"].as_i64().unwrap() > 0
                }
            };
            let found = types.iter().find(of_it);
            assert!(found.is_some(), "{client}/{upload}: {sample_type}");
            let kind = found.unwrap().1;
            seen.insert(kind.to_owned());
            let top = server.json(&format!("/api/top?type={kind}&since=all"));
            assert_eq!(top["total"], sums.total, "{client}/{upload}: {kind}");
            let mut functions: BTreeMap<String, (i64, i64)> = BTreeMap::new();
            for row in top["functions"].as_array().unwrap() {
                let sum = functions.entry(row["function"].as_str().unwrap().to_owned()).or_default();
                sum.0 += row["own"].as_i64().unwrap();
                sum.1 += row["total"].as_i64().unwrap();
            }
            // Both have a word for a function without a name.
            let named = |name: String| if name == "<unknown>" { "(no name)".into() } else { name };
            let said: BTreeMap<_, _> = sums.functions.into_iter().map(|(name, sum)| (named(name), sum)).collect();
            assert_eq!(functions, said, "{client}/{upload}: {kind}");
            for (span, total) in sums.spans {
                let of_span = server.json(&format!("/api/flame?type={kind}&span={span}&since=all"));
                assert_eq!(of_span["total"], total, "{client}/{upload}: {kind} of span {span}");
            }
        }
    }
    seen
}

#[test]
fn profiles_of_pyroscope_go_are_what_go_tool_pprof_says() {
    let types = [
        ("cpu", "process_cpu:cpu:nanoseconds:cpu:nanoseconds"),
        ("samples", "process_cpu:samples:count:cpu:nanoseconds"),
        ("alloc_objects", "memory:alloc_objects:count:space:bytes"),
        ("alloc_space", "memory:alloc_space:bytes:space:bytes"),
        ("inuse_objects", "memory:inuse_objects:count:space:bytes"),
        ("inuse_space", "memory:inuse_space:bytes:space:bytes"),
        ("goroutine", "goroutines:goroutine:count:goroutine:count"),
        ("contentions", "mutex:contentions:count:contentions:count"),
        ("delay", "mutex:delay:nanoseconds:contentions:count"),
        ("contentions", "block:contentions:count:contentions:count"),
        ("delay", "block:delay:nanoseconds:contentions:count"),
    ];
    let seen = assert_same("go", &types);
    assert_eq!(seen, types.iter().map(|(_, kind)| (*kind).to_owned()).collect());
}

#[test]
fn profiles_of_pyroscope_s_node_client_are_what_go_tool_pprof_says() {
    let types = [
        ("samples", "wall:samples:count:wall:nanoseconds"),
        ("wall", "wall:wall:nanoseconds:wall:nanoseconds"),
        ("cpu", "wall:cpu:nanoseconds:wall:nanoseconds"),
        ("inuse_objects", "memory:inuse_objects:count:inuse_space:bytes"),
        ("inuse_space", "memory:inuse_space:bytes:inuse_space:bytes"),
    ];
    let seen = assert_same("node", &types);
    assert_eq!(seen, types.iter().map(|(_, kind)| (*kind).to_owned()).collect());
    // CPU time is CPU time, whatever profile it comes in, and its spans are spans.
    let (server, uploads) = (server(), sums("node"));
    for upload in uploads.keys() {
        assert_eq!(send(&server, "node", upload).status, 200);
    }
    let sum = |kind: &str| -> i64 { uploads.values().filter_map(|types| types.get(kind)).map(|sums| sums.total).sum() };
    let service = server.json("/api/services?since=all")["services"][0].clone();
    assert_eq!((&service["cpu_ns"], &service["sampled_by"]), (&sum("cpu").into(), &"span".into()));
    assert_eq!(server.json("/api/flame?since=all&type=wall")["total"], sum("wall"));
    let asked: Vec<_> =
        service["profile_types"].as_array().unwrap().iter().map(|seen| seen["type"].as_str().unwrap()).collect();
    assert_eq!(asked[..3], ["process_cpu", "memory", "memory:inuse_objects:count:inuse_space:bytes"]);
    let folded = server.json("/api/top?since=all&fold=1");
    let functions = folded["functions"].as_array().unwrap().iter().map(|row| row["function"].as_str().unwrap());
    let own: Vec<_> = functions.filter(|name| !name.starts_with("./shop.mjs:")).collect();
    assert_eq!(own, ["(runtime and libraries)"]);
}

/// A profile as pyroscope-dotnet 1.4.0 builds it, by what its sources say: its package is for another registry than the tests have.
/// The values of one sample in `Shop.Cart.Sum()`, in the order in which it registers its sample types.
fn of_dotnet(types: &[(&str, &str, i64)]) -> Vec<u8> {
    let mut strings =
        vec![String::new(), "cpu".into(), "nanoseconds".into(), "Shop.dll".into(), "Shop.Cart.Sum()".into()];
    let mut string = |text: &str| {
        strings.push(text.into());
        i64::try_from(strings.len()).unwrap() - 1
    };
    let sample_type =
        types.iter().map(|(name, unit, _)| ValueType { r#type: string(name), unit: string(unit) }).collect();
    let value = types.iter().map(|(.., value)| *value).collect();
    let label = vec![Label { key: string("span_id"), str: string(SPAN), ..Label::default() }];
    Pprof {
        sample_type,
        period_type: Some(ValueType { r#type: 1, unit: 2 }),
        period: 1,
        function: vec![Function { id: 1, name: 4, filename: 3, ..Function::default() }],
        location: vec![Location {
            id: 1,
            line: vec![Line { function_id: 1, ..Line::default() }],
            ..Location::default()
        }],
        sample: vec![Sample { location_id: vec![1], value, label }],
        string_table: strings,
        ..Pprof::default()
    }
    .encode_to_vec()
}

#[test]
fn profiles_of_grafana_s_dotnet_package_have_their_time_and_size_as_main_value() {
    let server = Server::start();
    let (from, until) = (now() - 10_000_000_000, now());
    let path = format!(
        "/ingest?name=dotnet-shop%7Bregion%3Deu%7D&from={from}&until={until}&spyName=dotnetspy&spyVersion=1.4.0"
    );
    // Each group of sample types is a profile of its own.
    let groups: [&[(&str, &str, i64)]; 5] = [
        &[("cpu", "nanoseconds", 641_000_000), ("cpu_samples", "count", 65)],
        &[("alloc_samples", "count", 12), ("alloc_size", "bytes", 1_228_800)],
        &[("lock_count", "count", 7), ("lock_time", "nanoseconds", 90_000)],
        &[("exception", "count", 3)],
        &[("inuse_objects", "count", 40), ("inuse_space", "bytes", 4_096_000)],
    ];
    for types in groups {
        let head = b"--x\r\nContent-Disposition: form-data; name=\"profile\"; filename=\"profile.pprof\"\r\n\r\n";
        let body = [&head[..], &of_dotnet(types), b"\r\n--x--\r\n"].concat();
        let answer = server.post(&path, &[("content-type", "multipart/form-data; boundary=x")], &body);
        assert_eq!(answer.status, 200, "{types:?}: {}", answer.text());
    }
    for (asked, kind, total, samples) in [
        ("process_cpu", "process_cpu:cpu:nanoseconds:cpu:nanoseconds", 641_000_000, 65),
        ("memory", "memory:alloc_size:bytes:cpu:nanoseconds", 1_228_800, 12),
        ("memory:inuse_space:bytes:cpu:nanoseconds", "memory:inuse_space:bytes:cpu:nanoseconds", 4_096_000, 40),
        ("lock_time", "lock_time:lock_time:nanoseconds:cpu:nanoseconds", 90_000, 7),
        ("exception", "exception:exception:count:cpu:nanoseconds", 3, 3),
    ] {
        let flame = server.json(&format!("/api/flame?type={asked}&span={SPAN}"));
        let said = (&flame["profile_type"], &flame["total"], &flame["samples"]);
        assert_eq!(said, (&kind.into(), &total.into(), &samples.into()), "{asked}");
    }
}

#[test]
fn an_old_dotnet_profile_numbers_no_function() {
    let server = Server::start();
    let mut old = Pprof::decode(of_dotnet(&[("cpu", "nanoseconds", 5)]).as_slice()).unwrap();
    old.function[0].id = 0;
    old.location[0].line[0].function_id = 1;
    assert_eq!(server.post("/ingest?name=shop&spyName=dotnetspy&format=pprof", &[], &old.encode_to_vec()).status, 200);
    assert_eq!(server.get("/folded?service=shop").text(), "Shop.Cart.Sum() 5\n");
}

#[test]
fn all_that_a_go_service_sends_is_told_apart_by_name() {
    let server = server();
    let uploads = sums("go");
    for upload in uploads.keys() {
        assert_eq!(send(&server, "go", upload).status, 200);
    }
    let services = server.json("/api/services?since=all");
    assert_eq!(services["refused"], serde_json::json!([]), "a profile without samples is none that is refused");
    let service = &services["services"][0];
    let filled = uploads.values().filter(|types| types.values().any(|sums| sums.total > 0)).count();
    assert!(filled < uploads.len(), "none of the uploads is empty");
    assert_eq!((&service["service"], &service["profiles"]), (&"go-shop".into(), &filled.into()));
    let types = service["profile_types"].as_array().unwrap();
    let word = |row: &serde_json::Value| row["word"].as_str().unwrap().to_owned();
    let words: Vec<_> = types.iter().map(word).collect();
    assert_eq!(
        words,
        [
            "cpu",
            "cpu samples",
            "block delay",
            "block contentions",
            "goroutine",
            "inuse_space",
            "alloc_space",
            "alloc_objects",
            "inuse_objects",
            "mutex delay",
            "mutex contentions"
        ]
    );
    let averaged: Vec<_> = types.iter().filter(|row| row["averaged"] == true).map(word).collect();
    assert_eq!(averaged, ["goroutine", "inuse_space", "inuse_objects"]);
    let page = server.page("/?since=all");
    for row in types {
        assert!(page.contains(&word(row)), "{row}");
        let flame =
            server.json(&format!("/api/flame?service=go-shop&since=all&type={}", row["type"].as_str().unwrap()));
        assert_eq!(flame["unit"], row["unit"]);
        assert!(flame["total"].as_i64().unwrap() > 0, "{row}");
    }
    let folded = server.json("/api/top?since=all&fold=1");
    let functions = folded["functions"].as_array().unwrap().iter().map(|row| row["function"].as_str().unwrap());
    let own: BTreeSet<_> = functions.map(|name| name.split('.').next().unwrap()).collect();
    assert_eq!(own, ["(runtime and libraries)", "main"].into());
    let labels = br#"{"name":"pyroscope_spy","start":1,"end":99999999999999}"#;
    let spy = server.post("/querier.v1.QuerierService/LabelValues", &[("content-type", "application/json")], labels);
    assert_eq!(spy.text(), r#"{"names":["gospy"]}"#);
}
