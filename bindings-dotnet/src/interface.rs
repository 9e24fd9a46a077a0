//! The cold interface: start, flush, stop, settings and statistics, a few calls in a process's life.
//!
//! `Pyroscope.OpenTelemetry/Interop/Native.g.cs` is generated from this file; a test says when it is out of date.
//! Arguments are read, one function of [`profiler`](crate::profiler) is called, its result is passed back. No panic
//! leaves a function. Errors of the profiler are values ([`Answer`]), so that the facade can make exceptions of them.

#![expect(missing_docs, missing_debug_implementations, reason = "of what #[ffi] makes of each function")]

use std::time::Duration;

use interoptopus::inventory::RustInventory;
use interoptopus::pattern::result::panic_to_result;
use interoptopus::wire::Wire;
use interoptopus::{builtins_string, builtins_wire, ffi, function};
use spanprof_core::ErrorKind;

use crate::symbols::code_map;
use crate::{events, profiler};

/// A name and its value.
#[ffi]
#[derive(Clone, Debug)]
pub struct Pair {
    /// The name.
    pub name: String,
    /// Its value.
    pub text: String,
}

/// Pairs, in order; of two with one name the later one counts.
#[ffi]
#[derive(Clone, Debug)]
pub struct Pairs {
    /// The pairs.
    pub pairs: Vec<Pair>,
}

/// What the profiler is started with.
#[ffi]
#[derive(Clone, Debug)]
pub struct Settings {
    /// The environment variables as the program sees them; those that begin with PYROSCOPE_ or OTEL_ are enough.
    pub environment: Vec<Pair>,
    /// Settings made in code, which go before the environment. Names: `application_name`, `server_address`,
    /// `basic_auth_user`, `basic_auth_password`, `tenant_id`, `http_header.NAME`, `tag.NAME`, `sample_rate` (1 to 1000),
    /// `upload_interval_ms`, `enabled`, `cpu_enabled`, `allocation_enabled`, `lock_enabled`, `exception_enabled`,
    /// `span_names`, `trace_id` (auto, true, false), `report_pid`, `report_thread_id`, `report_thread_name`, `log_level`
    /// (as PYROSCOPE_LOG_LEVEL), `runtime_version` (such as 10.0.12).
    pub values: Vec<Pair>,
}

/// Whether something was done, and if not, why.
#[ffi]
#[derive(Clone, Debug)]
pub struct Answer {
    /// 0 done; 1 a setting is not allowed (nothing was started), 2 a profiler runs already, 3 switched off by a setting,
    /// 4 not possible on this platform, 5 the system refused, 6 an internal error.
    pub kind: u32,
    /// Why it was not done; for kind 1 it begins with the setting's name and a colon. Empty when done.
    pub text: String,
}

/// A statistic.
#[ffi]
#[derive(Clone, Debug)]
pub struct Number {
    /// Its name, such as `taken_samples`, `taken_weight`, `threads`.
    pub name: String,
    /// Its value.
    pub number: u64,
}

/// What became of every sample.
#[ffi]
#[derive(Clone, Debug)]
pub struct Statistics {
    /// Numbers by name, always the same ones in the same order.
    pub numbers: Vec<Number>,
    /// The newest error of any stage, empty if there was none.
    pub last_error: String,
}

/// A sentence for the program's logger.
#[ffi]
#[derive(Clone, Debug)]
pub struct Told {
    /// 1 information, 2 warning.
    pub level: u32,
    /// The sentence.
    pub text: String,
}

/// Sentences, oldest first.
#[ffi]
#[derive(Clone, Debug)]
pub struct Messages {
    /// The sentences that [`log_level`](Settings) lets through.
    pub messages: Vec<Told>,
}

/// A part of the profiler.
#[ffi]
#[derive(Clone, Debug)]
pub struct FeatureState {
    /// cpu, allocations, locks, exceptions or names.
    pub name: String,
    /// Whether it works now.
    pub is_on: bool,
    /// Why it does not; empty when it does.
    pub why: String,
}

/// All parts of the profiler.
#[ffi]
#[derive(Clone, Debug)]
pub struct Status {
    /// Always the same ones in the same order.
    pub features: Vec<FeatureState>,
}

/// What can be switched while the profiler runs.
#[ffi]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// CPU time.
    Cpu,
    /// Allocated bytes.
    Allocations,
    /// Waiting for contended locks.
    Locks,
    /// Thrown exceptions.
    Exceptions,
}

/// Why a call failed before the profiler was asked.
#[ffi]
#[derive(Clone, Copy, Debug)]
pub enum Failure {
    /// The arguments' bytes could not be read: C# and library are of different versions.
    Arguments,
}

/// Starts the profiler. Milliseconds; never waits for the server. Nothing runs after an answer other than 0.
#[ffi]
pub fn spanprof_start(mut settings: Wire<Settings>) -> ffi::Result<Wire<Answer>, Failure> {
    panic_to_result(|| match settings.try_unwire() {
        Ok(settings) => ffi::Ok(answer(profiler::start(&settings))),
        Err(_) => ffi::Err(Failure::Arguments),
    })
}

/// Ends sampling and uploads what there is, within `timeout_ms`. True: all of it was delivered. A profiler that was
/// stopped may be started again.
#[ffi]
pub fn spanprof_stop(timeout_ms: u64) -> ffi::Result<bool, Failure> {
    panic_to_result(|| ffi::Ok(profiler::stop(Duration::from_millis(timeout_ms))))
}

/// Ends allocations, lock waits and exceptions, which no later call switches on again. To be called as the process ends,
/// before the runtime disposes of its `EventSource`s. Milliseconds.
#[ffi]
pub fn spanprof_end_events() -> ffi::Result<bool, Failure> {
    panic_to_result(|| {
        events::end();
        ffi::Ok(true)
    })
}

/// Uploads what was sampled so far and waits for it, `timeout_ms` at most. True: all of it is settled.
#[ffi]
pub fn spanprof_flush(timeout_ms: u64) -> ffi::Result<bool, Failure> {
    panic_to_result(|| ffi::Ok(profiler::flush(Duration::from_millis(timeout_ms))))
}

/// What became of every sample: of the profiler that runs, else of the last one, else zeros.
#[ffi]
pub fn spanprof_stats() -> ffi::Result<Wire<Statistics>, Failure> {
    panic_to_result(|| ffi::Ok(Wire::from(profiler::statistics())))
}

/// What the program's logger is to be told since the last call.
#[ffi]
pub fn spanprof_take_messages() -> ffi::Result<Wire<Messages>, Failure> {
    panic_to_result(|| ffi::Ok(Wire::from(Messages { messages: profiler::take_messages() })))
}

/// What works, and why the rest does not.
#[ffi]
pub fn spanprof_status() -> ffi::Result<Wire<Status>, Failure> {
    panic_to_result(|| ffi::Ok(Wire::from(Status { features: profiler::status() })))
}

/// Switches a part on or off while the profiler runs (else kind 3); kind 4 says why it cannot be switched on. CPU time
/// is switched by stopping and starting, which may wait for the server, 2 s at most.
#[ffi]
pub fn spanprof_set_tracking(feature: Feature, enabled: bool) -> ffi::Result<Wire<Answer>, Failure> {
    panic_to_result(|| ffi::Ok(answer(profiler::set_tracking(feature, enabled))))
}

/// Learns which methods were compiled before the profiler was there. To be called by a finalizer alone, whose thread is the
/// one on which the runtime takes code away. Milliseconds; nothing where no profiler is attached.
#[ffi]
pub fn spanprof_catch_up() -> ffi::Result<bool, Failure> {
    panic_to_result(|| {
        code_map::catch_up();
        ffi::Ok(true)
    })
}

/// The number of the tag set `within` with `tags` added, for the block's `tags`; held until [`spanprof_tag_release`].
/// 0 is the empty set, and the answer when 1,024 sets are alive.
#[ffi]
pub fn spanprof_tag_set(within: u32, mut tags: Wire<Pairs>) -> ffi::Result<u32, Failure> {
    panic_to_result(|| match tags.try_unwire() {
        Ok(tags) => ffi::Ok(profiler::tag_set(within, &tags)),
        Err(_) => ffi::Err(Failure::Arguments),
    })
}

/// Ends one claim of [`spanprof_tag_set`].
#[ffi]
pub fn spanprof_tag_release(tag_set: u32) -> ffi::Result<bool, Failure> {
    panic_to_result(|| {
        profiler::tag_release(tag_set);
        ffi::Ok(true)
    })
}

/// Adds the pairs to (or takes them from) the tags of the calling thread, whatever span it is in. False: no profiler runs.
#[ffi]
pub fn spanprof_thread_tags(mut tags: Wire<Pairs>, adding: bool) -> ffi::Result<bool, Failure> {
    panic_to_result(|| match tags.try_unwire() {
        Ok(tags) => ffi::Ok(profiler::thread_tags(&tags, adding)),
        Err(_) => ffi::Err(Failure::Arguments),
    })
}

/// All that C# is generated from.
pub fn inventory() -> RustInventory {
    RustInventory::new()
        .register(function!(spanprof_start))
        .register(function!(spanprof_stop))
        .register(function!(spanprof_end_events))
        .register(function!(spanprof_flush))
        .register(function!(spanprof_stats))
        .register(function!(spanprof_take_messages))
        .register(function!(spanprof_status))
        .register(function!(spanprof_set_tracking))
        .register(function!(spanprof_catch_up))
        .register(function!(spanprof_tag_set))
        .register(function!(spanprof_tag_release))
        .register(function!(spanprof_thread_tags))
        .register(builtins_string!())
        .register(builtins_wire!())
        .validate()
}

fn answer(result: Result<(), spanprof_core::Error>) -> Wire<Answer> {
    let (kind, text) = match result {
        Ok(()) => (0, String::new()),
        Err(error) => {
            let kind = match error.kind() {
                ErrorKind::InvalidConfig => 1,
                ErrorKind::AlreadyRunning => 2,
                ErrorKind::Disabled => 3,
                ErrorKind::Unsupported => 4,
                ErrorKind::System => 5,
                _ => 6,
            };
            (kind, error.message().to_owned())
        }
    };
    Wire::from(Answer { kind, text })
}
