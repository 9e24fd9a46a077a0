//! What the sampler would see now, asked by a call: for tests and benchmarks. No part of the public modules uses it.

use pyo3::prelude::*;
use spanprof_core::{FrameWriter, SpanRecord};

use crate::selftest::{Frames, Refusal, frames_of, runtime};
use crate::stack::interpreter::{CPython, thread_state};
use crate::stack::memory::Plain;

/// The runtime, or a RuntimeError that says why there is none.
fn known(py: Python<'_>) -> PyResult<&'static CPython> {
    runtime(py)?
        .map_err(|(Refusal::ForGood(why) | Refusal::ForNow(why))| pyo3::exceptions::PyRuntimeError::new_err(why))
}

/// The calling thread's stack as the sampler sees it, leaf first: (function, file, line, first line).
/// Frames beyond the first 16 new functions are "" until a later call.
#[pyfunction]
pub(crate) fn walk(py: Python<'_>) -> PyResult<Frames> {
    let runtime = known(py)?;
    let mut ids = [0; spanprof_core::MAX_FRAMES];
    let mut out = FrameWriter::new(&mut ids);
    // SAFETY: this thread's own state; known() has mapped the definitions and enabled safe loads where needed.
    unsafe { runtime.walk_thread(thread_state(), std::ptr::null(), &mut out) };
    let frames = out.frames();
    Ok(frames_of(runtime, &ids[..frames]))
}

/// The span id that a sample of the calling thread would carry now, 0 outside spans.
#[pyfunction]
pub(crate) fn current_span_id(py: Python<'_>) -> PyResult<u64> {
    let runtime = known(py)?;
    // SAFETY: this thread's own state.
    let context = unsafe { runtime.context_of::<Plain>(thread_state()) };
    // SAFETY: null, or a record that the current context keeps alive.
    Ok(unsafe { context.span.as_ref() }.map_or(0, SpanRecord::span_id))
}

/// Nanoseconds that one walk of the calling thread takes, with context and all, over `rounds`.
#[pyfunction]
pub(crate) fn time_walk(py: Python<'_>, rounds: u32) -> PyResult<f64> {
    let runtime = known(py)?;
    let mut ids = [0; spanprof_core::MAX_FRAMES];
    let started = std::time::Instant::now();
    for _ in 0..rounds {
        let mut out = FrameWriter::new(&mut ids);
        // SAFETY: this thread's own state; the definitions are mapped.
        unsafe { runtime.walk_thread(thread_state(), std::ptr::null(), &mut out) };
        // SAFETY: as above.
        std::hint::black_box(unsafe { runtime.context_of::<Plain>(thread_state()) });
        std::hint::black_box(&mut ids);
    }
    Ok(started.elapsed().as_secs_f64() * 1e9 / f64::from(rounds.max(1)))
}

/// How many guarded loads found nothing, which is no error on 3.11 and 3.12.
#[pyfunction]
pub(crate) fn load_faults() -> u64 {
    spanprof_core::safe_load_faults()
}

/// The line that an instruction of a code object has, by our decoder: its table, first line and instruction.
#[pyfunction]
pub(crate) fn line_of(py: Python<'_>, table: &[u8], first_line: u32, index: u32) -> PyResult<Option<u32>> {
    Ok(crate::symbols::lines::line_of(known(py)?.layout.code.lines, table, first_line, index))
}
