//! `posthaste serve` and `posthaste worker`: start what was asked for, and stop it in order.
//!
//! Start: data folder, secret, port, store, worker, API; whatever cannot be used is found out
//! before anything is accepted. Stop, the other way round: no new connections, no new claims, what
//! is in flight finishes within a bound, the rest is given back, the store is closed.

use crate::config::{Config, Database, JwtSecret};
use crate::env::{SystemClock, SystemDice};
use crate::failure::{self, Failure};
use crate::token::{self, Subject};
use crate::{cli, logging, secrets, store, welcome};
use posthaste_core::id::WorkerId;
use posthaste_core::time::{Clock, Dice};
use posthaste_engine::courier::{Courier, CourierSettings};
use posthaste_engine::guard::Guard;
use posthaste_engine::resolver::SystemResolver;
use posthaste_engine::{Engine, EngineSettings};
use posthaste_queue::Queue;
use posthaste_server::auth::TokenKeys;
use posthaste_server::{Api, ApiSettings, ServeLimits};
use posthaste_store::Store;
use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What of the product this process runs.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    pub api: bool,
    pub worker: bool,
}

/// Runs until a signal comes.
///
/// # Errors
/// It cannot be started, or the listener failed.
pub fn run(config: Config, parts: Parts) -> Result<(), Failure> {
    let logging = logging::start(config.log);
    raise_file_limit();
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        let mut signals = Signals::new()?;
        let mut running = start(&config, parts).await?;
        welcome::print(&running, &config)?;
        let failed = tokio::select! {
            name = signals.next() => {
                tracing::info!(signal = name, "server.stopping");
                None
            }
            failure = running.api_failed() => Some(failure),
        };
        tokio::spawn(exit_at_second_signal(signals));
        running.stop(config.shutdown_timeout).await?;
        tracing::info!("server.stopped");
        failed.map_or(Ok(()), Err)
    });
    // What still runs is only what was told to stop and did not: it has nothing to lose.
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(logging);
    ended
}

/// Each request in flight and each client takes a file; the usual limit of 1,024 was made for
/// programs that use `select`. Where it cannot be raised, what is there has to do.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// The asynchronous runtime of a server.
///
/// # Errors
/// The operating system gives no threads.
pub fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let built = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    built.map_err(|error| Failure::new(format!("cannot start threads: {error}")))
}

/// A started server.
pub struct Running {
    /// Where the API really listens; the port may have been left to the system.
    pub address: Option<SocketAddr>,
    /// Where metrics and health are, in a process without the API.
    pub metrics: Option<SocketAddr>,
    /// `None`: this process signs and checks no tokens.
    secret: Option<JwtSecret>,
    /// This start made the secret.
    pub first_start: bool,
    store: Arc<dyn Store>,
    engine: Option<Engine>,
    api: Option<JoinHandle<std::io::Result<()>>>,
    stop_api: watch::Sender<bool>,
}

/// Starts the parts on the current runtime.
///
/// # Errors
/// The folder, the port or the database cannot be used.
pub async fn start(config: &Config, parts: Parts) -> Result<Running, Failure> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let dice: Arc<dyn Dice> = Arc::new(SystemDice::new());
    for warning in &config.warnings {
        tracing::warn!(warning, "config.doubtful");
    }
    refuse_secret_of_its_own(config, parts)?;
    if config.needs_data_dir(parts.api) {
        secrets::prepare_folder(&config.data_dir)?;
    }
    let listener = match (parts.api, config.metrics_listen) {
        (true, _) => Some(listen(config.listen, "--listen").await?),
        (false, Some(address)) => Some(listen(address, "--metrics-listen").await?),
        (false, None) => None,
    };
    let worker_id = new_worker(clock.as_ref(), dice.as_ref());
    let store = store::open(config, clock.as_ref()).await?;
    // Only now: a start that fails leaves nothing behind that the next one would take for its own.
    let (secret, first_start) = secret(config, parts, dice.as_ref())?;
    let queue = Arc::new(Queue::new(store.clone()));
    let engine = match parts.worker {
        true => {
            let courier = courier(config)?;
            let settings = engine_settings(config, worker_id);
            let (store, queue) = (store.clone(), queue.clone());
            Some(Engine::start(store, queue, courier, clock.clone(), dice.clone(), settings))
        }
        false => None,
    };
    let (stop_api, stopping) = watch::channel(false);
    let mut running = Running {
        address: None,
        metrics: None,
        secret,
        first_start,
        store,
        engine,
        api: None,
        stop_api,
    };
    if let Some(listener) = listener {
        let address = listener.local_addr();
        let address = address.map_err(|error| Failure::new(format!("the listener: {error}")))?;
        (running.address, running.metrics) = match parts.api {
            true => (Some(address), None),
            false => (None, Some(address)),
        };
        running.api = Some(running.serve_api(listener, queue, clock, dice, config, stopping)?);
    }
    let allowed_networks = config.networks().to_string();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        address = running.address.map(tracing::field::display),
        worker = parts.worker,
        allowed_networks,
        "server.started"
    );
    Ok(running)
}

impl Running {
    /// A token for everything in the default organisation.
    pub fn token(&self, lifetime: Duration) -> Result<String, Failure> {
        let organisation = cli::organisation(token::ORGANISATION)?;
        let now = SystemClock.now();
        token::mint(self.secret()?, &organisation, Subject::Organisation, now, lifetime)
    }

    /// What tokens are checked with; without the API nothing asks for one, and none would do.
    fn token_keys(&self, dice: &dyn Dice) -> Result<TokenKeys, Failure> {
        let mut nobodys = [0; 32];
        dice.fill(&mut nobodys);
        let key = match self.address {
            Some(_) => self.secret()?.expose().as_bytes(),
            None => &nobodys,
        };
        TokenKeys::new(&[key]).ok_or_else(|| Failure::usage("the key of the tokens is empty"))
    }

    fn secret(&self) -> Result<&JwtSecret, Failure> {
        self.secret.as_ref().ok_or_else(|| Failure::usage("no key of tokens in this process"))
    }

    /// Returns when the API ended though nobody stopped it.
    pub async fn api_failed(&mut self) -> Failure {
        let Some(api) = &mut self.api else { return std::future::pending().await };
        let ended = api.await;
        self.api = None;
        match ended {
            Ok(Err(error)) => Failure::new(format!("the API cannot go on: {error}")),
            Ok(Ok(())) => Failure::new("the API ended by itself"),
            Err(error) => Failure::new(format!("the API broke: {error}")),
        }
    }

    /// Stops in order; what is in flight has `bound` to finish.
    ///
    /// # Errors
    /// The store could not be closed.
    pub async fn stop(self, bound: Duration) -> Result<(), Failure> {
        let _ = self.stop_api.send(true);
        let api = async {
            if let Some(api) = self.api {
                let _ = api.await;
            }
        };
        let engine = async {
            if let Some(engine) = self.engine {
                engine.stop(bound).await;
            }
        };
        tokio::join!(api, engine);
        let closed = self.store.close().await;
        closed.map_err(|error| Failure::new(format!("the database did not close: {error}")))
    }

    fn serve_api(
        &self,
        listener: TcpListener,
        queue: Arc<Queue>,
        clock: Arc<dyn Clock>,
        dice: Arc<dyn Dice>,
        config: &Config,
        mut stopping: watch::Receiver<bool>,
    ) -> Result<JoinHandle<std::io::Result<()>>, Failure> {
        let metrics = self.engine.as_ref().map(Engine::metrics_source);
        let tokens = self.token_keys(dice.as_ref())?;
        let api = Api {
            store: self.store.clone(),
            queue,
            clock,
            dice,
            metrics: Arc::new(move || metrics.as_ref().map(|page| page()).unwrap_or_default()),
            settings: api_settings(config, tokens, self.address),
        };
        let stop = async move {
            // An error means that the sender is gone, and then there is nothing left to serve.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        };
        let routes = match self.address {
            Some(_) => posthaste_server::router(api),
            None => posthaste_server::metrics_router(api),
        };
        let limits = ServeLimits::default();
        Ok(tokio::spawn(posthaste_server::serve(listener, routes, limits, stop)))
    }
}

/// `flag` is what sets the address.
async fn listen(address: SocketAddr, flag: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let way_out = match error.kind() {
            ErrorKind::AddrInUse => {
                "another program uses the port, perhaps a server that already runs; stop it, or \
                 choose another port"
            }
            ErrorKind::PermissionDenied => "ports below 1024 need privileges; choose another",
            ErrorKind::AddrNotAvailable => {
                "this machine does not have that address; choose another"
            }
            _ => "choose another address",
        };
        Failure::new(format!("cannot listen on {address}: {error}; {way_out} with {flag}"))
    })
}

/// With PostgreSQL, API processes on other machines, or in other folders, would each make a secret
/// of their own and refuse each other's tokens. `dev` says that this one is alone.
fn refuse_secret_of_its_own(config: &Config, parts: Parts) -> Result<(), Failure> {
    let shared = matches!(config.database, Database::Postgres(_));
    if !shared || !config.needs_own_secret(parts.api) || config.dev {
        return Ok(());
    }
    if secrets::find(&config.data_dir)?.is_some() {
        let folder = config.data_dir.display().to_string();
        tracing::warn!(folder, "secrets.of_this_folder_only");
        return Ok(());
    }
    Err(Failure::usage(
        "jwt_secret is not set: with PostgreSQL, every API process needs the same one, or each \
         would refuse the others' tokens; set POSTHASTE_JWT_SECRET to 32 random characters or more \
         (such as `openssl rand -hex 32` prints) in each, or use --dev to have one made for this \
         process alone",
    ))
}

fn secret(
    config: &Config,
    parts: Parts,
    dice: &dyn Dice,
) -> Result<(Option<JwtSecret>, bool), Failure> {
    if !config.needs_own_secret(parts.api) {
        return Ok((config.jwt_secret.clone(), false));
    }
    let found = secrets::find_or_make(&config.data_dir, dice)?;
    if let Some(path) = secrets::readable_by_others(&config.data_dir) {
        let path = path.display().to_string();
        tracing::warn!(path, "secrets.readable_by_others");
    }
    Ok((Some(found.secret), found.fresh))
}

fn new_worker(clock: &dyn Clock, dice: &dyn Dice) -> WorkerId {
    let mut random = [0; 10];
    dice.fill(&mut random);
    WorkerId::new(clock.now(), random)
}

fn courier(config: &Config) -> Result<Courier, Failure> {
    let resolver = SystemResolver::new()
        .map_err(|error| Failure::new(format!("cannot read the resolver's settings: {error}")))?;
    let guard = Arc::new(Guard::new(config.networks(), Arc::new(resolver)));
    let settings =
        CourierSettings { user_agent: config.user_agent.clone(), ..CourierSettings::default() };
    Courier::new(settings, guard)
        .map_err(|error| Failure::new(format!("cannot make the HTTP client: {error}")))
}

fn engine_settings(config: &Config, worker_id: WorkerId) -> EngineSettings {
    EngineSettings {
        worker_id,
        retry: config.retry.clone(),
        final_statuses: config.final_statuses.clone(),
        timeout: config.timeout,
        rules: config.rules,
        in_flight_max: config.in_flight_max,
        memory_bytes_max: config.memory_bytes_max,
        signing: config.signing,
        history_kept_for: config.history_kept_for,
    }
}

fn api_settings(config: &Config, tokens: TokenKeys, address: Option<SocketAddr>) -> ApiSettings {
    let address = cli::reachable(address.unwrap_or(config.listen));
    let public_url = config.public_url.clone().unwrap_or_else(|| format!("http://{address}"));
    let mut settings = ApiSettings::new(tokens, &public_url);
    settings.https_only = config.https_only;
    settings.secret_kind = config.secret_kind;
    settings.version = env!("CARGO_PKG_VERSION");
    settings
}

/// The signals that ask a server to stop.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let on = |kind| {
            signal(kind).map_err(|error| Failure::new(format!("cannot watch signals: {error}")))
        };
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
        })
    }

    fn next(&mut self) -> impl Future<Output = &'static str> + Send {
        let (terminate, interrupt) = (&mut self.terminate, &mut self.interrupt);
        async {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "whoever signals twice wants no orderly stop")]
async fn exit_at_second_signal(mut signals: Signals) {
    signals.next().await;
    eprintln!("posthaste: stopped at once; what was in flight is sent again after the next start");
    std::process::exit(failure::INTERRUPTED.into());
}
