//! Questions that take memory: their bodies and their answers share what there is for them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use common::{Server, gzip, profile};

const RANGE: &[u8] = b"{\"start\":1,\"end\":99999999999999}";
const SERIES: &str = "/querier.v1.QuerierService/Series";
const JSON: (&str, &str) = ("content-type", "application/json");

fn peak_kib(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    peak.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn bodies_of_questions_share_what_they_may_take() {
    let server = Server::with(&["--memory", "128m"]);
    let address = server.url.rsplit('/').next().unwrap();
    let part = vec![b' '; 249_999];
    let hold = || {
        let mut stream = TcpStream::connect(address).unwrap();
        let head = format!(
            "POST {SERIES} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 250000\r\n\r\n"
        );
        // Where there is no room for it, it may be answered before all of it is there.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&part));
        stream.set_nonblocking(true).unwrap();
        stream
    };
    // More than there is room for, of which nothing more comes.
    let mut held: Vec<TcpStream> = (0..30).map(|_| hold()).collect();
    let told = loop {
        let mut bytes = [0; 1_024];
        let told = held.iter_mut().find_map(|stream| stream.read(&mut bytes).ok().filter(|read| *read > 0));
        match told {
            Some(read) => break String::from_utf8_lossy(&bytes[..read]).into_owned(),
            None => std::thread::yield_now(),
        }
    };
    let makes_room = told.starts_with("HTTP/1.1 408") && told.contains("arrived too slowly while others waited");
    let has_none =
        told.starts_with("HTTP/1.1 503") && told.contains("retry-after") && told.contains("no room in memory");
    assert!(makes_room || has_none, "{told}");
    assert_eq!(server.push("shop", &profile(&[(&["main:1"], &[], 1)])).status, 200);
    loop {
        let answer = server.post(SERIES, &[JSON], RANGE);
        if answer.status == 200 {
            break assert!(answer.text().contains("shop"), "{}", answer.text());
        }
        assert_eq!(answer.status, 503, "{}", answer.text());
    }
    let peak = peak_kib(&server);
    assert!(peak <= 128 << 10, "{peak} KiB");
}

#[test]
fn a_question_is_short_and_has_few_values() {
    let server = Server::start();
    let ask = |headers: &[(&str, &str)], body: &[u8]| {
        let answer = server.post(SERIES, headers, body);
        (answer.status, answer.text())
    };
    let blank = vec![b' '; 256 << 10];
    let asked = [&blank[RANGE.len()..], RANGE].concat();
    assert_eq!(ask(&[JSON], &asked).0, 200);
    let long = [&blank[..], b" "].concat();
    for (headers, body) in [(&[JSON][..], long.clone()), (&[JSON, ("content-encoding", "gzip")], gzip(&long))] {
        let (status, text) = ask(headers, &body);
        assert!(status == 413 && text.contains("is larger than 256 KiB"), "{status} {text}");
    }
    let many = format!("{{\"x\":[{}0]}}", "{\"\":0},".repeat(10_000));
    let (status, text) = ask(&[JSON], many.as_bytes());
    assert!(status == 400 && text.contains("more than 10000 values"), "{status} {text}");
}

#[test]
fn points_of_many_groups_are_refused_before_they_are_made() {
    let server = Server::with(&["--memory", "128m"]);
    // Each label value is a group, of which the timeline has as many samples as any.
    for round in 0..4 {
        let values: Vec<String> = (0..1_250).map(|value| format!("{round}_{value}")).collect();
        let labels: Vec<[(&str, &str); 1]> = values.iter().map(|value| [("user", value.as_str())]).collect();
        let rows: Vec<common::Row<'_>> = labels.iter().map(|label| (&["main:1"][..], &label[..], 1)).collect();
        assert_eq!(server.push("crowd", &profile(&rows)).status, 200);
    }
    let query = "query=process_cpu:cpu:nanoseconds:cpu:nanoseconds%7Bservice_name%3D%22crowd%22%7D&until=now";
    let render = |from: &str| server.get(&format!("/pyroscope/render?{query}&groupBy=user&from={from}"));
    // Half of what an answer may take.
    let too_large = "the answer would take more than 8388608 bytes";
    let answer = render("now-7d");
    assert!(answer.status == 400 && answer.text().contains(too_large), "{} {}", answer.status, answer.text());
    let answer = render("now-5m");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let rendered: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(rendered["groups"].as_object().unwrap().len(), 5_000);
    assert_eq!(rendered["groups"]["3_7"]["samples"].as_array().unwrap().len(), 21);

    // Over time as well: each profile is a point of each of its groups.
    for _ in 0..13 {
        let values: Vec<String> = (0..5_000).map(|value| format!("{}_{}", value / 1_250, value % 1_250)).collect();
        let labels: Vec<[(&str, &str); 1]> = values.iter().map(|value| [("user", value.as_str())]).collect();
        let rows: Vec<common::Row<'_>> = labels.iter().map(|label| (&["main:1"][..], &label[..], 1)).collect();
        assert_eq!(server.push("crowd", &profile(&rows)).status, 200);
    }
    let now = common::now() / 1_000_000;
    let question = serde_json::json!({
        "profileTypeID": "process_cpu:cpu:nanoseconds:cpu:nanoseconds", "groupBy": ["user"], "step": 0.01,
        "start": (now - 100_000).to_string(), "end": now.to_string(),
    });
    let answer = server.post("/querier.v1.QuerierService/SelectSeries", &[JSON], question.to_string().as_bytes());
    assert!(answer.status == 400 && answer.text().contains(too_large), "{} {}", answer.status, answer.text().len());
    let peak = peak_kib(&server);
    assert!(peak <= 128 << 10, "{peak} KiB");
}
