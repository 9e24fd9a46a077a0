//! `spanprof`: receives profiles and traces, and shows the flame graph of a span in a browser.
//!
//! Bytes come in through [`receive`], become rows in [`store`], numbers in [`show`] and HTML in [`pages`]. Each of
//! them uses the ones before it and never one after it. Every view, API answer and download is made from one value,
//! the [`selection::Selection`].

#![forbid(unsafe_code)]

mod api;
mod cli;
mod clock;
mod doctor;
mod downloads;
mod ids;
mod look;
mod pages;
mod params;
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

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
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
            let _ = writeln!(std::io::stderr(), "spanprof: {sentence}");
            ExitCode::FAILURE
        }
    }
}
