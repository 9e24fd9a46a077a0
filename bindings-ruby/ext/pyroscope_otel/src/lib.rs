//! The gem `pyroscope-otel`: span-aware profiles of CPU time and waits in Ruby.
//!
//! `Pyroscope::Native`, below, is private; the public module `Pyroscope` is Ruby. What runs in the signal handler is
//! [`stack`], with `shim/guard.c` and what it reads of [`span`]; [`runtime`] is all of it in the engine's terms. [`span`] runs
//! in the program's own calls, [`events`] in the interpreter's; [`drain`] and [`symbols`] read what the handler wrote.
//!
//! | `Pyroscope::Native` | |
//! |---|---|
//! | `start(Hash{Symbol=>Object})` → true, false | over the environment, see below |
//! | `stop(Float seconds)` → bool | true: a profiler ran and all was sent |
//! | `finish(Float seconds)` → bool | as `stop`, when Ruby ends: nothing is started from then on |
//! | `flush(Float seconds)` → bool | true: the server has it |
//! | `running?` → bool | |
//! | `stats` → Hash{Symbol=>Integer, Hash, String} | of the profiler that runs, else of the last one, see below |
//! | `messages` → [[:info or :warning, String]] | what a logger is to be told since the last call |
//! | `after_fork` → bool | in a child: whether a profiler runs now. Harmless anywhere |
//! | `environment` → [String, [String]] | what the environment alone says: application name, names of tags |
//! | `resource_labels(Hash)` → Hash | the labels that a resource with these attributes gives |
//! | `install_context_hooks` → nil | any number of times; needs opentelemetry-api |
//! | `remove_hooks` → nil | the methods put before OpenTelemetry's only call super from then on |
//! | `configure_spans(bool scope_all, bool inherit_fibers, bool names = true)` → nil | |
//! | `span_started(span, parent_context)` → bool | whether samples carry this very span (a local root; scope all: any); never raises |
//! | `span_finished(span)` → nil | never raises |
//! | `want_times(bool)` → nil | one span processor more, or fewer, wants spans to say what their time went to |
//! | `span_times(span, wall_ns)` → Hash{String=>Integer} or nil | nanoseconds by names of attributes |
//! | `wall_time?` → bool | whether a profiler runs that was asked for wall time |
//! | `tags_within(Hash) { \|bool\| }` → what the block returns | runs it with tags added to the fiber's; false: there can be none here |
//! | `current_tags` → Integer | the number of the set of the fiber that runs; 0: none: for tests |
//! | `add_thread_tag(String, String)` → bool | the calling thread's; false: no profiler, or no name for a tag |
//! | `remove_thread_tag(String, String)` → bool | takes back the last of the same pair |
//! | `current_span` → [String, String] or nil | span and trace id that a sample of this thread would carry now: for tests |
//! | `carried(span)` → span or nil | which one samples carry for it: for tests |
//! | `own_stack` → [[String, Integer]] | the calling thread's frames and lines: for tests |
//! | `supported` → nil or String | why this Ruby cannot be profiled |
//!
//! `running?`, `stats`, `messages` (none there) and `tags_within` (without tags there) may be called in all Ractors.
//!
//! `start` returns false where profiling is switched off, or [`supported`](selftest) says why it cannot be. An ArgumentError names option,
//! value and what is allowed. A profiler that runs is stopped first.
//!
//! `stats` has tallies as `{samples:, weight:}`, and beside the engine's numbers `drain_ns`, CPU time in which the program's threads read
//! rings and look up names, and `stacks_unreadable`.
//!
//! Options of `start`: application_name, server_address, basic_auth_username, basic_auth_password, tenant_id (String);
//! http_headers, tags (Hash of Strings); sample_rate (Integer); upload_interval (seconds); trace_id ("auto", true, false);
//! log_level (trace, debug, info, warn, error, off); span_names, legacy_labels, report_pid, report_thread_id,
//! report_thread_name, enabled, resource_labels, wall_time (true, false). An absent key or nil: as the environment says, else the default.

#![expect(missing_docs, reason = "the one public function is made by the macro of magnus")]

mod arguments;
mod data_type;
mod drain;
mod errors;
mod events;
mod fork;
mod introspect;
mod messages;
mod methods;
mod profiler;
mod ractor;
mod runtime;
mod selftest;
mod span;
mod stack;
mod stats;
mod strings;
mod symbols;
mod transition;
mod value;
mod waits;
mod without_gvl;

use magnus::{Error, Module, Object, Ruby, Value, function};

use crate::events::hooks;
use crate::ractor::ractor_safely;
use crate::span::{current, processor, tags, times};
use crate::symbols::marking;

/// No allocation of ours ends a program that lives on without memory.
#[global_allocator]
static ALLOCATOR: spanprof_core::Allocator = spanprof_core::Allocator;

#[magnus::init(name = "pyroscope_otel")]
fn init(ruby: &Ruby) -> Result<(), Error> {
    errors::silence_panics();
    errors::guard(ruby, || define(ruby))
}

fn define(ruby: &Ruby) -> Result<(), Error> {
    let pyroscope = ruby.define_module("Pyroscope")?;
    errors::define(ruby, pyroscope)?;
    marking::init()?;
    drain::init();
    ractor::init();
    fork::restart_by(profiler::restart_after_fork);
    let native = pyroscope.define_module("Native")?;
    native.define_singleton_method("start", function!(profiler::start, 1))?;
    native.define_singleton_method("stop", function!(profiler::stop, 1))?;
    native.define_singleton_method("finish", function!(profiler::finish, 1))?;
    native.define_singleton_method("flush", function!(profiler::flush, 1))?;
    native.define_singleton_method("after_fork", function!(profiler::after_fork, 0))?;
    native.define_singleton_method("environment", function!(arguments::environment, 0))?;
    native.define_singleton_method("resource_labels", function!(arguments::resource_labels, 1))?;
    native.define_singleton_method("install_context_hooks", function!(install_context_hooks, 0))?;
    native.define_singleton_method("remove_hooks", function!(remove_hooks, 0))?;
    native.define_singleton_method("configure_spans", function!(configure_spans, -1))?;
    native.define_singleton_method("want_times", function!(times::want, 1))?;
    native.define_singleton_method("span_times", function!(times::span_times, 2))?;
    native.define_singleton_method("wall_time?", function!(profiler::has_wall_time, 0))?;
    processor::define(native)?;
    ractor_safely(|| {
        native.define_singleton_method("running?", function!(profiler::is_running, 0))?;
        native.define_singleton_method("stats", function!(stats::stats, 0))?;
        tags::define(native);
        native.define_singleton_method("messages", function!(messages::messages, 0))
    })?;
    native.define_singleton_method("current_tags", function!(introspect::current_tags, 0))?;
    native.define_singleton_method("add_thread_tag", function!(tags::add_to_thread, 2))?;
    native.define_singleton_method("remove_thread_tag", function!(tags::remove_from_thread, 2))?;
    native.define_singleton_method("current_span", function!(introspect::current_span, 0))?;
    native.define_singleton_method("carried", function!(introspect::carried, 1))?;
    native.define_singleton_method("own_stack", function!(selftest::own_stack, 0))?;
    native.define_singleton_method("supported", function!(selftest::supported, 0))
}

fn install_context_hooks(ruby: &Ruby) -> Result<(), Error> {
    errors::guard(ruby, || {
        current::install(ruby)?;
        hooks::add()
    })
}

fn remove_hooks(ruby: &Ruby) -> Result<(), Error> {
    errors::guard(ruby, || {
        current::follow(false);
        Ok(())
    })
}

fn configure_spans(ruby: &Ruby, arguments: &[Value]) -> Result<(), Error> {
    errors::guard(ruby, || {
        let arguments = magnus::scan_args::scan_args::<(bool, bool), (Option<bool>,), (), (), (), ()>(arguments)?;
        let ((scope_all, inherit_fibers), (names,)) = (arguments.required, arguments.optional);
        processor::configure(ruby, scope_all, inherit_fibers, names.unwrap_or(true))
    })
}
