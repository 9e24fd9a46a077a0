//! `fault-server`: one server that misbehaves, for a client in another process and any language.
//!
//! ```text
//! fault-server --list     all faults as JSON: what a test must find
//! fault-server NAME       starts one, prints the variables of its clients as a line of JSON, and, when its
//!                         standard input ends, what it received as another
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "a program for tests")]

use std::io::Read;
use std::process::ExitCode;

use serde_json::json;
use spanprof_faults::{Seen, faults};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let faults = faults();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--list"] => {
            let all: Vec<_> = faults.iter().map(spanprof_faults::Fault::expected).collect();
            println!("{}", json!(all));
        }
        [name] if faults.iter().any(|fault| fault.name == *name) => {
            let fault = faults.iter().find(|fault| fault.name == *name).unwrap();
            let running = fault.start();
            println!("{}", json!({ "environment": running.environment }));
            // Until who started this is done with it, or gone.
            drop(std::io::stdin().read_to_end(&mut Vec::new()));
            println!("{}", received(&running.server.seen()));
        }
        _ => {
            eprintln!("usage: fault-server --list | NAME");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn received(seen: &Seen) -> serde_json::Value {
    let gaps = seen.times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64());
    json!({
        "profiles": seen.kept.len(),
        "weight": seen.kept.values().sum::<u64>(),
        "requests": seen.times.len(),
        "repeated": seen.duplicates,
        "too_large": seen.too_large,
        "proxied": seen.connects,
        "seconds_between_requests": gaps.collect::<Vec<_>>(),
    })
}
