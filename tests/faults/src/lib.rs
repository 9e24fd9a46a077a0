//! Servers that misbehave, each by name, and what must come of a profiler that uploads to them: one list for the tests of
//! the engine (`core/tests/faults.rs`) and, through the program `fault-server`, for those of every language.

#![allow(clippy::unwrap_used, reason = "it is for tests, which may fail")]

mod certificates;
mod list;
mod profile;
mod server;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tempfile::NamedTempFile;

pub use certificates::{Flaw, tls};
pub use list::{faults, own_address};
pub use profile::{Profile, Sample, read};
pub use server::{Options, Push, Reply, Seen, Server};

/// In every credential that clients are given. No message may contain it.
pub const PASSWORD: &str = "hunter2";

/// Where all of the weight must end: the statistic that counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The server has it.
    Uploaded,
    /// The server does not want it.
    Refused,
    /// Given up at the profiler's stop.
    DroppedQueue,
}

/// A server, and what comes of it.
#[derive(Debug)]
pub struct Fault {
    /// Its name.
    pub name: &'static str,
    /// The first replies, one a request; then `last` for ever.
    pub replies: Vec<Reply>,
    /// See `replies`.
    pub last: Reply,
    /// How the server listens.
    pub options: Options,
    /// The server speaks TLS, with a certificate that has this.
    pub flaw: Option<Flaw>,
    /// `{}` stands for the server's port.
    pub address: String,
    /// Variables of the client, beside those of all; `{}` as above.
    pub environment: Vec<(&'static str, String)>,
    /// Where the weight must end.
    pub end: End,
    /// A message must contain this.
    pub says: &'static str,
    /// Requests that must be made again.
    pub retries_at_least: u64,
    /// Seconds that must lie between the first request and the second.
    pub waits_at_least: Duration,
}

/// What a test must find, as JSON.
#[derive(Debug, Serialize)]
pub struct Expected {
    /// The fault.
    pub name: &'static str,
    /// Where the weight must end; what was taken last has one try, and is dropped after a fault that is tried twice.
    pub end: End,
    /// The weight that ends as `dropped_queue` although `end` is another.
    pub last_is_dropped: bool,
    /// A message must contain this.
    pub says: &'static str,
    /// No message may come at all.
    pub says_nothing: bool,
    /// A lower bound of the statistic `retries`.
    pub retries_at_least: u64,
    /// Seconds that must lie between the first request and the second.
    pub waits_at_least: f64,
    /// The server keeps what it does not answer: it has the weight of `dropped_unanswered` too.
    pub keeps_unanswered: bool,
    /// All that is tried again comes twice to the server.
    pub repeats_all: bool,
    /// Requests come as to a proxy.
    pub is_proxied: bool,
}

/// A fault's server that runs, and the variables of a client of it.
#[derive(Debug)]
pub struct Running {
    /// The server.
    pub server: Server,
    /// The address, credentials and settings, as every language's profiler reads them, and proxies and certificates.
    pub environment: BTreeMap<&'static str, String>,
    /// Read by clients for as long as they run.
    _roots: NamedTempFile,
}

impl Fault {
    /// What must come of it.
    pub fn expected(&self) -> Expected {
        let is_unanswered = matches!(self.last, Reply::KeepAndClose | Reply::KeepAndCut);
        Expected {
            name: self.name,
            end: self.end,
            last_is_dropped: self.retries_at_least > 1,
            says: self.says,
            says_nothing: self.end == End::Uploaded && self.replies.is_empty() && self.says.is_empty(),
            retries_at_least: self.retries_at_least,
            waits_at_least: self.waits_at_least.as_secs_f64(),
            keeps_unanswered: is_unanswered || matches!(self.last, Reply::Slow(_)),
            repeats_all: is_unanswered,
            is_proxied: self.options.proxy_authorization.is_some(),
        }
    }

    /// Starts the server, in threads of this process.
    pub fn start(&self) -> Running {
        let mut options = self.options.clone();
        let roots = NamedTempFile::new().unwrap();
        let mut environment = BTreeMap::from([
            ("OTEL_SERVICE_NAME", "faults".to_owned()),
            ("PYROSCOPE_BASIC_AUTH_USER", "me".to_owned()),
            ("PYROSCOPE_BASIC_AUTH_PASSWORD", PASSWORD.to_owned()),
            ("PYROSCOPE_HTTP_HEADERS", format!(r#"{{"X-Token": "{PASSWORD}"}}"#)),
            ("PYROSCOPE_SAMPLE_RATE", "1000".to_owned()),
            // Uploads are asked for.
            ("PYROSCOPE_UPLOAD_INTERVAL", "10m".to_owned()),
        ]);
        if let Some(flaw) = self.flaw {
            options.tls = Some(certificates::tls(flaw, roots.path()));
            environment.insert("SSL_CERT_FILE", roots.path().to_str().unwrap().to_owned());
        }
        let server = Server::start(self.replies.clone(), self.last.clone(), options);
        let port = server.port.to_string();
        environment.insert("PYROSCOPE_SERVER_ADDRESS", self.address.replace("{}", &port));
        environment.extend(self.environment.iter().map(|(name, value)| (*name, value.replace("{}", &port))));
        Running { server, environment, _roots: roots }
    }
}
