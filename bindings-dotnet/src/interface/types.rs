//! What the functions of the cold interface take and answer, as C# sees it.

use interoptopus::ffi;

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
    /// `basic_auth_username`, `basic_auth_password`, `tenant_id`, `http_header.NAME`, `tag.NAME`, `sample_rate` (1 to 1000),
    /// `upload_interval_ms`, `enabled`, `cpu_enabled`, `allocation_enabled`, `lock_enabled`, `exception_enabled`,
    /// `wall_time`, `span_names`, `trace_id` (auto, true, false), `report_pid`, `report_thread_id`, `report_thread_name`, `log_level`
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
pub struct LogMessage {
    /// 1 information, 2 warning.
    pub level: u32,
    /// The sentence.
    pub text: String,
}

/// Sentences, oldest first.
#[ffi]
#[derive(Clone, Debug)]
pub struct MessageList {
    /// The sentences that [`log_level`](Settings) lets through.
    pub messages: Vec<LogMessage>,
}

/// A part of the profiler.
#[ffi]
#[derive(Clone, Debug)]
pub struct FeatureState {
    /// cpu, allocations, locks, exceptions, names or waits.
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
