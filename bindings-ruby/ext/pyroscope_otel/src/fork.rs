//! A child that C code forked, past `Process._fork`: the first of our callbacks there restarts the profiler.

use std::sync::OnceLock;

use magnus::Error;

/// What restarts it. Returns whether a profiler runs.
static RESTART: OnceLock<fn() -> Result<bool, Error>> = OnceLock::new();

/// Says what restarts the profiler, when the extension loads.
pub(crate) fn restart_by(restart: fn() -> Result<bool, Error>) {
    RESTART.get_or_init(|| restart);
}

/// What our callbacks do beside their work: restart in a forked child. A load, mostly.
#[inline]
pub(crate) fn restart_if_forked() -> Result<(), Error> {
    if spanprof_core::forked()
        && let Some(restart) = RESTART.get()
    {
        restart()?;
    }
    Ok(())
}
