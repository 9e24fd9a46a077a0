//! Everything that a user sets, as plain data.

use std::fmt;
use std::time::Duration;

use super::address;
use super::secret::Secret;
use crate::messages::Level;
use crate::profile_type::{ProfileType, SampleClock};

/// No variable, but what the name of the setting, `wall_time`, lets one expect.
pub(super) const WALL_TIME_MISSPELT: &str = "PYROSCOPE_PROFILING_WALL_TIME_ENABLED";

/// Whether samples carry the label `trace_id`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceIdLabel {
    /// Yes, unless the server says that it is older than Pyroscope 2.1.0, which makes a series of each trace.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Everything that can be set. Start from [`Config::default`] or [`Config::from_environment`].
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    /// Whether to profile at all. Off: spans go on working and nothing is started.
    pub enabled: bool,
    /// Whether CPU time is profiled.
    pub cpu_enabled: bool,
    /// Whether all time of spans is profiled: what they waited for too.
    pub wall_time: bool,
    /// Whether the environment asks for that by a name that is not read, `PYROSCOPE_PROFILING_WALL_TIME_ENABLED`: a message says so.
    pub wall_time_misspelt: bool,
    /// Whether each wait becomes a sample, however short and however many there are. For stress tests.
    pub every_wait: bool,
    /// Kinds of profile beyond the timer's, whose samples the host takes itself ([`sample_here`](crate::sample_here)).
    pub profile_types: Vec<ProfileType>,
    /// Whether allocations are profiled, by a host that can.
    pub allocation_enabled: bool,
    /// Whether waits for locks are profiled, by a host that can.
    pub lock_enabled: bool,
    /// Whether exceptions are profiled, by a host that can.
    pub exception_enabled: bool,
    /// The label `service_name`; must equal the traces' `service.name`.
    pub application_name: String,
    /// `http(s)://host[:port][/path]`, `host:port` (means http), `file:///dir` or `none`.
    pub server_address: String,
    /// User name for HTTP basic authentication, "" for none.
    pub basic_auth_user: String,
    /// Password for it.
    pub basic_auth_password: Secret,
    /// Sent as X-Scope-OrgID, "" for none.
    pub tenant_id: String,
    /// Further request headers.
    pub http_headers: Vec<(String, Secret)>,
    /// Labels of every series, at most 20. Of two with the same name the later one counts.
    pub tags: Vec<(String, String)>,
    /// Samples a second of CPU time, 1 to 1000 (to 10000 by wall time).
    pub sample_rate: u32,
    /// What timers count. Anything but CPU time is for stress tests.
    pub clock: SampleClock,
    /// Time between two uploads, 1 s to 10 min.
    pub upload_interval: Duration,
    /// Whether samples carry `trace_id`.
    pub trace_id: TraceIdLabel,
    /// Whether samples carry `span_name`.
    pub span_names: bool,
    /// Whether samples carry the span's name as the label `span` too, as Grafana's Ruby gem calls it. No tag may have that
    /// name then.
    pub legacy_labels: bool,
    /// Whether all series carry the label `pid`: a series a process.
    pub report_pid: bool,
    /// Whether samples carry the label `thread_id`: a series a thread.
    pub report_thread_id: bool,
    /// Whether samples carry the label `thread_name`: a series a name.
    pub report_thread_name: bool,
    /// The least level of messages that a user is told, `None` for none at all. Bindings keep to it.
    pub log_level: Option<Level>,
    /// Label `pyroscope_spy`: the language's profiler, such as `pyspy`'s successor `spanprof-python`.
    pub spy: String,
    /// Labels `process.runtime.name` and `process.runtime.version`.
    pub runtime: (String, String),
    /// Name and version for `User-Agent` and `otel.scope.*`, such as `pyroscope-otel` `2.0.0`.
    pub package: (String, String),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            cpu_enabled: true,
            wall_time: false,
            wall_time_misspelt: false,
            every_wait: false,
            profile_types: Vec::new(),
            allocation_enabled: false,
            lock_enabled: false,
            exception_enabled: false,
            application_name: String::new(),
            server_address: "http://localhost:4040".to_owned(),
            basic_auth_user: String::new(),
            basic_auth_password: Secret::default(),
            tenant_id: String::new(),
            http_headers: Vec::new(),
            tags: Vec::new(),
            sample_rate: 100,
            clock: SampleClock::Cpu,
            upload_interval: Duration::from_secs(10),
            trace_id: TraceIdLabel::Auto,
            span_names: true,
            legacy_labels: false,
            report_pid: false,
            report_thread_id: false,
            report_thread_name: false,
            log_level: Some(Level::Warning),
            spy: "spanprof".to_owned(),
            runtime: (String::new(), String::new()),
            package: (env!("CARGO_PKG_NAME").to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        }
    }
}

/// Written by hand because people put credentials into `server_address` too.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("enabled", &self.enabled)
            .field("cpu_enabled", &self.cpu_enabled)
            .field("wall_time", &self.wall_time)
            .field("wall_time_misspelt", &self.wall_time_misspelt)
            .field("every_wait", &self.every_wait)
            .field("profile_types", &self.profile_types)
            .field("allocation_enabled", &self.allocation_enabled)
            .field("lock_enabled", &self.lock_enabled)
            .field("exception_enabled", &self.exception_enabled)
            .field("application_name", &self.application_name)
            .field("server_address", &address::without_credentials(&self.server_address))
            .field("basic_auth_user", &self.basic_auth_user)
            .field("basic_auth_password", &self.basic_auth_password)
            .field("tenant_id", &self.tenant_id)
            .field("http_headers", &self.http_headers)
            .field("tags", &self.tags)
            .field("sample_rate", &self.sample_rate)
            .field("upload_interval", &self.upload_interval)
            .field("trace_id", &self.trace_id)
            .field("span_names", &self.span_names)
            .field("legacy_labels", &self.legacy_labels)
            .field("report_pid", &self.report_pid)
            .field("report_thread_id", &self.report_thread_id)
            .field("report_thread_name", &self.report_thread_name)
            .field("log_level", &self.log_level)
            .field("spy", &self.spy)
            .field("runtime", &self.runtime)
            .field("package", &self.package)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_shows_no_credentials() {
        let config = Config {
            server_address: "https://glc:hunter2@profiles.example/base".to_owned(),
            basic_auth_password: Secret("hunter2".to_owned()),
            http_headers: vec![("Authorization".to_owned(), Secret("Bearer hunter2".to_owned()))],
            ..Config::default()
        };
        let shown = format!("{config:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("profiles.example/base"), "{shown}");
    }
}
