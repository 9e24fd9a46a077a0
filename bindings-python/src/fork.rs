//! A forked child that nobody told of: by C code, past os.register_at_fork. The first callback of ours that comes by restarts the
//! profiler there.

use std::sync::OnceLock;

use pyo3::prelude::*;

/// What restarts it.
type Restart = fn(Python<'_>) -> PyResult<bool>;

static RESTART: OnceLock<Restart> = OnceLock::new();

/// Says what restarts the profiler. When the module is imported.
pub(crate) fn restart_by(restart: Restart) {
    let _ = RESTART.set(restart);
}

/// What our callbacks do beside their work: restart in a forked child. A load, mostly.
#[inline]
pub(crate) fn restart_if_forked(py: Python<'_>) {
    if spanprof_core::forked()
        && let Some(restart) = RESTART.get()
    {
        drop(restart(py));
    }
}
