//! `fault-server`: one server that misbehaves, or takes all, for a client in another process and any language.
//!
//! ```text
//! fault-server --list           all faults as JSON: what a test must find
//! fault-server NAME             starts one, prints the variables of its clients as a line of JSON, and, when its
//!                               standard input ends, what it received as another
//! fault-server --receive [FD]   takes every Push, on a socket that listens already or on a free port, and prints that as a
//!                               line of JSON; for each line of its standard input, a number of seconds, it prints as
//!                               another what has come since the last one, and waits that long for it to be something
//! fault-server --read FILE...   prints each profile as a line of JSON
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "a program for tests")]

use std::io::Read;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, RawFd};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::{Value, json};
use spanprof_faults::{Options, Profile, Reply, Seen, Server, faults, read};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let faults = faults();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--list"] => {
            let all: Vec<_> = faults.iter().map(spanprof_faults::Fault::expected).collect();
            println!("{}", json!(all));
        }
        ["--receive"] => receive(TcpListener::bind("127.0.0.1:0").unwrap()),
        ["--receive", listener] => {
            let listener: RawFd = listener.parse().unwrap();
            // SAFETY: who started this left the socket open for it alone.
            receive(unsafe { TcpListener::from_raw_fd(listener) });
        }
        ["--read", files @ ..] => {
            for file in files {
                match std::fs::read(file).map_err(|error| error.to_string()).and_then(|bytes| read(&bytes)) {
                    Ok(profile) => println!("{}", json!(Profile { file: (*file).to_owned(), ..profile })),
                    Err(error) => {
                        eprintln!("{file}: {error}");
                        return ExitCode::FAILURE;
                    }
                }
            }
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
            eprintln!("usage: fault-server --list | NAME | --receive [FD] | --read FILE...");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// Answers questions until there are no more.
fn receive(listener: TcpListener) {
    let (sender, received) = channel();
    let options = Options { received: Some(sender), ..Options::default() };
    println!("{}", json!({ "port": Server::start_on(listener, Vec::new(), Reply::Ok, options).port }));
    for seconds in std::io::stdin().lines() {
        let patience = Duration::from_secs_f64(seconds.unwrap().parse().unwrap());
        let first = received.recv_timeout(patience).ok();
        let pushes = first.into_iter().chain(received.try_iter());
        let all: Vec<Value> =
            pushes.map(|push| push.map_or_else(|error| json!({ "error": error }), |push| json!(push))).collect();
        println!("{}", json!(all));
    }
}

fn received(seen: &Seen) -> Value {
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
