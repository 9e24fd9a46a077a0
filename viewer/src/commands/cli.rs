//! The flags of the program and of its commands.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;

use crate::memory::parse_memory;
use crate::server::flags::{BasicAuth, Cli, parse_address, parse_basic_auth};

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
    /// Receive and show, as without a command.
    Serve(Cli),
    /// Show profiles that lie in files: what profilers write to file:///folder, or any pprof.
    View(View),
    /// Print the hottest functions of a running spanprof's service or span name.
    Top(Top),
    /// Check that a server takes profiles and gives them back by span, and say what to change. What it sends stays there, as service
    /// spanprof.doctor.
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
    /// Profiles (pprof or Java recordings, plain or gzip), or folders that hold files ending with .pb.gz, .pb, .pprof, .prof or .jfr, and
    /// of all other .gz those that are profiles.
    #[arg(required = true, value_name = "FILE|DIR")]
    pub(crate) paths: Vec<PathBuf>,

    /// Print the hottest functions of each service and end, without listening.
    #[arg(long)]
    pub(crate) once: bool,

    /// Of --once: only this service.
    #[arg(long, requires = "once", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) service: Option<String>,

    /// Of --once: only spans of this name.
    #[arg(long, requires = "once", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) span: Option<String>,

    /// Of --once: only this profile type, as of `spanprof top`; all that a service has where nothing is said.
    #[arg(long = "type", requires = "once", value_name = "TYPE", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) profile_type: Option<String>,

    /// Where the pages are served; port 0 takes a free one and prints it.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0", value_parser = parse_address)]
    pub(crate) listen: SocketAddr,

    /// What the process may take in memory, at least 64m: 128m, 2g. The oldest profiles that have no room go.
    #[arg(long, value_name = "SIZE", default_value = "512m", value_parser = parse_memory)]
    pub(crate) memory: u64,
}

/// `spanprof top`
#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    /// Only this service.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) service: Option<String>,

    /// Only spans of this name.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) span: Option<String>,

    /// The last time of this length: 90s, 15m, 1h, 2d, or all; where nothing is said 1h, of `spanprof view` all.
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,

    /// Profile type: process_cpu (where nothing is said), wall (all time, by state), memory, or all five parts of one.
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) profile_type: Option<String>,

    /// Lines of a function stand apart.
    #[arg(long)]
    pub(crate) lines: bool,

    /// Frames of the runtime and of libraries become one.
    #[arg(long)]
    pub(crate) fold: bool,

    /// Of this tenant, sent as X-Scope-OrgID.
    #[arg(long, value_name = "ID")]
    pub(crate) tenant: Option<String>,

    /// User name, and a file whose first line is the password.
    #[arg(long, value_name = "USER:FILE", value_parser = parse_basic_auth)]
    pub(crate) basic_auth: Option<BasicAuth>,

    /// How many functions are printed.
    #[arg(long, value_name = "N", default_value = "30", value_parser = parse_limit)]
    pub(crate) limit: usize,

    /// Where spanprof listens; without http:// or https:// it is HTTP.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:4040", value_parser = parse_url)]
    pub(crate) url: String,

    /// Further parameters of a selection, as in the addresses of pages: 'dur>p95', status=error, attr.user=7, label.region=eu, trace=ID,
    /// and of --type wall `state=waits`, or `state=` one of cpu, lock, gil, gvl, io, sleep, await, busy, run_queue, child, name, runtime, gc.
    #[arg(value_name = "PARAMETER")]
    pub(crate) parameters: Vec<String>,
}

fn parse_limit(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{text:?} is not a whole number from 1 on, such as 30"))
}

/// As profilers read their server's address: `localhost:4040` means HTTP.
fn parse_url(text: &str) -> Result<String, String> {
    let (scheme, host) = text.split_once("://").unwrap_or(("http", text));
    if ["http", "https"].contains(&scheme) && !host.is_empty() && !host.starts_with(['/', ':']) {
        Ok(format!("{scheme}://{host}"))
    } else {
        Err(format!("{text:?} is not an address such as http://127.0.0.1:4040 or localhost:4040"))
    }
}
