//! The wheel `pyroscope-otel`: span-aware profiles of CPU time and waits in CPython.
//!
//! `pyroscope._native`, below, is private; the public modules `pyroscope` and `pyroscope.otel` are Python. [`span`] runs in the
//! program's own calls, [`stack`] in the signal handler, [`symbols`] on the profiler's thread; [`runtime`] hands the last two to the
//! engine. [`awaits`] takes samples where coroutines go on. [`profiler`] starts and stops it, with [`arguments`] as its settings and
//! after the [`selftest`]; [`messages`] queues what the logger gets, [`fork`] restarts in a child. [`introspect`] is for tests.

mod arguments;
mod awaits;
mod calls;
mod errors;
mod fork;
mod introspect;
mod messages;
mod profiler;
mod runtime;
mod selftest;
mod span;
mod stack;
mod stopping;
mod strings;
mod symbols;
mod value;

use pyo3::prelude::*;

use crate::span::record::{SpanHandle, loop_hooks};
use crate::span::tags::TagSet;
use crate::span::{context_var, current, tags};

/// No allocation of ours ends a program that lives on without memory.
#[global_allocator]
static ALLOCATOR: spanprof_core::Allocator = spanprof_core::Allocator;

/// Private: what `pyroscope` and `pyroscope.otel` are made of.
#[pyo3::pymodule(gil_used = true)]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::arguments::{environment, read_flag, resource_labels};
    #[pymodule_export]
    use crate::introspect::{current_span_id, line_of, load_faults, time_walk, walk};
    #[pymodule_export]
    use crate::messages::{log_level, messages_due, take_messages};
    #[pymodule_export]
    use crate::profiler::{
        flush, forbid_start, has_wall_time, is_running, restart_in_child, start, stats, stop, thread_started,
    };
    #[pymodule_export]
    use crate::span::current::{RuntimeContext, adopt, follow, publish, retire, unfollow};
    #[pymodule_export]
    use crate::span::processor::SpanHooks;
    #[pymodule_export]
    use crate::span::tags::{add_thread_tag, describe_thread, enter_tags, leave_tags, remove_thread_tag};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::errors::silence_panics();
        crate::fork::restart_by(crate::profiler::restart_in_child);
        crate::span::processor::follow_threads_by(crate::awaits::greenlets::follow_thread);
        crate::prepare(module.py())
    }
}

/// Makes what is made once, while no thread can be at it.
///
/// That is when the module is imported, not at its first use: `pyo3::intern!` and its kind let the GIL go while they make something,
/// and a fork by another thread at that instant leaves a child in which the first to need it waits for ever.
fn prepare(py: Python<'_>) -> PyResult<()> {
    strings::names(py);
    context_var::token_class(py)?;
    current::variable(py)?;
    tags::variable(py)?;
    loop_hooks(py)?;
    py.get_type::<SpanHandle>();
    py.get_type::<TagSet>();
    Ok(())
}
