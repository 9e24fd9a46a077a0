//! The process: sockets, routes, retention, and the end by a signal.

mod guard;
mod metrics;

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::cli::{self, Cli, Optional};
use crate::receive::{self, Receiver, Refusals};
use crate::selection::{LAST_HOUR, Window};
use crate::show::Shown;
use crate::store::Store;
use crate::{api, clock, downloads, pages, query};

/// How often what is too old or too much is forgotten.
const RETENTION_TICK: Duration = Duration::from_secs(30);
/// How long requests in flight may take after a signal.
const LAST_REQUESTS: Duration = Duration::from_secs(5);

/// Serves until SIGTERM or SIGINT. The error is one sentence.
pub(crate) fn run(cli: &Cli) -> Result<(), String> {
    run_with(cli, Arc::new(Store::open(cli.data.as_deref())?), LAST_HOUR)
}

/// The same with a store that is open already; `window` is what pages show that are asked for without a time range.
pub(crate) fn run_with(cli: &Cli, store: Arc<Store>, window: Window) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(8)
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start threads: {error}"))?;
    let served = runtime.block_on(serve(cli, store, window));
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

async fn serve(cli: &Cli, store: Arc<Store>, window: Window) -> Result<(), String> {
    let main = bind(cli.listen).await.map_err(|error| {
        format!("cannot listen on {}: {error}; choose another address by --listen ADDR:PORT", cli.listen)
    })?;
    let guard = guard::Guard::new(&cli.allow_host, cli.basic_auth.as_ref())?;
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|error| format!("cannot watch for SIGTERM: {error}"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| format!("cannot watch for SIGINT: {error}"))?;

    let refusals = Arc::new(Refusals::default());
    let receiver = Arc::new(Receiver::new(Arc::clone(&store), Arc::clone(&refusals), cli.retain));
    let (stop, stopped) = watch::channel(false);

    say(&format!("spanprof listening on http://{}", main.address));
    let mut servers = tokio::task::JoinSet::new();
    let otlp = bind_further(cli.listen_otlp, "OTLP traces", "--listen-otlp", main.address).await;
    let grpc = bind_further(cli.listen_grpc, "OTLP by gRPC", "--listen-grpc", main.address).await;
    let shown = Arc::new(Shown {
        store: Arc::clone(&store),
        refusals,
        window,
        retain: cli.retain,
        room: cli::room(cli.memory),
        address: main.address,
        otlp: otlp.as_ref().map(|bound| bound.address),
    });
    if let Some(bound) = otlp {
        let routes = receive::otlp_routes(Arc::clone(&receiver)).route("/ready", get(|| async { "ready" }));
        servers.spawn(listen(bound.listener, guard.wrap(routes), stopped.clone()));
    }
    if let Some(bound) = grpc {
        let routes = receive::grpc_routes(Arc::clone(&receiver)).route("/ready", get(|| async { "ready" }));
        servers.spawn(listen(bound.listener, guard.wrap(routes), stopped.clone()));
    }
    let routes = Router::new()
        .merge(receive::routes(receiver))
        .merge(metrics::routes(Arc::clone(&store), Arc::clone(&shown.refusals)))
        .merge(query::routes(Arc::clone(&store)))
        .merge(api::routes(Arc::clone(&shown)))
        .merge(downloads::routes(Arc::clone(&shown)))
        .merge(pages::routes(shown));
    servers.spawn(listen(main.listener, guard.wrap(routes), stopped));
    let retention = tokio::spawn(forget_the_old(Arc::clone(&store), cli.retain, cli::room(cli.memory)));

    let ended = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        // A server that ends by itself has failed.
        Some(done) = servers.join_next() => match done {
            Ok(Ok(())) => Err("the server ended by itself".into()),
            Ok(Err(error)) => Err(format!("the server failed: {error}")),
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
    listener: TcpListener,
    address: SocketAddr,
}

async fn bind(address: SocketAddr) -> Result<Bound, String> {
    let listener = TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => "another program uses it".to_owned(),
        _ => error.to_string(),
    })?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    Ok(Bound { listener, address })
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

async fn listen(listener: TcpListener, routes: Router, mut stopped: watch::Receiver<bool>) -> std::io::Result<()> {
    let end = async move {
        // An error means that the sender is gone, which is an end too.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    axum::serve(listener, routes).with_graceful_shutdown(end).await
}

async fn forget_the_old(store: Arc<Store>, retain: Duration, room: u64) {
    let mut tick = tokio::time::interval(RETENTION_TICK);
    loop {
        tick.tick().await;
        let store = Arc::clone(&store);
        let oldest = clock::now().saturating_sub(i64::try_from(retain.as_nanos()).unwrap_or(i64::MAX));
        let done = tokio::task::spawn_blocking(move || store.retain(oldest, room)).await;
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
