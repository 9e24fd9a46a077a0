//! `spanprof`: receives profiles and traces, and shows the flame graph of a span in a browser.
//!
//! Bytes come in through [`receive`], become rows in [`store`] and numbers in [`show`]. From these are made HTML in
//! [`pages`], JSON in [`api`], files in [`export`] and what Pyroscope's clients ask for in [`pyroscope`]. [`server`] puts
//! all of it behind sockets, and [`commands`] is what the program can do. Each uses the ones before it and never one
//! after it. Every view, API answer and download is made from one value, the [`selection::Selection`].
//!
//! It is a library for its fuzz targets alone, and has no public interface but [`run`].

#![forbid(unsafe_code)]

mod api;
mod budget;
mod clock;
mod commands;
mod export;
mod format;
mod http;
mod ids;
mod memory;
mod pages;
mod params;
mod profile_types;
mod pyroscope;
mod queries;
mod receive;
mod selection;
mod sender;
mod server;
mod show;
mod span_status;
mod states;
mod store;
mod work;

/// What fuzz/ calls: each takes any bytes and panics if a promise is broken. No public interface.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    use crate::receive::properties;

    /// A profile, plain or gzip.
    pub fn profile(data: &[u8]) {
        properties::profile(data);
    }

    /// A request of Push or OTLP; the first byte says which, and in which format.
    pub fn request(data: &[u8]) {
        properties::request(data);
    }

    /// A recording of Java Flight Recorder, behind its snapshot of labels.
    pub fn recording(data: &[u8]) {
        properties::recording(data);
    }

    /// A line as the query of /ingest, the rest as its body.
    pub fn ingested(data: &[u8]) {
        properties::ingested(data);
    }
}

/// Runs the program, by the arguments of this process.
pub fn run() -> std::process::ExitCode {
    commands::run()
}
