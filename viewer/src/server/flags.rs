//! The flags of the server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::memory::parse_memory;
use crate::selection::parse_duration;

/// The flags of the server.
#[derive(Debug, clap::Args)]
pub(crate) struct Cli {
    /// Where pages, API, Push and /v1/traces listen; port 0 takes a free one and prints it.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:4040", value_parser = parse_address)]
    pub(crate) listen: SocketAddr,

    /// Where /v1/traces listens too, for SDKs with OTLP's default endpoint; `none` for nowhere.
    #[arg(long, value_name = "ADDR:PORT|none", default_value = "127.0.0.1:4318", value_parser = parse_optional)]
    pub(crate) listen_otlp: Optional<SocketAddr>,

    /// Where OTLP traces and profiles by gRPC listen; `none` for nowhere.
    #[arg(long, value_name = "ADDR:PORT|none", default_value = "127.0.0.1:4317", value_parser = parse_optional)]
    pub(crate) listen_grpc: Optional<SocketAddr>,

    /// Ask for this user name and the password in the file on every request but /ready.
    #[arg(long, value_name = "USER:FILE", value_parser = parse_basic_auth)]
    pub(crate) basic_auth: Option<BasicAuth>,

    /// A further host name that requests may be addressed to; IP addresses and localhost always may.
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,

    /// Keep the data in this file across restarts, and that of other tenants in the folder FILE.tenants; without it, it
    /// lives in memory.
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Option<PathBuf>,

    /// Forget what is older: 90s, 15m, 1h, 2d.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_duration)]
    pub(crate) retain: Duration,

    /// What the process may take in memory, at least 64m: 128m, 2g; of it about half is for what is stored, the rest
    /// for requests, answers and the program. Of what is stored the oldest goes for it, also from the file of --data.
    #[arg(long, value_name = "SIZE", default_value = "512m", value_parser = parse_memory)]
    pub(crate) memory: u64,
}

/// A value or the word `none`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Optional<T>(pub(crate) Option<T>);

/// Reads an address with a port.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{text:?} is not an IP address with a port, such as 127.0.0.1:4040 or [::1]:4040"))
}

fn parse_optional(text: &str) -> Result<Optional<SocketAddr>, String> {
    if text == "none" {
        return Ok(Optional(None));
    }
    parse_address(text).map(|address| Optional(Some(address))).map_err(|sentence| format!("{sentence}, or none"))
}

/// A user name and a file with its password.
#[derive(Clone, Debug)]
pub(crate) struct BasicAuth {
    /// The user name.
    pub(crate) user: String,
    /// Its first line is the password.
    pub(crate) file: PathBuf,
}

impl BasicAuth {
    /// The file's first line.
    pub(crate) fn password(&self) -> Result<String, String> {
        let file = self.file.display();
        let text = std::fs::read_to_string(&self.file)
            .map_err(|error| format!("cannot read the password of --basic-auth from {file}: {error}"))?;
        let password = text.lines().next().filter(|password| !password.is_empty());
        password
            .map(str::to_owned)
            .ok_or_else(|| format!("the first line of {file}, the password of --basic-auth, is empty"))
    }

    /// User and password, as Authorization has them behind its scheme.
    pub(crate) fn token(&self) -> Result<String, String> {
        Ok(STANDARD.encode(format!("{}:{}", self.user, self.password()?)))
    }
}

/// Reads `USER:FILE`.
pub(crate) fn parse_basic_auth(text: &str) -> Result<BasicAuth, String> {
    match text.split_once(':') {
        Some((user, file)) if !user.is_empty() && !file.is_empty() => {
            Ok(BasicAuth { user: user.into(), file: file.into() })
        }
        _ => {
            Err(format!("{text:?} is not a user name and a file with the password, such as me:/etc/spanprof-password"))
        }
    }
}
