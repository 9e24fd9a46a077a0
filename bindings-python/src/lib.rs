//! The wheel `pyroscope-otel`: span-aware CPU profiles of CPython.
//!
//! `pyroscope._native`, below, is private; the public modules `pyroscope` and `pyroscope.otel` are Python. What runs
//! in the signal handler is [`unwind`] and what it uses: [`layout`], [`memory`], [`cframe`], [`registers`], [`hamt`],
//! [`code_object`], [`definitions`] and [`definition_ring`]. [`resolver`] and [`lines`] read what came out of it.
//! [`span`], [`tags`], [`context_var`] and [`calls`] run in the program's own calls; [`profiler`] and [`selftest`] when it starts
//! and stops; [`look`] is for tests.

mod calls;
mod cframe;
mod code_object;
mod context_var;
mod definition_ring;
mod definitions;
mod errors;
mod hamt;
mod layout;
mod lines;
mod look;
mod memory;
mod names;
mod profiler;
mod registers;
mod resolver;
mod runtime_context;
mod selftest;
mod span;
mod span_hooks;
mod tags;
mod unwind;

/// Private: what `pyroscope` and `pyroscope.otel` are made of.
#[pyo3::pymodule(gil_used = true)]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::look::{current_span_id, line_of, load_faults, time_walk, walk};
    #[pymodule_export]
    use crate::profiler::{
        environment, flush, forbid_start, is_running, log_level, messages_due, parse_bool, resource_labels,
        restart_in_child, start, stats, stop, take_messages, thread_started,
    };
    #[pymodule_export]
    use crate::runtime_context::{RuntimeContext, adopt, follow, publish, retire, unfollow};
    #[pymodule_export]
    use crate::span_hooks::SpanHooks;
    #[pymodule_export]
    use crate::tags::{add_thread_tag, describe_thread, enter_tags, leave_tags, remove_thread_tag};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::errors::silence_panics();
        crate::names::prepare(module.py())
    }
}
