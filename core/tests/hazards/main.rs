//! What hosts do to their processes, and what else lives in them: the profiler goes on or steps aside, and says which.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "../support/cases.rs"]
mod cases;
mod endings;
mod limits;
mod neighbours;
mod process;
#[path = "../support/mod.rs"]
mod support;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use spanprof_core::{Allocator, Profiler, Stats};
use support::{Addresses, assert_adds_up, config};

/// What the packages have, with a reserve for programs that are out of memory.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    // A program that another case became by exec.
    if std::env::args().nth(1).as_deref() == Some("--after-exec") {
        process::after_exec();
    }
    let cases: Vec<_> = [process::CASES, neighbours::CASES, limits::CASES, endings::CASES].concat();
    cases::main(&cases)
}

const LONG: Duration = Duration::from_secs(10);

fn start(folder: &Path) -> Profiler {
    Profiler::start(config(folder, 1000), &Addresses).unwrap()
}

/// Stops, and says what was counted once it adds up.
fn finish(profiler: &Profiler) -> Stats {
    assert!(profiler.stop(LONG), "{:?}", profiler.stats());
    let stats = profiler.stats();
    assert_adds_up(&stats);
    stats
}

/// The sentences told since the last call.
fn said(profiler: &Profiler) -> String {
    profiler.take_messages().into_iter().map(|message| message.text + "\n").collect()
}

/// Asserts that `stats` saw nearly all of `cpu`: a sample more or less for each of a few threads.
fn assert_saw(stats: &Stats, cpu: Duration) {
    let seen = Duration::from_nanos(stats.taken.weight);
    assert!(seen >= cpu.mul_f64(0.9), "saw {seen:?} of at least {cpu:?}: {stats:?}");
}
