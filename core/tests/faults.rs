//! Bad servers: whatever they do, the app goes on, `stop` is bounded, and what was taken is received or counted as lost.
//!
//! Each fault runs in a process of its own, as there is one profiler a process and proxies are set by its environment.
//! Without arguments all faults run and the table is printed; an argument picks those whose names contain it.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may fail and prints its table"
)]

mod support;

use std::collections::VecDeque;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use spanprof_core::{Config, Profiler, Stats, thread_started};
use spanprof_faults::{End, Fault, PASSWORD, Server, faults, own_address};
use support::{Addresses, assert_adds_up, burn};

/// Burns CPU as an app does, and returns the longest time in which it did not get on.
fn app(half: &Sender<()>) -> Duration {
    thread_started();
    let (mut longest, mut last) = (Duration::ZERO, Instant::now());
    for number in 0..600 {
        if number == 300 {
            half.send(()).unwrap();
        }
        burn(Duration::from_micros(200));
        longest = longest.max(last.elapsed());
        last = Instant::now();
    }
    longest
}

/// One fault, in this process. Prints its row.
fn run(fault: &Fault) {
    // SAFETY: nothing else runs yet; past a minute the process ends, so a hang is a failure.
    unsafe { libc::alarm(60) };
    let running = fault.start();
    for (name, value) in &running.environment {
        // SAFETY: the server's threads do not look at the environment, and the profiler does not run yet.
        unsafe { std::env::set_var(name, value) };
    }
    let server = &running.server;
    let config = Config::from_environment(|name| running.environment.get(name).cloned()).unwrap();
    let profiler = Profiler::start(config, &Addresses).unwrap();
    let mut pause = Duration::ZERO;
    for _ in 0..2 {
        let (half, is_half_done) = channel();
        let app = std::thread::spawn(move || app(&half));
        // A profile of one sample could not be split.
        is_half_done.recv().unwrap();
        // It must not matter to the app that somebody waits for a bad server.
        profiler.flush(Duration::from_millis(150));
        pause = pause.max(app.join().unwrap());
        let patience =
            if fault.end == End::DroppedQueue { Duration::from_millis(300) } else { Duration::from_secs(20) };
        profiler.flush(patience);
    }
    let since = Instant::now();
    profiler.stop(Duration::from_secs(5));
    let stop = since.elapsed();
    let stats = profiler.stats();
    let said: Vec<String> = profiler.take_messages().into_iter().map(|message| message.text).collect();
    check(fault, server, &stats, stop, &said.join("\n"));
    let ms = |weight: u64| weight / 1_000_000;
    let seen = server.seen();
    println!(
        "row {:<34} {:>6} {:>8} {:>8} {:>7} {:>7} {:>10} {:>7} {:>6} {:>8.1} {:>6.1}",
        fault.name,
        ms(stats.taken.weight),
        ms(seen.kept.values().sum()),
        ms(stats.uploaded.weight),
        ms(stats.refused.weight),
        ms(stats.dropped_queue.weight + stats.dropped_old.weight + stats.dropped_ring.weight),
        ms(stats.dropped_unanswered.weight),
        stats.retries,
        seen.duplicates,
        pause.as_secs_f64() * 1e3,
        stop.as_secs_f64(),
    );
}

fn check(fault: &Fault, server: &Server, stats: &Stats, stop: Duration, said: &str) {
    assert_adds_up(stats);
    assert!(stats.taken.weight > 100_000_000, "{stats:?}");
    // Five seconds, and what a busy machine takes to wake the thread; its server hangs for ever.
    assert!(stop < Duration::from_secs(9), "stop took {stop:?}");
    let ends = match fault.end {
        End::Uploaded => stats.uploaded,
        End::Refused => stats.refused,
        End::DroppedQueue => stats.dropped_queue,
    };
    // What is taken between the last flush and the stop has one try.
    let expected = fault.expected();
    let last = if expected.last_is_dropped { stats.dropped_queue.weight } else { 0 };
    let lost = stats.dropped_ring.weight;
    assert_eq!(ends.weight + last + lost, stats.taken.weight, "all of it ends as {:?}: {stats:?}", fault.end);
    assert!(ends.weight * 10 > stats.taken.weight * 9, "{stats:?}");
    let seen = server.seen();
    let received: u64 = seen.kept.values().sum();
    let unanswered = if expected.keeps_unanswered { stats.dropped_unanswered.weight } else { 0 };
    assert_eq!(received, stats.uploaded.weight + unanswered, "the server has what stats() says: {stats:?}");
    let duplicates = seen.duplicates;
    assert!(duplicates <= stats.retries_unanswered, "{duplicates} duplicates, {stats:?}");
    if expected.repeats_all {
        assert_eq!(duplicates, stats.retries_unanswered, "{stats:?}");
        assert!(duplicates > 0);
    }
    assert!(stats.retries >= fault.retries_at_least, "{stats:?}");
    let all = format!("{said}\n{}", stats.last_error);
    assert!(all.contains(fault.says), "no message says {:?}: {all}", fault.says);
    assert!(!all.contains(PASSWORD), "a message has credentials: {all}");
    if expected.says_nothing {
        assert_eq!(said, "", "nothing is wrong, so nothing is said");
    }
    if fault.waits_at_least > Duration::ZERO {
        assert!(seen.times[1] - seen.times[0] >= fault.waits_at_least, "{:?}", seen.times);
    }
    assert_eq!(seen.connects > 0, expected.is_proxied, "{} requests came as to a proxy", seen.connects);
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name] = arguments.as_slice()
        && flag == "--fault"
    {
        run(faults().iter().find(|fault| fault.name == name).unwrap());
        return ExitCode::SUCCESS;
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-')).cloned().unwrap_or_default();
    let names: Vec<&str> = faults().iter().map(|fault| fault.name).filter(|name| name.contains(&filter)).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        names.iter().for_each(|name| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    println!("weights in ms of CPU time; \"unanswered\" is the part of \"dropped\" that the server may have\n");
    println!(
        "    {:<34} {:>6} {:>8} {:>8} {:>7} {:>7} {:>10} {:>7} {:>6} {:>8} {:>6}",
        "fault",
        "taken",
        "received",
        "uploaded",
        "refused",
        "dropped",
        "unanswered",
        "retries",
        "twice",
        "pause ms",
        "stop s"
    );
    let waiting: Mutex<VecDeque<&str>> = Mutex::new(names.iter().copied().collect());
    let rows: Mutex<Vec<(&str, Result<String, String>)>> = Mutex::default();
    std::thread::scope(|scope| {
        // Most of them wait for a server most of the time.
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(name) = { waiting.lock().unwrap().pop_front() } {
                    let row = child(name);
                    rows.lock().unwrap().push((name, row));
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap();
    rows.sort_by_key(|(name, _)| names.iter().position(|known| known == name));
    let mut failed = 0;
    for (name, row) in rows {
        match row {
            Ok(row) => println!("    {row}"),
            Err(why) => {
                failed += 1;
                println!("    {name:<34} FAILED\n{why}");
            }
        }
    }
    if own_address().is_none() {
        println!("    NO_PROXY names the host: skipped, this machine has no address but 127.0.0.1");
    }
    println!("\n{} faults, {failed} failed; the others add up\n", names.len());
    ExitCode::from(u8::from(failed > 0))
}

fn child(name: &str) -> Result<String, String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    for variable in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"] {
        command.env_remove(variable).env_remove(variable.to_lowercase());
    }
    let output = command.args(["--fault", name]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().find_map(|line| line.strip_prefix("row ")) {
        Some(row) if output.status.success() => Ok(row.to_owned()),
        _ => Err(format!("{}{}{}", output.status, text, String::from_utf8_lossy(&output.stderr))),
    }
}
