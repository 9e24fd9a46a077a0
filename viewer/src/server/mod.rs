//! The process: sockets, routes, retention, and the end by a signal.

mod arriving;
mod connections;
pub(crate) mod flags;
mod guard;
mod metrics;
mod paced;
mod patient;
mod places;
mod tenants;
mod tls;

use std::fmt;
use std::fs::{File, TryLockError};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::clock;
use crate::memory::Shares;
use crate::receive;
use crate::receive::profilers::Profilers;
use crate::store::Store;

use flags::{Cli, Optional};
use places::Connections;
use tenants::{Listener, Setup, Tenants};

/// How often what is too old or too much is forgotten.
const RETENTION_TICK: Duration = Duration::from_secs(30);
/// How long requests in flight may take after a signal.
const LAST_REQUESTS: Duration = Duration::from_secs(5);

/// Serves until SIGTERM or SIGINT. The error is one sentence.
pub(crate) fn run(cli: &Cli) -> Result<(), String> {
    // Before the file is opened, and until the process ends.
    let _lock = cli.data.as_deref().map(lock).transpose()?;
    run_with(cli, Store::open(cli.data.as_deref(), &Shares::of(cli.memory).limits())?)
}

/// Keeps other processes off the file of --data and those of the tenants beside it.
fn lock(file: &Path) -> Result<File, String> {
    let mut name = file.as_os_str().to_owned();
    name.push(".lock");
    let failed = |error: &dyn fmt::Display| format!("cannot use --data {}: {error}", file.display());
    let opened = File::options().create(true).write(true).truncate(false).open(&name);
    let lock = opened.map_err(|error| failed(&format!("cannot open {}: {error}", Path::new(&name).display())))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(failed(&"another spanprof uses it; end that one, or give another file")),
        Err(TryLockError::Error(error)) => Err(failed(&error)),
    }
}

/// The same with a store that is open already.
pub(crate) fn run_with(cli: &Cli, store: Arc<Store>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        // Each has memory of its own that the allocator keeps: those of large uploads and questions, and one for all else.
        .max_blocking_threads(receive::AT_ONCE + Shares::of(cli.memory).at_once + 1)
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start threads: {error}"))?;
    let served = runtime.block_on(serve(cli, store));
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

async fn serve(cli: &Cli, store: Arc<Store>) -> Result<(), String> {
    let main = bind(cli.listen).await.map_err(|error| {
        format!("cannot listen on {}: {error}; choose another address by --listen ADDR:PORT", cli.listen)
    })?;
    let guard = guard::Guard::new(&cli.allow_host, cli.basic_auth.as_ref())?;
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|error| format!("cannot watch for SIGTERM: {error}"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| format!("cannot watch for SIGINT: {error}"))?;

    let (stop, stopped) = watch::channel(false);

    say(&format!("spanprof listening on http://{}", main.address));
    let mut servers = tokio::task::JoinSet::new();
    let otlp = bind_further(cli.listen_otlp, "OTLP traces", "--listen-otlp", main.address).await;
    let grpc = bind_further(cli.listen_grpc, "OTLP by gRPC", "--listen-grpc", main.address).await;
    let setup = Setup {
        retain: cli.retain,
        address: main.address,
        otlp: otlp.as_ref().map(|bound| bound.address),
        data: cli.data.clone(),
        shares: Shares::of(cli.memory),
        profilers: Profilers::default(),
    };
    let all = Connections::new(setup.shares.sent);
    let tenants = Arc::new(Tenants::new(setup, store)?);
    for (bound, listener) in [(otlp, Listener::Otlp), (grpc, Listener::Grpc)] {
        if let Some(bound) = bound {
            let routes = guard.wrap(tenants.routes(listener));
            servers.spawn(connections::serve(bound.socket, routes, Arc::clone(&all), stopped.clone()));
        }
    }
    let routes = metrics::routes(Arc::clone(&tenants)).merge(tenants.routes(Listener::Main));
    servers.spawn(connections::serve(main.socket, guard.wrap(routes), all, stopped));
    let retention = tokio::spawn(forget_the_old(tenants, cli.retain));

    let ended = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        // A server that ends by itself has failed.
        Some(done) = servers.join_next() => match done {
            Ok(()) => Err("the server ended by itself".into()),
            Err(error) => Err(format!("the server failed: {error}")),
        },
    };
    retention.abort();
    // Nobody listens any more if all servers have ended.
    let _ = stop.send(true);
    // Whoever keeps a connection open longer is cut off.
    let _ = tokio::time::timeout(LAST_REQUESTS, servers.join_all()).await;
    ended
}

struct Bound {
    socket: TcpListener,
    address: SocketAddr,
}

async fn bind(address: SocketAddr) -> Result<Bound, String> {
    let socket = TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => "another program uses it".to_owned(),
        _ => error.to_string(),
    })?;
    let address = socket.local_addr().map_err(|error| error.to_string())?;
    Ok(Bound { socket, address })
}

/// Binds an address beside the main one. If it is taken this is said, and no reason to end: OTLP by HTTP still comes in
/// by the main address.
async fn bind_further(address: Optional<SocketAddr>, what: &str, flag: &str, main: SocketAddr) -> Option<Bound> {
    let address = address.0?;
    match bind(address).await {
        Ok(bound) => {
            say(&format!("spanprof listening for {what} on http://{}", bound.address));
            Some(bound)
        }
        Err(error) => {
            let _ = writeln!(
                std::io::stderr(),
                "spanprof: cannot listen for {what} on {address}: {error}; send them to http://{main}/v1/traces, \
                 or choose another address by {flag} ADDR:PORT, or none"
            );
            None
        }
    }
}

async fn forget_the_old(tenants: Arc<Tenants>, retain: Duration) {
    let mut tick = tokio::time::interval(RETENTION_TICK);
    let limits = tenants.limits();
    loop {
        let is_tick = tokio::select! {
            _ = tick.tick() => true,
            () = limits.exceeded() => false,
        };
        let (tenants, limits) = (Arc::clone(&tenants), Arc::clone(&limits));
        let oldest = clock::now().saturating_sub(i64::try_from(retain.as_nanos()).unwrap_or(i64::MAX));
        let forget =
            move || if is_tick { tenants.retain(oldest) } else { limits.enforce().map_err(|error| error.to_string()) };
        let done = tokio::task::spawn_blocking(forget).await;
        if let Ok(Err(error)) = done {
            // It is tried again at the next tick.
            let _ = writeln!(std::io::stderr(), "spanprof: cannot forget old data: {error}");
        }
    }
}

/// One line on standard output; scripts read the address from it.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Nothing is left to do if standard output is closed.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
