//! The messages that profiles travel in: pprof, and Pyroscope's Push request around it.
//!
//! The profiler writes them and the viewer reads them, so they stand here once. They are written by hand from the
//! published `.proto` files (no protoc at build time); an independent decoder checks the tags in tests.

pub mod pprof;
pub mod push;
