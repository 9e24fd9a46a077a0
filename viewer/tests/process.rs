//! The process: its addresses, its end, its file.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use common::{PERIOD, Server, profile, span, spanprof};
use prost::Message as _;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const ROOT: &str = "00f067aa0ba902b7";

fn signal(name: &str, pid: u32) {
    let done = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap();
    assert!(done.success());
}

#[test]
fn both_signals_end_it_well() {
    for name in ["TERM", "INT"] {
        let server = Server::start();
        assert_eq!(server.get("/ready").text(), "ready");
        signal(name, server.pid());
        assert_eq!(server.wait(), Some(0), "{name}");
    }
}

#[test]
fn a_taken_port_is_one_sentence_that_names_the_flag() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let done = Command::new(env!("CARGO_BIN_EXE_spanprof")).args(["--listen", &address]).output().unwrap();
    assert_eq!(done.status.code(), Some(1));
    let said = String::from_utf8(done.stderr).unwrap();
    let expected = format!(
        "spanprof: cannot listen on {address}: another program uses it; choose another address by --listen ADDR:PORT\n"
    );
    assert_eq!(said, expected);
}

#[test]
fn what_is_no_otlp_is_told_its_port() {
    let arguments = ["--listen", "127.0.0.1:0", "--listen-otlp", "127.0.0.1:0", "--listen-grpc", "127.0.0.1:0"];
    let mut child = spanprof().args(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut port = || lines.next().unwrap().unwrap().rsplit(':').next().unwrap().to_owned();
    let (main, otlp, grpc) = (port(), port(), port());
    let post = |port: &str, kind: &str, tenant: &str| -> std::io::Result<String> {
        let mut stream = TcpStream::connect(format!("127.0.0.1:{port}"))?;
        // More than a socket holds: who is not read to the end may not read why either.
        let body = vec![b'x'; 8 << 20];
        write!(
            stream,
            "POST /push.v1.PusherService/Push HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: {kind}\r\nContent-Length: {}\r\n{tenant}\r\n",
            body.len()
        )?;
        stream.write_all(&body)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let says = format!("this port takes OTLP alone, and profilers send to port {main}");
    let ways = [(&otlp, ""), (&grpc, ""), (&otlp, "X-Scope-OrgID: blue\r\n"), (&grpc, "X-Scope-OrgID: blue\r\n")];
    let by_http = ways.map(|(port, tenant)| post(port, "application/proto", tenant));
    let by_grpc = post(&grpc, "application/grpc", "");
    child.kill().unwrap();
    child.wait().unwrap();
    for answer in by_http.map(Result::unwrap) {
        let message = format!("\"message\":\"{says}\"");
        assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains(&message), "{answer}");
    }
    let (answer, encoded) = (by_grpc.unwrap(), says.replace(' ', "%20").replace(',', "%2C"));
    let message = format!("grpc-message: {encoded}\r\n");
    assert!(answer.contains("grpc-status: 12\r\n") && answer.contains(&message), "{answer}");
}

/// A server on some port, and on one for OTLP.
fn listening(otlp: &str) -> Child {
    spanprof()
        .args(["--listen", "127.0.0.1:0", "--listen-otlp", otlp, "--listen-grpc", "none"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_taken_port_for_otlp_is_said_and_lived_with() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut child = listening(&address);
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains(&address) && line.contains("--listen-otlp ADDR:PORT"), "{line}");
    signal("TERM", child.id());
    assert!(child.wait().unwrap().success());
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert!(out.starts_with("spanprof listening on http://127.0.0.1:") && out.lines().count() == 1, "{out}");
}

#[test]
fn tls_at_a_port_of_plain_http_is_answered_and_said_once() {
    let mut child = listening("none");
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().rsplit('/').next().unwrap();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).unwrap();
        // A hello of 512 bytes.
        stream.write_all(&[&[0x16, 3, 1, 2, 0, 1, 0][..], &[7; 510]].concat()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 400 ") && answer.contains("write http:// instead of https://"),
            "{answer}"
        );
    }
    let url = format!("https://{address}");
    let top = spanprof().args(["top", "--url", &url]).output().unwrap();
    let said = String::from_utf8(top.stderr).unwrap();
    assert!(
        said.contains(&format!("cannot ask {url}")) && said.contains(&format!("try http://{address}, or")),
        "{said}"
    );
    signal("TERM", child.id());
    child.wait().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("speaks TLS (https)") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_password_is_asked_for_where_one_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "s3cret\nignored").unwrap();
    let flag = format!("me:{}", file.display());
    let server = Server::with(&["--basic-auth", &flag]);
    let top = |flags: &[&str]| spanprof().args(["top", "--url", &server.url]).args(flags).output().unwrap();
    let refused = String::from_utf8_lossy(&top(&[]).stderr).into_owned();
    assert!(refused.contains("--basic-auth USER:FILE"), "{refused}");
    assert!(top(&["--basic-auth", &flag]).status.success());
    let refused = server.get("/api/services");
    assert_eq!((refused.status, refused.headers.contains_key("www-authenticate")), (401, true));
    assert_eq!(server.get_with("/api/services", ("authorization", "Basic bWU6d3Jvbmc=")).status, 401);
    assert_eq!(server.get_with("/api/services", ("authorization", "Basic bWU6czNjcmV0")).status, 200);
    assert_eq!(server.get_with("/api/services", ("authorization", "bASIC  bWU6czNjcmV0")).status, 200);
    assert_eq!(server.get_with("/api/services", ("authorization", "Bearer bWU6czNjcmV0")).status, 401);
    assert_eq!(server.push("shop", &profile(&[(&["main:1"], &[], 1)])).status, 401);
    assert_eq!(server.get("/ready").status, 200);
    let none = folder.path().join("none");
    let done = Command::new(env!("CARGO_BIN_EXE_spanprof"))
        .args(["--listen", "127.0.0.1:0", "--basic-auth", &format!("me:{}", none.display())])
        .output()
        .unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.code() == Some(1) && said.contains("--basic-auth") && said.lines().count() == 1, "{said}");
}

#[test]
fn counters_are_read_by_prometheus() {
    let server = Server::start();
    assert_eq!(server.push("shop", &profile(&[(&["main:1"], &[], 1), (&["main:2"], &[], 1)])).status, 200);
    assert_eq!(server.trace("shop", vec![span(TRACE, ROOT, "", "GET /cart", 0, 600)]).status, 200);
    assert_eq!(server.post("/v1/traces", &[("content-type", "text/csv")], b"").status, 415);
    let answer = server.get("/metrics");
    assert_eq!(answer.kind, "text/plain; version=0.0.4; charset=utf-8");
    let text = answer.text();
    for line in [
        "# TYPE spanprof_profiles_stored_total counter",
        "spanprof_profiles_stored_total 1",
        "spanprof_samples_stored_total 2",
        "spanprof_spans_stored_total 1",
        "spanprof_refused_total{what=\"traces\",reason=\"content_type\"} 1",
        "spanprof_forgotten_total{what=\"profiles\",why=\"size\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
    }
}

#[test]
fn data_survives_a_restart_and_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("spanprof.db");
    let flags = ["--data", file.to_str().unwrap()];
    for (round, name) in [(1, "TERM"), (2, "KILL"), (3, "TERM")] {
        let server = Server::with(&flags);
        let labels = [("span_id", ROOT), ("span_name", "GET /cart")];
        assert_eq!(server.push("shop", &profile(&[(&["main:1"], &labels, 20)])).status, 200);
        assert_eq!(server.trace("shop", vec![span(TRACE, ROOT, "", "GET /cart", 0, 600)]).status, 200);
        assert_eq!(server.json(&format!("/api/flame?span={ROOT}"))["total"], round * 20 * PERIOD);
        assert_eq!(server.json(&format!("/api/trace/{TRACE}"))["spans"].as_array().unwrap().len(), 1);
        signal(name, server.pid());
        server.wait();
    }
}

#[test]
fn a_kill_in_the_middle_of_what_comes_in_loses_nothing_that_was_answered() {
    const ACKNOWLEDGED: u64 = 60;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("spanprof.db");
    let flags = ["--data", file.to_str().unwrap()];
    let server = Server::with(&flags);
    let labels = [("span_id", ROOT), ("trace_id", TRACE), ("span_name", "GET /cart")];
    // Each is another profile; the same one again would be counted once.
    let body = || {
        let body = common::gzip(&profile(&[(&["main:1", "cart:2"], &labels, 1)]).encode_to_vec());
        common::request(&[("__name__", "process_cpu"), ("service_name", "shop")], body)
    };
    let answered = AtomicU64::new(0);
    let pid = server.pid();
    let push = || {
        let url = format!("{}/push.v1.PusherService/Push", server.url);
        // Until nobody answers any more.
        while let Ok(answer) = ureq::post(&url).header("content-type", "application/proto").send(&body()[..]) {
            assert_eq!(answer.status(), 200);
            if answered.fetch_add(1, Ordering::SeqCst) == ACKNOWLEDGED {
                signal("KILL", pid);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = [scope.spawn(push), scope.spawn(push), scope.spawn(push)];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let answered = i64::try_from(answered.into_inner()).unwrap();
    // Its connections close before the file's lock does.
    assert_eq!(server.wait(), None, "it ends by the signal");
    let server = Server::with(&flags);
    let profiles = server.json("/api/services")["services"][0]["profiles"].as_i64().unwrap();
    // One of each thread may have been stored before its answer was on its way.
    assert!((answered..=answered + 3).contains(&profiles), "{answered} answered, {profiles} stored");
    // Rows, sums and traces are of one transaction.
    assert_eq!(server.json(&format!("/api/flame?span={ROOT}"))["total"], profiles * PERIOD);
    assert_eq!(server.json("/api/flame?service=shop")["total"], profiles * PERIOD);
    assert_eq!(server.json(&format!("/api/flame?trace={TRACE}"))["total"], profiles * PERIOD);
    assert_eq!(server.push("shop", &profile(&[(&["main:1"], &[], 1)])).status, 200);
}

#[test]
fn what_is_older_than_retain_is_refused_and_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("spanprof.db");
    let mut old = profile(&[(&["main:1"], &[], 20)]);
    old.time_nanos -= 1_800_000_000_000;
    let server = Server::with(&["--data", file.to_str().unwrap()]);
    assert_eq!(server.push("shop", &old).status, 200);
    assert_eq!(server.json("/api/services")["services"][0]["profiles"], 1);
    drop(server);
    let server = Server::with(&["--data", file.to_str().unwrap(), "--retain", "10m"]);
    assert_eq!(server.push("shop", &old).status, 400);
    // Forgetting begins at the start, beside the first answers.
    while server.json("/api/services")["forgotten"]["profiles_by_age"] != 1 {
        std::thread::yield_now();
    }
    assert_eq!(server.json("/api/services")["services"].as_array().unwrap().len(), 0);
    assert_eq!(server.get("/flame?service=shop").status, 200);
}

#[test]
fn a_file_that_is_none_of_ours_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    std::fs::write(&file, "not a database, but long enough to be looked at as one".repeat(20)).unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_spanprof"))
        .args(["--listen", "127.0.0.1:0", "--data", file.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(1));
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(said.starts_with("spanprof: cannot use --data ") && said.lines().count() == 1, "{said}");
    assert!(
        said.ends_with(": it is no file of spanprof's; move it away to start anew, or give another file\n"),
        "{said}"
    );
    // It is whose it was.
    assert!(std::fs::read_to_string(&file).unwrap().starts_with("not a database"));
}

/// A line of /proc/PID/status, in MiB.
#[cfg(target_os = "linux")]
fn memory(pid: u32, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let found = status.lines().find(|found| found.starts_with(line)).unwrap();
    found.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

#[test]
#[cfg(target_os = "linux")]
fn memory_bounds_the_whole_process_while_it_takes_in_more() {
    let server = Server::with(&["--memory", "64m"]);
    let (requests, each) = (16, 300);
    let start = common::now() - 1_000_000_000_000;
    for request in 0..requests {
        let spans = (0..each).map(|number| {
            let number: u64 = request * each + number;
            // Scattered over the index, as the ids of SDKs are.
            let id = format!("{:016x}", (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut span = span(&format!("{id}{id}"), &id, "", "GET /cart", 0, 5);
            span.start_time_unix_nano = start + request * 60_000_000_000;
            span.end_time_unix_nano = span.start_time_unix_nano + 5_000_000;
            common::with_attribute(span, "body", &"x".repeat(4_096))
        });
        let answer = server.trace("shop", spans.collect());
        assert!(answer.status == 200 && answer.body.is_empty(), "{}", answer.text());
    }
    let peak = memory(server.pid(), "VmHWM");
    assert!(peak <= 64, "{peak} MiB");
    let names = server.json("/api/spans?service=shop");
    let left = names["spans"][0]["count"].as_u64().unwrap();
    let gone = server.json("/api/services")["forgotten"]["spans_by_size"].as_u64().unwrap();
    assert!(left > 0 && gone > 0, "{left} left, {gone} gone");
    assert_eq!(left + gone, requests * each);
}

#[test]
fn too_little_memory_is_refused_with_the_least() {
    let done = Command::new(env!("CARGO_BIN_EXE_spanprof")).args(["--memory", "63m"]).output().unwrap();
    assert_eq!(done.status.code(), Some(2));
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(said.contains("63m is too little: the least is 64m"), "{said}");
}
