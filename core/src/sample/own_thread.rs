//! The profiler's own threads.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread of the profiler.
pub(crate) fn spawn(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(f)
}
