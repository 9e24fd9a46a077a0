//! `spanprof`: receives profiles and traces, and shows the flame graph of a span in a browser.
//!
//! Bytes come in through [`receive`], become rows in [`store`], numbers in [`show`] and HTML in [`pages`]. Each of
//! them uses the ones before it and never one after it. Every view, API answer and download is made from one value,
//! the [`selection::Selection`].

//!
//! It is a library for its fuzz targets alone, and has no public interface but [`run`].

#![forbid(unsafe_code)]

mod api;
mod budget;
mod cli;
mod clock;
mod doctor;
mod downloads;
mod ids;
mod look;
mod pages;
mod params;
mod queries;
mod query;
mod receive;
mod selection;
mod server;
mod show;
mod store;
mod tenant;
mod terminal;
mod top;
mod view;
mod work;

/// What fuzz/ calls: each takes any bytes and panics if a promise is broken. No public interface.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    use crate::receive::any_bytes;

    /// A profile, plain or gzip.
    pub fn profile(data: &[u8]) {
        any_bytes::profile(data);
    }

    /// A request of Push or OTLP; the first byte says which, and in which format.
    pub fn request(data: &[u8]) {
        any_bytes::request(data);
    }

    /// A line as the query of /ingest, the rest as its body.
    pub fn ingested(data: &[u8]) {
        any_bytes::ingested(data);
    }
}

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

/// Runs the program, by the arguments of this process.
pub fn run() -> ExitCode {
    let program = cli::Program::parse();
    let done = match &program.command {
        None => server::run(&program.serve),
        Some(cli::Command::View(view)) => view::run(view),
        Some(cli::Command::Top(top)) => top::run(top),
        Some(cli::Command::Doctor(doctor)) => doctor::run(doctor),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            // Nothing is left to do if standard error is closed.
            let _ = writeln!(std::io::stderr(), "spanprof: {}", terminal::plain(&sentence));
            ExitCode::FAILURE
        }
    }
}
