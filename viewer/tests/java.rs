//! Recordings of Java Flight Recorder that real clients sent or wrote: Grafana's extension of OpenTelemetry's agent (traced),
//! its profiler by itself (labelled, wall), async-profiler, and Java's own recorder (jdk). Beside each stands what Java's and
//! async-profiler's tools say of it. tests/clients/java wrote both.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use common::{Answer, Server, gzip};
use serde_json::{Map, Value};

const UPLOADS: [&str; 3] = ["traced", "labelled", "wall"];
const FILES: [&str; 2] = ["async-profiler", "jdk"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/java").join(name)
}

fn numbers(name: &str) -> Map<String, Value> {
    let text = std::fs::read(fixture(&format!("{name}.json"))).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// An upload: where it goes, what its body is, and the body.
fn upload(name: &str) -> (String, String, Vec<u8>) {
    let bytes = std::fs::read(fixture(&format!("{name}.upload"))).unwrap();
    let mut lines = bytes.splitn(3, |byte| *byte == b'\n');
    let mut line = || lines.next().unwrap().to_vec();
    (String::from_utf8(line()).unwrap(), String::from_utf8(line()).unwrap(), line())
}

/// Its address, as if it were of now.
fn of_now(path: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (path, query) = path.split_once('?').unwrap();
    let pairs = query.split('&').map(|pair| match pair.split_once('=').unwrap() {
        ("from", _) => format!("from={}", now - 3),
        ("until", _) => format!("until={now}"),
        _ => pair.to_owned(),
    });
    format!("{path}?{}", pairs.collect::<Vec<_>>().join("&"))
}

fn send(server: &Server, name: &str) -> Answer {
    let (path, content_type, body) = upload(name);
    let path = of_now(&path);
    let first = server.post(&path, &[("content-type", &content_type)], &body);
    // It is the same one when it comes again, as it does after a broken connection.
    assert_eq!(server.post(&path, &[("content-type", &content_type)], &body).status, 200);
    first
}

/// Compares what the server shows of a service with what the tools say.
fn compare(server: &Server, service: &str, name: &str) {
    for (kind, wanted) in numbers(name) {
        // A file is as old as it is.
        let query = format!("service={service}&type={kind}&since=all");
        let top = server.json(&format!("/api/top?{query}"));
        assert_eq!(top["total"], wanted["total"], "{name}: {kind}");
        let functions = top["functions"].as_array().unwrap();
        for (function, own) in wanted["functions"].as_object().unwrap() {
            let all = functions.iter().filter(|row| row["function"] == *function);
            let shown: i64 = all.map(|row| row["own"].as_i64().unwrap()).sum();
            assert_eq!(Some(shown), own.as_i64(), "{name}: {kind}: {function}");
        }
        for (span, total) in wanted["spans"].as_object().into_iter().flatten() {
            let flame = server.json(&format!("/api/flame?{query}&span={span}"));
            assert_eq!(flame["total"], *total, "{name}: {kind}: span {span}");
        }
        if let Some(labelled) = wanted.get("labelled") {
            let flame = server.json(&format!("/api/flame?{query}&label.region=eu"));
            assert_eq!(flame["total"], *labelled, "{name}: {kind}: region=eu");
        }
    }
}

#[test]
fn what_grafanas_clients_send_is_what_javas_tool_says() {
    for name in UPLOADS {
        let server = Server::with(&["--retain", "36500d"]);
        let answer = send(&server, name);
        assert_eq!((answer.status, answer.text().as_str()), (200, ""), "{name}");
        compare(&server, "shop-java", name);
    }
}

#[test]
fn spans_have_their_names_and_traces() {
    let server = Server::with(&["--retain", "36500d"]);
    assert_eq!(send(&server, "traced").status, 200);
    let names = server
        .json("/api/flame?service=shop-java&name=POST%20/order&type=memory:alloc_in_new_tlab_bytes:bytes:space:bytes");
    let wanted = &numbers("traced")["memory:alloc_in_new_tlab_bytes:bytes:space:bytes"];
    assert_eq!(names["total"], wanted["total"], "all that was packed was packed in an order");

    let server = Server::with(&["--retain", "36500d"]);
    assert_eq!(send(&server, "labelled").status, 200);
    let wanted = &numbers("labelled")["process_cpu:cpu:nanoseconds:cpu:nanoseconds"];
    let spans: i64 = wanted["spans"].as_object().unwrap().values().map(|value| value.as_i64().unwrap()).sum();
    let trace = wanted["traces"].as_object().unwrap().values().next().unwrap().as_str().unwrap();
    let ids: Vec<_> = wanted["spans"].as_object().unwrap().keys().collect();
    let sent: Vec<_> = ids.iter().map(|id| common::span(trace, id, "", "GET /price", 0, 200)).collect();
    assert_eq!(server.trace("shop-java", sent).status, 200);
    let shown = server.json(&format!("/api/trace/{trace}"));
    assert_eq!(shown["cpu_ns"], spans, "{shown}");
    // Another trace's span with the same id has none of it.
    let other = "5bf92f3577b34da6a3ce929d0e0e4737";
    assert_eq!(server.trace("shop-java", vec![common::span(other, ids[0], "", "GET /price", 0, 200)]).status, 200);
    assert_eq!(server.json(&format!("/api/trace/{other}"))["cpu_ns"], 0);
}

#[test]
fn a_recording_in_a_file_is_what_the_tools_say() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = FILES.iter().map(|name| fixture(&format!("{name}.jfr.gz"))).collect();
    // Not packed, it is the same.
    let plain = folder.path().join("plain.jfr");
    let mut unpacked = std::fs::File::create(&plain).unwrap();
    std::io::copy(&mut flate2::read::GzDecoder::new(std::fs::File::open(&paths[1]).unwrap()), &mut unpacked).unwrap();
    unpacked.flush().unwrap();
    let server = Server::view(&[paths[0].as_path(), paths[1].as_path(), plain.as_path()]);
    for name in FILES {
        compare(&server, name, name);
    }
    compare(&server, "plain", "jdk");
}

#[test]
fn a_recording_by_itself_is_taken_and_an_empty_one_stores_nothing() {
    let server = Server::with(&["--retain", "36500d"]);
    let packed = std::fs::read(fixture("async-profiler.jfr.gz")).unwrap();
    let path = of_now("/ingest?name=alone&format=jfr&from=0&until=0");
    assert_eq!(server.post(&path, &[], &packed).status, 200);
    compare(&server, "alone", "async-profiler");
    let empty = server.post("/ingest?name=nothing&format=jfr", &[], b"");
    assert_eq!(empty.status, 200, "{}", empty.text());
    let services = server.json("/api/services");
    assert_eq!(services["services"].as_array().unwrap().len(), 1, "{services}");
    assert_eq!(services["refused"], Value::Array(vec![]), "{services}");
}

#[test]
fn what_is_wrong_with_a_recording_is_said() {
    let server = Server::with(&["--retain", "36500d"]);
    let whole = {
        let mut bytes = Vec::new();
        let packed = std::fs::File::open(fixture("jdk.jfr.gz")).unwrap();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(packed), &mut bytes).unwrap();
        bytes
    };
    let with = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        bytes
    };
    let form = |part: &[u8]| {
        let head = b"--x\r\nContent-Disposition: form-data; name=\"jfr\"\r\n\r\n".to_vec();
        let labels = b"\r\n--x\r\nContent-Disposition: form-data; name=\"labels\"\r\n\r\n";
        [&head, &whole[..], labels, part, b"\r\n--x--\r\n"].concat()
    };
    let type_of_form = [("content-type", "multipart/form-data; boundary=x")];
    let mut unfinished = whole.clone();
    unfinished[16..32].fill(0);
    for (headers, body, says) in [
        (
            &[][..],
            whole[..whole.len() - 1].to_vec(),
            "the recording is cut off, or no recording of Java Flight Recorder",
        ),
        (&[], b"hello".to_vec(), "the recording is cut off, or no recording"),
        (&[], with(5, 9), "the recording has version 9; 1 and 2 are read"),
        (&[], with(67, 0), "the recording has numbers that are not compressed"),
        (&[], unfinished, "the recording has a chunk that was not finished"),
        (&type_of_form, form(b"\xff"), "the snapshot of labels is no protobuf, or cut off"),
        (&type_of_form, form(&gzip(b"\x0a\xff")), "the snapshot of labels is no protobuf, or cut off"),
    ] {
        let answer = server.post(&of_now("/ingest?name=shop&format=jfr&from=0"), headers, &body);
        assert!(answer.status == 400 && answer.text().contains(says), "{says}: {} {}", answer.status, answer.text());
    }
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.jfr");
    std::fs::write(&broken, &whole[..1_000]).unwrap();
    let done = common::spanprof().args(["view", "--once"]).arg(&broken).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(!done.status.success() && said.contains("broken.jfr: the recording is cut off"), "{said}");
}
