//! Cases that each run in a process of their own: a main function for tests without a harness.

#![allow(clippy::print_stdout, reason = "it is a test's main function")]

use std::collections::VecDeque;
use std::process::{Command, ExitCode};
use std::sync::Mutex;

/// Ends a process that has found that its case cannot be tested here.
const SKIPPED: i32 = 77;

/// A case: its name and what is run.
pub(crate) type Case = (&'static str, fn());

/// Ends the case as one that cannot be tested here.
pub(crate) fn skip(why: &str) -> ! {
    println!("skipped: {why}");
    std::process::exit(SKIPPED)
}

/// Runs the case that the arguments name, or all whose names contain the first argument, each in a process of its own.
pub(crate) fn main(cases: &[Case]) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name] = arguments.as_slice()
        && flag == "--case"
    {
        // SAFETY: past two minutes the process ends, so a hang is a failure.
        unsafe { libc::alarm(120) };
        let (_, run) = cases.iter().find(|(known, _)| known == name).unwrap();
        run();
        return ExitCode::SUCCESS;
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-')).cloned().unwrap_or_default();
    let chosen = cases.iter().map(|(name, _)| *name).filter(|name| name.contains(&filter));
    if arguments.iter().any(|argument| argument == "--list") {
        chosen.for_each(|name| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let waiting: Mutex<VecDeque<&str>> = Mutex::new(chosen.collect());
    let failed = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(name) = { waiting.lock().unwrap().pop_front() } {
                    if !run_alone(name) {
                        *failed.lock().unwrap() += 1;
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    println!("\ntest result: {failed} failed\n");
    ExitCode::from(u8::from(failed > 0))
}

fn run_alone(name: &str) -> bool {
    // Its temporary folders lie in one of ours, as cases that end by _exit or a signal leave them behind.
    let folder = tempfile::tempdir().unwrap();
    let mut case = Command::new(std::env::current_exe().unwrap());
    let output = case.args(["--case", name]).env("TMPDIR", folder.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let (how, is_good) = match output.status.code() {
        Some(0) => ("ok".to_owned(), true),
        Some(SKIPPED) => (text.lines().last().unwrap_or("skipped").to_owned(), true),
        _ => (format!("FAILED ({})\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr)), false),
    };
    println!("test {name} ... {how}");
    is_good
}
