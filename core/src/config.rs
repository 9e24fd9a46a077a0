//! What a user sets, once, before anything starts.

use std::fmt;
use std::time::Duration;

/// A value that is never shown: not in Debug, not in messages.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
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
    /// Labels of every series, at most 20.
    pub tags: Vec<(String, String)>,
    /// Samples a second of CPU time, 1 to 1000.
    pub sample_rate: u32,
    /// Time between two uploads, 1 s to 10 min.
    pub upload_interval: Duration,
    /// Whether samples carry `trace_id`.
    pub trace_id: TraceIdLabel,
    /// Whether samples carry `span_name`.
    pub span_names: bool,
    /// Label `pyroscope_spy`: the language's profiler, such as `pyspy`'s successor `spanprof-python`.
    pub spy: String,
    /// Labels `process.runtime.name` and `process.runtime.version`.
    pub runtime: (String, String),
    /// Name and version for `User-Agent` and `otel.scope.*`, such as `pyroscope-otel` `2.0.0`.
    pub package: (String, String),
}
