//! `spanprof doctor` against our own server, and against the servers that misbehave in the engine's tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::process::Command;

use spanprof_faults::{Flaw, Options, Reply, Server, tls};

/// Exit code, and all that was printed.
fn doctor(arguments: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spanprof"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PYROSCOPE_")) {
        command.env_remove(name);
    }
    let output = command.arg("doctor").args(arguments).envs(environment.iter().copied()).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
}

/// What the doctor prints of a server that gives these replies to POST, the last one for ever.
fn examined(replies: Vec<Reply>, last: Reply) -> (Option<i32>, String) {
    let server = Server::start(replies, last, Options::default());
    doctor(&[&format!("http://127.0.0.1:{}", server.port)], &[])
}

fn answer(status: u16, body: &str) -> Reply {
    Reply::Answer(status, String::new(), body.as_bytes().to_vec())
}

#[test]
fn a_server_that_is_well_passes_every_check() {
    let server = common::Server::start();
    // In place of an argument, the variable of profilers.
    let (code, printed) = doctor(&[], &[("PYROSCOPE_SERVER_ADDRESS", &server.url)]);
    assert_eq!(code, Some(0), "{printed}");
    let checks = printed.lines().filter(|line| line.starts_with("ok  ")).count();
    assert_eq!((checks, printed.lines().count()), (5 + 7, 5 + 7 + 1), "{printed}");
    assert!(
        printed.lines().last().unwrap().starts_with("note  leaves behind            service spanprof.doctor, "),
        "{printed}"
    );
    assert!(printed.contains("version                  spanprof 2."), "{printed}");
    // Each way that says a span is asked for by it.
    for way in ["/ingest, pprof in a form", "/ingest, pprof ", "OTLP profiles"] {
        let line = printed.lines().find(|line| line.contains(way)).unwrap();
        assert!(line.contains("found by its span"), "{line}");
    }
    for way in ["/ingest, folded", "/ingest, JFR", "OTLP traces", "OTLP traces, JSON"] {
        assert!(printed.lines().any(|line| line.contains(way) && line.ends_with(" taken")), "{way}: {printed}");
    }
    assert_eq!(server.json("/api/services")["refused"], serde_json::json!([]));
    // It was the engine's encoder that said what the span is.
    let spans = server.json("/api/spans?service=spanprof.doctor");
    assert!(spans.to_string().contains("\"doctor\""), "{spans}");
    // Of what the program burns it is no part, unless it is asked for.
    let few = common::profile(&[(&["main:1"], &[], 1)]);
    assert_eq!(server.push("shop", &few).status, 200);
    let of = |service: &str| server.json(&format!("/api/top?{service}"))["samples"].as_i64().unwrap();
    assert_eq!((of(""), of("service=shop")), (1, 1));
    assert!(of("service=spanprof.doctor") > 1);
    let services = server.json("/api/services");
    let (first, last) = (&services["services"][0], &services["services"][1]);
    assert_eq!((&first["service"], &last["service"]), (&"shop".into(), &"spanprof.doctor".into()));
    assert!(last["cpu_ns"].as_i64() > first["cpu_ns"].as_i64(), "{services}");
    let page = common::words(&server.page("/"));
    assert!(page.contains("no traces yet: shop .") && !page.contains("spanprof.doctor ."), "{page}");
}

#[test]
fn at_a_port_for_traces_it_is_said_where_profiles_go() {
    let server = common::Server::start();
    let port = server.url.rsplit(':').next().unwrap();
    let (code, printed) = doctor(&[&server.otlp], &[]);
    assert_eq!(code, Some(1), "{printed}");
    let says = format!(
        "HTTP 404: this port takes OTLP alone, and profilers send to port {port}; set PYROSCOPE_SERVER_ADDRESS, or server_address, to that port"
    );
    assert!(printed.contains(&says), "{printed}");
}

#[test]
fn every_ill_server_ends_with_code_1_and_with_what_to_change() {
    for (reply, check, reason, change) in [
        (answer(401, "no org id"), "takes a profile", "HTTP 401: no org id", "PYROSCOPE_BASIC_AUTH_USER"),
        (answer(403, ""), "takes a profile", "HTTP 403", "PYROSCOPE_TENANT_ID"),
        (answer(404, "404 page not found"), "takes a profile", "HTTP 404", "check the path"),
        (answer(413, ""), "takes a profile", "HTTP 413", "2 MiB"),
        (answer(429, r#"{"message":"rate limit"}"#), "takes a profile", "HTTP 429: rate limit", "raise it"),
        (answer(503, "starting"), "takes a profile", "HTTP 503: starting", "see its log"),
        (
            Reply::Answer(302, "Location: http://login.example/\r\n".into(), Vec::new()),
            "takes a profile",
            "HTTP 302 to http://login.example/",
            "check server_address",
        ),
        (
            Reply::Answer(200, "Content-Type: text/html\r\n".into(), b"<html>".to_vec()),
            "takes a profile",
            "web page",
            "check server_address",
        ),
        (Reply::CloseAtOnce, "reachable", "", "check server_address"),
    ] {
        let shown = format!("{reply:?}");
        let (code, printed) = examined(Vec::new(), reply);
        assert_eq!(code, Some(1), "{shown}: {printed}");
        let line = printed.lines().find(|line| line.starts_with("FAIL")).unwrap_or_default();
        assert!(line.starts_with(&format!("FAIL  {check}")), "{shown}: {printed}");
        assert!(line.contains(reason) && line.contains(change), "{shown}: {printed}");
    }
}

#[test]
fn what_takes_profiles_and_answers_no_queries_is_said_to_be_so() {
    let (code, printed) = examined(vec![Reply::Ok, Reply::Ok, answer(404, "")], Reply::Ok);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("not asked"), "{printed}");
    let (code, printed) = examined(vec![Reply::Ok, Reply::Ok, answer(403, "no")], Reply::Ok);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("FAIL  finds it by its span") && printed.contains("may not read"), "{printed}");
    // By this content type the server knows that it is no profile that it has got.
    let both = br#"{"flamegraph":{"total":"20000000"}}"#.to_vec();
    let both = Reply::Answer(200, "Content-Type: text/html\r\n".into(), both);
    let (code, printed) = examined(vec![Reply::Ok, Reply::Ok, both], Reply::Ok);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("FAIL  finds it by its span") && printed.contains("spanSelector"), "{printed}");
}

#[test]
fn a_server_that_takes_push_alone_is_well_and_what_it_does_not_take_is_said() {
    // Push, another one, a question, a large one; then all that other clients send.
    let (code, printed) =
        examined(vec![Reply::Ok, Reply::Ok, answer(404, ""), Reply::Ok], answer(404, "404 page not found"));
    assert_eq!(code, Some(0), "{printed}");
    let not: Vec<_> = printed.lines().filter(|line| line.starts_with("no  ")).collect();
    assert_eq!(not.len(), 7, "{printed}");
    assert!(not.iter().all(|line| line.ends_with("HTTP 404: 404 page not found")), "{printed}");
}

#[test]
fn a_servers_words_do_not_turn_the_terminals_direction() {
    let taken = || answer(200, "");
    let (_, printed) = examined(vec![taken(), taken()], answer(500, "a\u{202e}b\u{2066}c\u{1b}[2J"));
    assert!(printed.contains("queries answer HTTP 500: a\u{fffd}b\u{fffd}c [2J"), "{printed}");
}

#[test]
fn a_limit_that_only_large_profiles_meet_is_found() {
    let (code, printed) = examined(vec![Reply::Ok, Reply::Ok, answer(404, "")], answer(413, ""));
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("FAIL  takes a large profile") && printed.contains("2 MiB"), "{printed}");
}

#[test]
fn nobody_there_is_the_first_thing_that_is_found() {
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, printed) = doctor(&[&format!("http://{free}")], &[]);
    assert_eq!(code, Some(1));
    assert!(printed.starts_with("FAIL  reachable") && printed.contains("check server_address"), "{printed}");
    assert!(!printed.contains("version"), "{printed}");
}

#[test]
fn certificates_are_checked_as_profilers_do() {
    let folder = tempfile::tempdir().unwrap();
    let roots = folder.path().join("roots.pem");
    for (flaw, good) in
        [(Flaw::None, true), (Flaw::Expired, false), (Flaw::OtherHost, false), (Flaw::UnknownRoot, false)]
    {
        let options = Options { tls: Some(tls(flaw, &roots)), ..Options::default() };
        let server = Server::start(vec![Reply::Ok, Reply::Ok, answer(404, "")], Reply::Ok, options);
        let url = format!("https://localhost:{}", server.port);
        let (code, printed) = doctor(&[&url], &[("SSL_CERT_FILE", roots.to_str().unwrap())]);
        assert_eq!(code == Some(0), good, "{flaw:?}: {printed}");
        assert_eq!(printed.contains("SSL_CERT_FILE"), !good, "{flaw:?}: {printed}");
    }
}

#[test]
fn credentials_come_from_variables_or_flags_and_are_never_printed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "hunter2\n").unwrap();
    let flag = format!("me:{}", file.display());
    let variables = [("PYROSCOPE_BASIC_AUTH_USER", "me"), ("PYROSCOPE_BASIC_AUTH_PASSWORD", "hunter2")];
    for (flags, variables) in [(vec!["--basic-auth", &flag], &[][..]), (vec![], &variables[..])] {
        let protected = common::Server::with(&["--basic-auth", &flag]);
        let (code, printed) = doctor(&[&[protected.url.as_str()], &*flags].concat(), variables);
        assert_eq!(code, Some(0), "{printed}");
        let wrong = doctor(&[&protected.url, "--header", "Authorization=Basic aHVudGVyMw=="], &[]);
        assert_eq!(wrong.0, Some(1), "{}", wrong.1);
        assert!(wrong.1.contains("HTTP 401") && !wrong.1.contains("aHVudGVyMw"), "{}", wrong.1);
        assert!(!printed.contains("hunter2"), "{printed}");
    }
    for (header, says) in [
        ("Authorization: Bearer aHVudGVyMg", "--header number 1"),
        ("Authorization: Basic aHVudGVyMg==", r#"begins with "Authorization:""#),
    ] {
        let (code, printed) = doctor(&["http://localhost:1", "--header", header], &[]);
        assert_eq!(code, Some(1));
        assert!(printed.contains(says) && !printed.contains("aHVudGVyMg"), "{printed}");
    }
}

#[test]
fn a_setting_that_is_not_allowed_is_named() {
    for address in ["ftp://x", "none", "file:///tmp"] {
        let (code, printed) = doctor(&[address], &[]);
        assert_eq!(code, Some(1));
        assert!(printed.contains(&format!("server_address: {address} is not allowed")), "{printed}");
    }
}
