//! `soak SECONDS`: threads that come and go, spans of ever new names, tags, flushes, restarts, and a server that fails
//! every other time. Prints its memory as it goes; ends with code 1 if that grows or anything does not add up.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test of its own")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use spanprof_core::{Config, Profiler, TraceIdLabel, add_thread_tag, span_end, span_ended, span_start, thread_started};
use spanprof_faults::{Options, Reply, Server};
use support::{Addresses, assert_adds_up, burn, config};

/// Resident memory of this process, KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A thread's life: some spans, half of which are renamed at their end.
fn work(number: u64) {
    thread_started();
    add_thread_tag("request", &(number % 3_000).to_string());
    for inner in 0..5 {
        let id = number * 8 + inner + 1;
        span_start(id, &format!("GET /cart/{number}"));
        burn(Duration::from_millis(2));
        if inner % 2 == 0 && spanprof_core::is_sampled(id) {
            span_ended(id, "GET /cart/{id}");
        }
        span_end();
    }
}

fn main() -> ExitCode {
    let seconds: u64 = std::env::args().nth(1).map_or(60, |seconds| seconds.parse().unwrap());
    let end = Instant::now() + Duration::from_secs(seconds);
    let replies = [
        Reply::Answer(503, String::new(), Vec::new()),
        Reply::Ok,
        Reply::KeepAndClose,
        Reply::Ok,
        Reply::Answer(413, String::new(), Vec::new()),
        Reply::Ok,
        Reply::Answer(400, String::new(), Vec::new()),
    ];
    let mut measured: Vec<u64> = Vec::new();
    let (mut number, mut samples, mut told) = (0, 0, 0);
    let since = Instant::now();
    while Instant::now() < end {
        // One server and one profiler for a tenth of the time, so that what each leaves behind adds up ten times.
        let server = Server::start(replies.iter().cycle().take(70).cloned().collect(), Reply::Ok, Options::default());
        let profiler = Profiler::start(
            Config {
                server_address: format!("http://127.0.0.1:{}", server.port),
                upload_interval: Duration::from_secs(1),
                trace_id: TraceIdLabel::Always,
                ..config("/".as_ref(), 1000)
            },
            &Addresses,
        )
        .unwrap();
        let until = Instant::now() + Duration::from_secs((seconds / 10).max(1));
        while Instant::now() < until.min(end) {
            let threads: Vec<_> = (0..4).map(|at| std::thread::spawn(move || work(number + at))).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            number += 4;
        }
        profiler.flush(Duration::from_secs(5));
        assert!(profiler.stop(Duration::from_secs(5)));
        let stats = profiler.stats();
        assert_adds_up(&stats);
        samples += stats.taken.samples;
        told += profiler.take_messages().len();
        measured.push(resident());
        println!(
            "{:>5} s  {:>6} KiB  {:>7} threads  {:>8} samples  {:>4} messages  {:>4} retries",
            since.elapsed().as_secs(),
            resident(),
            number,
            samples,
            told,
            stats.retries
        );
    }
    // Caches fill at the start; after the first half nothing may grow any more.
    let half = measured.len() / 2;
    let highest = |part: &[u64]| part.iter().copied().max().unwrap_or(0);
    let (before, after) = (highest(&measured[..half.max(1)]), highest(&measured[half..]));
    println!("resident: at most {before} KiB in the first half, {after} KiB in the second");
    ExitCode::from(u8::from(after > before + before / 10 + 2_048))
}
