//! The messages that profiles travel in: pprof, with the labels and the comment in it, and Pyroscope's Push request around it.
//!
//! The profiler writes them and the viewer reads them, so they stand here once. They are written by hand from the
//! published `.proto` files (no protoc at build time); an independent decoder checks the tags in tests.

pub mod labels;
pub mod pprof;
pub mod push;
pub mod stats_comment;
