//! The flags.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::budget::Budget;
use crate::store::Room;

/// What the process takes beside what is stored, remembered, received and asked: code, threads, connections.
const PROCESS: u64 = 24 << 20;
/// The least that --memory may be.
const LEAST_MEMORY: u64 = 64 << 20;

/// Receives profiles (Pyroscope's Push) and traces (OTLP/HTTP), and shows the flame graph of a span in a browser.
#[derive(Debug, clap::Parser)]
#[command(name = "spanprof", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Program {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) serve: Cli,
}

/// What else it can do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Show profiles that lie in files: what profilers write to file:///folder, or any pprof.
    View(View),
    /// Print the hottest functions of a running spanprof's service or span name.
    Top(Top),
    /// Check that a server takes profiles and gives them back by span, and say what to change.
    Doctor(Doctor),
}

/// `spanprof doctor`
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// The server; PYROSCOPE_SERVER_ADDRESS or http://localhost:4040 where nothing is said. What no flag says is taken
    /// from the profilers' variables: PYROSCOPE_BASIC_AUTH_USER and so on.
    #[arg(value_name = "URL")]
    pub(crate) url: Option<String>,

    /// User name, and a file whose first line is the password.
    #[arg(long, value_name = "USER:FILE", value_parser = parse_basic_auth)]
    pub(crate) basic_auth: Option<BasicAuth>,

    /// The tenant, sent as X-Scope-OrgID.
    #[arg(long, value_name = "ID")]
    pub(crate) tenant: Option<String>,

    /// A further header of every request.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) header: Vec<String>,
}

/// `spanprof view`
#[derive(Debug, clap::Args)]
pub(crate) struct View {
    /// Profiles (pprof, plain or gzip), or folders that hold files ending with .pb.gz, .pb, .pprof or .prof.
    #[arg(required = true, value_name = "FILE|DIR")]
    pub(crate) paths: Vec<PathBuf>,

    /// Print the hottest functions of each service and end, without listening.
    #[arg(long)]
    pub(crate) once: bool,

    /// Where the pages are served; port 0 takes a free one and prints it.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,

    /// What the process may take in memory, at least 64m: 128m, 2g. The oldest profiles that have no room go.
    #[arg(long, value_name = "SIZE", default_value = "512m", value_parser = parse_memory)]
    pub(crate) memory: u64,
}

/// `spanprof top`
#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    /// Only this service.
    #[arg(long)]
    pub(crate) service: Option<String>,

    /// Only spans of this name.
    #[arg(long, value_name = "NAME")]
    pub(crate) span: Option<String>,

    /// The last time of this length: 90s, 15m, 1h, 2d, or all; 1h where nothing is said.
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,

    /// Profile type: process_cpu (where nothing is said), memory, or all five parts of one.
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) kind: Option<String>,

    /// Lines of a function stand apart.
    #[arg(long)]
    pub(crate) lines: bool,

    /// Frames of the runtime and of libraries become one.
    #[arg(long)]
    pub(crate) fold: bool,

    /// Of this tenant, sent as X-Scope-OrgID.
    #[arg(long, value_name = "ID")]
    pub(crate) tenant: Option<String>,

    /// How many functions are printed.
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub(crate) limit: usize,

    /// Where spanprof listens.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:4040")]
    pub(crate) url: String,

    /// Further parameters of a selection, as in the addresses of pages: 'dur>p95', status=error, attr.user=7.
    #[arg(value_name = "PARAMETER")]
    pub(crate) parameters: Vec<String>,
}

/// The flags of the server.
#[derive(Debug, clap::Args)]
pub(crate) struct Cli {
    /// Where pages, API, Push and /v1/traces listen; port 0 takes a free one and prints it.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:4040")]
    pub(crate) listen: SocketAddr,

    /// Where /v1/traces listens too, for SDKs with OTLP's default endpoint; `none` for nowhere.
    #[arg(long, value_name = "ADDR:PORT|none", default_value = "127.0.0.1:4318")]
    pub(crate) listen_otlp: Optional<SocketAddr>,

    /// Where OTLP traces and profiles by gRPC listen; `none` for nowhere.
    #[arg(long, value_name = "ADDR:PORT|none", default_value = "127.0.0.1:4317")]
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

impl<T: FromStr> FromStr for Optional<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        if text == "none" { Ok(Self(None)) } else { text.parse().map(|value| Self(Some(value))) }
    }
}

/// A user name and a file with its password.
#[derive(Clone, Debug)]
pub(crate) struct BasicAuth {
    /// The user name.
    pub(crate) user: String,
    /// Its first line is the password.
    pub(crate) file: PathBuf,
}

fn parse_basic_auth(text: &str) -> Result<BasicAuth, String> {
    match text.split_once(':') {
        Some((user, file)) if !user.is_empty() && !file.is_empty() => {
            Ok(BasicAuth { user: user.into(), file: file.into() })
        }
        _ => {
            Err(format!("{text:?} is not a user name and a file with the password, such as me:/etc/spanprof-password"))
        }
    }
}

/// Reads a whole number with a unit: `90s`, `15m`, `1h`, `2d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let allowed = || format!("{text:?} is not a time such as 90s, 15m, 1h or 2d");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(allowed)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(allowed()),
    };
    // A hundred years; more would overflow nanoseconds.
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(seconds))
        .filter(|seconds| (1..=3_153_600_000).contains(seconds))
        .map(Duration::from_secs)
        .ok_or_else(allowed)
}

/// What --memory is divided into, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// Of what is stored.
    pub(crate) stored: u64,
    /// Of what whoever inserts remembers of the store, and again of what whoever asks does.
    pub(crate) remembered: usize,
    /// Of all requests that are received.
    pub(crate) requests: usize,
    /// Of an answer while it is made.
    pub(crate) answer: usize,
    /// How many are made at once.
    pub(crate) at_once: usize,
    /// Of answers that are being sent.
    pub(crate) sent: usize,
}

impl Shares {
    /// Divides --memory.
    pub(crate) fn of(memory: u64) -> Self {
        let part = |parts: u64, least: u64, most: u64| (memory / parts).clamp(least << 20, most << 20);
        let (remembered, requests) = (part(16, 4, 16), part(8, 12, 256));
        let (answers, sent) = (part(8, 6, 256), part(16, 4, 64));
        let at_once = if memory < 256 << 20 { 1 } else { 2 };
        let taken = PROCESS + 2 * remembered + requests + answers + sent;
        let bytes = |share: u64| usize::try_from(share).unwrap_or(usize::MAX);
        Self {
            // SQLite keeps some 200 bytes beside each page of 4 KiB.
            stored: memory.saturating_sub(taken) / 16 * 15,
            remembered: bytes(remembered),
            requests: bytes(requests),
            answer: bytes(answers) / at_once,
            at_once,
            sent: bytes(sent),
        }
    }

    /// The room of all stores.
    pub(crate) fn room(&self) -> Arc<Room> {
        Room::with(self.stored, self.remembered, self.answer)
    }

    /// What a file takes its bytes from while nothing else is done: the shares of all that is not, and what is free of
    /// what may be stored.
    pub(crate) fn of_file(&self, stored: u64) -> Arc<Budget> {
        let free = usize::try_from(self.stored.saturating_sub(stored)).unwrap_or(usize::MAX);
        let bytes = (self.requests + self.answer * self.at_once + self.sent).saturating_add(free);
        Budget::new(bytes, bytes)
    }
}

/// Reads a whole number of bytes with a unit: `64m`, `2g`.
fn parse_memory(text: &str) -> Result<u64, String> {
    let allowed = || format!("{text:?} is not a size such as 128m or 2g");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(allowed)?;
    let bytes = match unit {
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return Err(allowed()),
    };
    let size = number.parse::<u64>().ok().and_then(|number| number.checked_mul(bytes)).ok_or_else(allowed)?;
    if size < LEAST_MEMORY {
        let least = LEAST_MEMORY >> 20;
        let own = least - (Shares::of(LEAST_MEMORY).stored >> 20);
        return Err(format!(
            "{text} is too little: the least is {least}m, of which {own}m are for the program itself and for requests"
        ));
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_need_a_unit_and_a_value() {
        assert_eq!(parse_duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("1h"), Ok(Duration::from_secs(3600)));
        for bad in ["", "h", "0h", "-1h", "1", "1w", "99999999999d", "1é"] {
            assert!(parse_duration(bad).unwrap_err().contains("15m"), "{bad}");
        }
        assert_eq!(parse_memory("64m"), Ok(64 << 20));
        for bad in ["", "m", "64", "-1m", "99999999999999g"] {
            assert!(parse_memory(bad).unwrap_err().contains("128m"), "{bad}");
        }
        for little in ["0m", "1k", "63m"] {
            assert!(parse_memory(little).unwrap_err().contains("the least is 64m"), "{little}");
        }
        for memory in [64, 128, 512, 4_096, 65_536] {
            let Shares { stored, remembered, requests, answer, at_once, sent } = Shares::of(memory << 20);
            let taken = 2 * remembered + requests + answer * at_once + sent;
            assert!(stored > 7 << 20 && stored + PROCESS + taken as u64 <= memory << 20, "{memory}");
        }
    }
}
