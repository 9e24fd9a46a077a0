//! What the viewer promises in numbers: `ci/bench viewer` runs this and prints one table.
//!
//! A million samples of 40 frames, 2,000 distinct stacks of 2,000 functions, in 200,000 spans of 40 names, over the last
//! hour, are sent to the program as a profiler and an SDK send them. CPU is the server's own, as the kernel counts it.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement prints, and ends where it cannot go on")]
#![allow(unreachable_pub, reason = "its files are modules of a program")]

#[path = "../../tests/common/mod.rs"]
mod common;
mod load;
mod process;

use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant};

use common::Server;
use load::Load;

/// How often each page is asked for.
const ANSWERS: u32 = 16;

/// A line of the table.
struct Row {
    what: String,
    bound: String,
    measured: String,
    met: Option<bool>,
}

fn main() {
    // `cargo bench -- --quick` and nothing else is meant for us.
    let quick = std::env::args().any(|argument| argument == "--quick");
    let load = Load::new(if quick { 20_000 } else { 200_000 });
    let mut rows = Vec::new();
    in_memory(&load, &mut rows);
    with_a_ceiling(&load, &mut rows);
    in_a_file(&load, &mut rows);
    a_recording(&mut rows);
    rows.push(bounded("binary, stripped", 25.0, process::stripped_size() / 1e6, "MB"));
    print(&rows);
}

fn in_memory(load: &Load, rows: &mut Vec<Row>) {
    let server = Server::with(&["--retain", "2h"]);
    let samples = load.samples() as f64;
    let before = process::cpu(server.pid());
    load.push(&server);
    let pushed = process::cpu(server.pid());
    load.trace(&server);
    let traced = process::cpu(server.pid());
    rows.push(at_least("ingest, samples a second of CPU", 120_000.0, samples / (pushed - before).as_secs_f64()));
    rows.push(said("ingest, spans a second of CPU", load.spans() as f64 / (traced - pushed).as_secs_f64()));
    rows.push(bounded("memory with all of it, peak", 300.0, process::memory(server.pid(), "VmHWM"), "MiB"));
    rows.push(said("memory with all of it, at rest (MiB)", process::memory(server.pid(), "VmRSS")));

    let span = load.a_span();
    for (what, bound, path) in [
        ("flame graph of one span, API", 10.0, format!("/api/flame?span={span}")),
        ("flame graph of one span, page", 50.0, format!("/flame?span={span}")),
        ("flame graph of the service, API", 100.0, "/api/flame?service=shop&since=2h".into()),
        ("flame graph of the service, page", 100.0, "/flame?service=shop&since=2h".into()),
        ("flame graph of a name's spans, API", 100.0, "/api/flame?service=shop&name=GET%20/route/7&since=2h".into()),
        ("services, page", 100.0, "/?since=2h".into()),
        ("span names, page", 100.0, "/spans?service=shop&since=2h".into()),
    ] {
        rows.push(answered(what, bound, &server, &path));
    }
    let before = process::cpu(server.pid());
    let rest = Duration::from_secs(40);
    std::thread::sleep(rest);
    let used = (process::cpu(server.pid()) - before).as_secs_f64();
    rows.push(bounded("idle, of a core", 0.1, 100.0 * used / rest.as_secs_f64(), "%"));
}

fn with_a_ceiling(load: &Load, rows: &mut Vec<Row>) {
    let server = Server::with(&["--retain", "2h", "--memory", "128m"]);
    load.push(&server);
    load.trace(&server);
    rows.push(bounded("memory under --memory 128m, peak", 128.0, process::memory(server.pid(), "VmHWM"), "MiB"));
    let forgotten = server.json("/api/services")["forgotten"].clone();
    let count = |what: &str| forgotten[what].as_i64().unwrap_or(0) as f64;
    rows.push(said("  profiles that went for it", count("profiles_by_size")));
    rows.push(said("  spans that went for it", count("spans_by_size")));
}

fn in_a_file(load: &Load, rows: &mut Vec<Row>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("viewer.db");
    let server = Server::with(&["--retain", "2h", "--data", file.to_str().unwrap()]);
    let before = process::cpu(server.pid());
    load.push(&server);
    let used = (process::cpu(server.pid()) - before).as_secs_f64();
    rows.push(said("ingest with --data, samples a second of CPU", load.samples() as f64 / used));
    rows.push(bounded("disk after the samples", 75.0, size(folder.path()), "MiB"));
    load.trace(&server);
    rows.push(said("disk with the spans (MiB)", size(folder.path())));
    let path = "/api/flame?service=shop&since=2h";
    rows.push(answered("flame graph of the service, with --data", 100.0, &server, path));
}

/// Uploads of 5,700 events of Java, as async-profiler wrote them: the recording of the tests four times over, as its chunks
/// may follow each other. Each is of another second, so none is the one of before.
fn a_recording(rows: &mut Vec<Row>) {
    const UPLOADS: u32 = 16;
    let packed = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/java/async-profiler.jfr.gz")).unwrap();
    let mut recording = Vec::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut recording).unwrap();
    let upload = common::gzip(&recording.repeat(4));
    let server = Server::start();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let before = process::cpu(server.pid());
    for second in 0..UPLOADS {
        let path = format!("/ingest?name=java&format=jfr&from={}", now - 60 - u64::from(second));
        let answer = server.post(&path, &[], &upload);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let used = (process::cpu(server.pid()) - before).as_secs_f64() * 1e3 / f64::from(UPLOADS);
    rows.push(bounded("a recording of Java, 5,700 events, CPU", 50.0, used, "ms"));
    rows.push(bounded("  memory of all the program, peak", 64.0, process::memory(server.pid(), "VmHWM"), "MiB"));
}

/// How long an answer takes, and what of it is the server's CPU: on a machine that does other things too, the latter says
/// what the former would be.
fn answered(what: &str, most: f64, server: &Server, path: &str) -> Row {
    let before = process::cpu(server.pid());
    let median = median_ms(server, path);
    let cpu = (process::cpu(server.pid()) - before).as_secs_f64() * 1e3 / f64::from(ANSWERS);
    Row { measured: format!("{median:.2} ms, {cpu:.1} CPU"), ..bounded(what, most, median, "ms") }
}

/// The median of the answers, of which the first is left out.
fn median_ms(server: &Server, path: &str) -> f64 {
    let mut times: Vec<Duration> = (0..ANSWERS)
        .map(|_| {
            let start = Instant::now();
            let answer = server.get(path);
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
            start.elapsed()
        })
        .skip(1)
        .collect();
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

/// All files of a folder, in MiB.
fn size(folder: &Path) -> f64 {
    let files = std::fs::read_dir(folder).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>() as f64 / f64::from(1 << 20)
}

fn bounded(what: &str, most: f64, measured: f64, unit: &str) -> Row {
    Row {
        what: what.into(),
        bound: format!("<= {most} {unit}"),
        measured: format!("{measured:.2} {unit}"),
        met: Some(measured <= most),
    }
}

fn at_least(what: &str, least: f64, measured: f64) -> Row {
    Row {
        what: what.into(),
        bound: format!(">= {least}"),
        measured: format!("{measured:.0}"),
        met: Some(measured >= least),
    }
}

fn said(what: &str, measured: f64) -> Row {
    Row { what: what.into(), bound: String::new(), measured: format!("{measured:.0}"), met: None }
}

fn print(rows: &[Row]) {
    println!("{:<46} {:>14} {:>22}", "what", "bound", "measured");
    for row in rows {
        let verdict = if row.met == Some(false) { "  MISS" } else { "" };
        println!("{:<46} {:>14} {:>22}{verdict}", row.what, row.bound, row.measured);
    }
}
