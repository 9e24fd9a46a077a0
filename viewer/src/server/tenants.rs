//! A store, its pages and its receivers for each tenant, and which of them a request reaches.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, io};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::http::uri::PathAndQuery;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::get;
use tower_service::Service as _;

use crate::budget::Budget;
use crate::http::refusal::{Reason, Refusal, RefusalCount, Refusals};
use crate::http::tenant::{HEADER, PREFIX, Tenant, TenantChoice};
use crate::memory::Shares;
use crate::queries::Queries;
use crate::receive::profilers::Profilers;
use crate::receive::{self, Keeper, Kept, Permits, Receiver};
use crate::show::Shown;
use crate::store::{StorageLimits, Store};
use crate::{api, export, pages, pyroscope};

/// Each tenant takes this much of --memory at least: tables, caches, connections.
const LEAST_BYTES: u64 = 16 << 20;
/// Files of tenants end so.
const EXTENSION: &str = "db";

/// What is the same for all tenants.
pub(super) struct Setup {
    pub(super) retain: Duration,
    pub(super) address: SocketAddr,
    pub(super) otlp: Option<SocketAddr>,
    /// The file of --data.
    pub(super) data: Option<PathBuf>,
    /// What --memory is divided into.
    pub(super) shares: Shares,
    /// Those of each tenant share the room of these.
    pub(super) profilers: Profilers,
}

/// Which address a request came in by.
#[derive(Clone, Copy, Debug)]
pub(super) enum Listener {
    Main,
    Otlp,
    Grpc,
}

/// What a tenant has of its own.
pub(super) struct TenantState {
    pub(super) store: Arc<Store>,
    kept: Kept,
    pub(super) refusals: Arc<Refusals>,
    main: Router,
    otlp: Router,
    grpc: Router,
}

/// All tenants that anything is stored of.
pub(super) struct Tenants {
    setup: Setup,
    permits: Permits,
    queries: Queries,
    /// What the bodies of questions take their bytes from.
    bodies: Arc<Budget>,
    anonymous: Arc<TenantState>,
    /// What those see of whom nothing was received.
    nobody: TenantState,
    /// What was refused of whom nothing is stored. Only counted: one may not see what another was told.
    strangers: Arc<Refusals>,
    others: Mutex<BTreeMap<Tenant, Arc<TenantState>>>,
}

impl Tenants {
    /// `store` holds what is received without a tenant. Those that have files are opened.
    pub(super) fn new(setup: Setup, store: Arc<Store>) -> Result<Self, String> {
        let permits = Permits::new(setup.shares.requests);
        let queries = Queries::new(setup.shares.at_once);
        let bodies = pyroscope::bodies(setup.shares.questions);
        let nobody =
            TenantState::new(Store::open(None, &store.limits().for_no_store())?, &setup, &permits, &queries, &bodies);
        let anonymous = Arc::new(TenantState::new(store, &setup, &permits, &queries, &bodies));
        let others = Mutex::default();
        let tenants = Self { setup, permits, queries, bodies, anonymous, nobody, strangers: Arc::default(), others };
        for tenant in tenants.with_files()? {
            let state = tenants.open(&tenant)?;
            tenants.others().insert(tenant, state);
        }
        Ok(tenants)
    }

    /// What the stores of all share.
    pub(super) fn limits(&self) -> Arc<StorageLimits> {
        Arc::clone(self.anonymous.store.limits())
    }

    /// What was refused, of all.
    pub(super) fn refused(&self) -> Vec<RefusalCount> {
        let known = self.all().into_iter().flat_map(|state| state.refusals.counts());
        known.chain(self.strangers.counts()).collect()
    }

    /// Every tenant's state.
    pub(super) fn all(&self) -> Vec<Arc<TenantState>> {
        let others = self.others();
        std::iter::once(&self.anonymous).chain(others.values()).map(Arc::clone).collect()
    }

    /// Forgets what is older than `oldest`, and tenants that nothing is left of.
    pub(super) fn retain(&self, oldest: i64) -> Result<(), String> {
        // One broken file is no reason to keep what is old in the others.
        let forget = |state: Arc<TenantState>| state.store.retain(oldest).map_err(|error| error.to_string());
        let failed = self.all().into_iter().map(forget).fold(Ok(()), Result::and);
        // Their stores may be at work, which nobody who only needs the list should wait for.
        let is_empty = |state: &TenantState| state.store.is_empty().unwrap_or(false);
        let known: Vec<_> = self.others().iter().map(|(tenant, state)| (tenant.clone(), Arc::clone(state))).collect();
        let empty: Vec<Tenant> =
            known.into_iter().filter(|(_, state)| is_empty(state)).map(|(tenant, _)| tenant).collect();
        let mut gone = Vec::new();
        let mut others = self.others();
        others.retain(|tenant, state| {
            // Who works on a request of the tenant has the state too, and new ones wait for the list.
            let unused = empty.contains(tenant) && Arc::strong_count(state) == 1 && is_empty(state);
            if unused {
                gone.push(tenant.clone());
            }
            !unused
        });
        let removed = gone.iter().filter_map(|tenant| self.file(tenant)).try_for_each(|file| remove(&file));
        failed.and(removed)
    }

    /// The routes of one listener, for all tenants.
    pub(super) fn routes(self: &Arc<Self>, listener: Listener) -> Router {
        Router::new()
            // It needs nothing of any tenant, so it waits for none that is being opened.
            .route("/ready", get(|| async { "ready" }))
            .fallback(move |State(tenants): State<Arc<Self>>, request| async move {
                tenants.dispatch(listener, request).await
            })
            .with_state(Arc::clone(self))
    }

    async fn dispatch(self: Arc<Self>, listener: Listener, mut request: Request) -> Response {
        let (said, path) = match Tenant::of(request.headers(), request.uri().path()) {
            Ok((said, path)) => (said, path.to_owned()),
            Err(sentence) => return self.refuse(listener, &request, &Refusal::new(Reason::Invalid, sentence)),
        };
        if let Some(name) = path.strip_prefix(PREFIX).filter(|_| matches!(listener, Listener::Main)) {
            // Without its slash; links of the page would else lead beside it.
            return match Tenant::parse(name, "the address") {
                Ok(tenant) => Redirect::permanent(&format!("{tenant}/")).into_response(),
                Err(sentence) => self.refuse(listener, &request, &Refusal::new(Reason::Invalid, sentence)),
            };
        }
        let tenant = said.clone().unwrap_or_else(Tenant::anonymous);
        let state = self.known(&tenant);
        if path != request.uri().path() {
            *request.uri_mut() = with_path(request.uri(), &path);
        }
        // Whom a proxy holds to a tenant is offered no other.
        let names = if request.headers().contains_key(HEADER) { Vec::new() } else { self.names() };
        let request_tenant = tenant.clone();
        request.extensions_mut().insert(TenantChoice { tenant, names });
        let mut routes = match state.as_deref() {
            None if receive::is_upload(&path) => self.stranger(&request_tenant, listener),
            state => state.unwrap_or(&self.nobody).by(listener).clone(),
        };
        match routes.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    /// The state of a tenant that something was received of.
    fn known(&self, tenant: &Tenant) -> Option<Arc<TenantState>> {
        if *tenant == Tenant::anonymous() {
            Some(Arc::clone(&self.anonymous))
        } else {
            self.others().get(tenant).cloned()
        }
    }

    /// What receives of a tenant that nothing is stored of. It has a state from the moment on that there is something to
    /// store, so that what is refused takes no place and makes no file.
    fn stranger(self: &Arc<Self>, tenant: &Tenant, listener: Listener) -> Router {
        let (tenants, tenant) = (Arc::clone(self), tenant.clone());
        // With the state, so that nobody takes an empty store for one that is not used.
        let make = move || tenants.add(&tenant).map(|state| Kept { _owner: Some(state.clone()), ..state.kept.clone() });
        let keeper = Keeper::Later(Box::new(make));
        let receiver = Receiver::new(keeper, Arc::clone(&self.strangers), self.setup.retain, &self.permits);
        match listener {
            Listener::Main => receive::routes(Arc::new(receiver)),
            Listener::Otlp => receive::otlp_port(Arc::new(receiver), self.setup.address.port()),
            Listener::Grpc => receive::grpc_port(Arc::new(receiver), self.setup.address.port()),
        }
    }

    /// Makes the state of a tenant; it may wait for its file.
    fn add(&self, tenant: &Tenant) -> Result<Arc<TenantState>, Refusal> {
        let mut others = self.others();
        // Another request of it may have been faster.
        if let Some(state) = others.get(tenant) {
            return Ok(Arc::clone(state));
        }
        let most = usize::try_from(self.anonymous.store.limits().most() / LEAST_BYTES).unwrap_or(usize::MAX).max(1);
        if others.len() >= most {
            let sentence =
                format!("X-Scope-OrgID: {tenant} would be one tenant more than the {most} that --memory has room for");
            return Err(Refusal::new(Reason::Tenants, sentence));
        }
        let state = self.open(tenant).map_err(|sentence| Refusal::new(Reason::Store, sentence))?;
        others.insert(tenant.clone(), Arc::clone(&state));
        Ok(state)
    }

    fn open(&self, tenant: &Tenant) -> Result<Arc<TenantState>, String> {
        let file = self.file(tenant);
        if let Some(folder) = file.as_deref().and_then(Path::parent) {
            fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        }
        let store = Store::open(file.as_deref(), self.anonymous.store.limits())?;
        Ok(Arc::new(TenantState::new(store, &self.setup, &self.permits, &self.queries, &self.bodies)))
    }

    /// The tenants that have files already.
    fn with_files(&self) -> Result<Vec<Tenant>, String> {
        let Some(folder) = self.folder() else {
            return Ok(Vec::new());
        };
        let failed = |error: io::Error| format!("cannot read {}: {error}", folder.display());
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            let name = path.file_stem().and_then(|stem| stem.to_str());
            if path.extension().is_some_and(|extension| extension == EXTENSION)
                && let Some(Ok(tenant)) = name.map(|name| Tenant::parse(name, "its file"))
            {
                found.push(tenant);
            }
        }
        Ok(found)
    }

    /// Where tenants keep their files: beside that of --data.
    fn folder(&self) -> Option<PathBuf> {
        let mut folder = self.setup.data.clone()?.into_os_string();
        folder.push(".tenants");
        Some(folder.into())
    }

    fn file(&self, tenant: &Tenant) -> Option<PathBuf> {
        Some(self.folder()?.join(format!("{tenant}.{EXTENSION}")))
    }

    fn names(&self) -> Vec<Tenant> {
        let others = self.others();
        if others.is_empty() {
            Vec::new()
        } else {
            std::iter::once(Tenant::anonymous()).chain(others.keys().cloned()).collect()
        }
    }

    /// Who sends nothing that is taken is told so in the words of its protocol; it is no tenant's, so nobody's count.
    fn refuse(&self, listener: Listener, request: &Request<Body>, refusal: &Refusal) -> Response {
        if receive::is_upload(request.uri().path()) {
            self.strangers.count("tenants", refusal);
        }
        match listener {
            Listener::Grpc => receive::grpc_refusal(refusal),
            Listener::Main | Listener::Otlp => receive::refusal_in_json(refusal),
        }
    }

    fn others(&self) -> MutexGuard<'_, BTreeMap<Tenant, Arc<TenantState>>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TenantState {
    fn new(store: Arc<Store>, setup: &Setup, permits: &Permits, queries: &Queries, bodies: &Arc<Budget>) -> Self {
        let refusals = Arc::new(Refusals::default());
        let profilers = Arc::new(setup.profilers.of_another());
        let kept = Kept { store: Arc::clone(&store), profilers: Arc::clone(&profilers), _owner: None };
        let keeper = Keeper::Known(kept.clone());
        let receiver = Arc::new(Receiver::new(keeper, Arc::clone(&refusals), setup.retain, permits));
        let shown = Arc::new(Shown {
            store: Arc::clone(&store),
            refusals: Arc::clone(&refusals),
            profilers,
            retain: setup.retain,
            address: setup.address,
            otlp: setup.otlp,
            queries: queries.clone(),
        });
        let ready = || get(|| async { "ready" });
        let main = Router::new()
            .merge(receive::routes(Arc::clone(&receiver)))
            .merge(pyroscope::routes(Arc::clone(&store), queries.clone(), bodies))
            .merge(api::routes(Arc::clone(&shown)))
            .merge(export::routes(Arc::clone(&shown)))
            .merge(pages::routes(shown));
        let port = setup.address.port();
        let otlp = receive::otlp_port(Arc::clone(&receiver), port).route("/ready", ready());
        let grpc = receive::grpc_port(receiver, port).route("/ready", ready());
        Self { store, kept, refusals, main, otlp, grpc }
    }

    fn by(&self, listener: Listener) -> &Router {
        match listener {
            Listener::Main => &self.main,
            Listener::Otlp => &self.otlp,
            Listener::Grpc => &self.grpc,
        }
    }
}

/// The same address with another path.
fn with_path(uri: &Uri, path: &str) -> Uri {
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut parts = uri.clone().into_parts();
    // Both were part of a valid address.
    parts.path_and_query = PathAndQuery::try_from(format!("{path}{query}")).ok();
    Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
}

/// Removes a tenant's file; SQLite removed what it keeps beside it.
fn remove(file: &Path) -> Result<(), String> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(format!("cannot remove {}: {error}", file.display())),
        _ => Ok(()),
    }
}
