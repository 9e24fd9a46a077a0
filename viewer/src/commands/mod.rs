//! The commands of the program: what its arguments ask for, done.

mod cli;
mod doctor;
mod terminal;
mod top;
mod view;
mod ways;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use crate::server;

/// Runs the program, by the arguments of this process.
pub(crate) fn run() -> ExitCode {
    let program = cli::Program::parse();
    let done = match &program.command {
        None => server::run(&program.serve),
        Some(cli::Command::Serve(serve)) => server::run(serve),
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
