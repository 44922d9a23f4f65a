//! Acts: carries decisions out. Claims and takes over deliveries, sends them, records what came of
//! it, and keeps the store well.
//!
//! ```text
//! hand-over ─┐
//!            ├─▶ lanes ─▶ attempt ─▶ recorder ─▶ store
//! claims ────┘     ▲         │
//!                  └─────────┘ the next job of a finished one's turn
//! ```
//!
//! **Invariant:** nothing here decides. Retries, breakers, limits and signatures are `core`'s; what
//! is due and whose lease counts is the store's.

/// Says that something failed with the store, unless the store says so itself: that it is away is
/// one line in the log, not one for each who needs it.
macro_rules! complain {
    ($error:expr, $($field:tt)+) => {
        match $error.reason() {
            Some(_) => tracing::debug!(error = %$error, $($field)+),
            None => tracing::warn!(error = %$error, $($field)+),
        }
    };
}

pub mod attempt;
pub mod courier;
mod dispatcher;
pub mod guard;
mod janitor;
pub mod lanes;
mod metrics;
mod recorder;
pub mod resolver;
mod sketches;

pub use attempt::SigningHeaders;

use crate::attempt::Carrier;
use crate::courier::Courier;
use crate::lanes::{Capacity, Lanes};
use crate::metrics::Metrics;
use crate::recorder::Recorder;
use posthaste_core::id::WorkerId;
use posthaste_core::lane::LaneRules;
use posthaste_core::limits;
use posthaste_core::retry::RetryPolicy;
use posthaste_core::time::{Clock, Dice};
use posthaste_queue::Queue;
use posthaste_store::Store;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// What a worker is told at its start.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// New for every start of a process.
    pub worker_id: WorkerId,
    pub retry: RetryPolicy,
    /// Statuses that end a delivery at once, beside 410 and an endpoint's own.
    pub final_statuses: Vec<u16>,
    /// Whole-exchange timeout of endpoints that have none of their own.
    pub timeout: Duration,
    /// With `in_flight_max` per endpoint.
    pub rules: LaneRules,
    /// Deliveries in flight over all endpoints.
    pub in_flight_max: usize,
    /// Payload bytes of deliveries that wait in memory.
    pub memory_bytes_max: usize,
    pub signing: SigningHeaders,
    /// How long messages, attempts and ended deliveries are remembered; `None`: for ever.
    pub history_kept_for: Option<Duration>,
}

/// How often whoever sleeps looks at the store even though nobody nudged: another process may have
/// accepted something.
pub(crate) const POLL_EVERY: Duration = Duration::from_secs(1);

/// How long a stop waits for each thing that it asks of the store.
const STORE_PATIENCE: Duration = Duration::from_secs(3);
/// How long it waits until all records are written.
const RECORDER_PATIENCE: Duration = Duration::from_secs(10);

/// What the engine's parts share.
pub(crate) struct Shared {
    pub store: Arc<dyn Store>,
    pub queue: Arc<Queue>,
    pub clock: Arc<dyn Clock>,
    pub dice: Arc<dyn Dice>,
    pub settings: EngineSettings,
    pub lanes: Arc<Lanes>,
    pub metrics: Arc<Metrics>,
    /// True once the engine stops.
    pub stopping: watch::Receiver<bool>,
}

/// A running worker.
pub struct Engine {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    loops: Vec<JoinHandle<()>>,
    janitor: JoinHandle<()>,
    recorder: JoinHandle<()>,
    /// Ends the recorder though attempts are still running.
    finish: Arc<Notify>,
    /// Ends the recorder when the last attempt is recorded.
    carrier: Arc<Carrier>,
}

impl Engine {
    /// Starts the worker's tasks on the current runtime and attaches its fast path to the queue.
    pub fn start(
        store: Arc<dyn Store>,
        queue: Arc<Queue>,
        courier: Courier,
        clock: Arc<dyn Clock>,
        dice: Arc<dyn Dice>,
        settings: EngineSettings,
    ) -> Self {
        let (stop, stopping) = watch::channel(false);
        let metrics = Arc::new(Metrics::default());
        let (recorder, records) = Recorder::channel();
        let carrier = Arc::new(Carrier::new(
            courier,
            recorder,
            clock.clone(),
            dice.clone(),
            metrics.clone(),
            &settings,
        ));
        let capacity = Capacity {
            in_flight_max: settings.in_flight_max,
            waiting_max: (8 * settings.in_flight_max).max(limits::CLAIM_BATCH_MAX),
            bytes_max: settings.memory_bytes_max,
        };
        let lanes = Arc::new_cyclic(|lanes: &std::sync::Weak<Lanes>| {
            let (carrier, lanes) = (carrier.clone(), lanes.clone());
            let start = move |job| {
                if let Some(lanes) = lanes.upgrade() {
                    tokio::spawn(carrier.clone().carry(lanes, job));
                }
            };
            Lanes::new(
                settings.worker_id,
                lease_for(&settings),
                settings.rules,
                capacity,
                clock.clone(),
                Box::new(start),
            )
        });
        let shared =
            Arc::new(Shared { store, queue, clock, dice, settings, lanes, metrics, stopping });
        shared.queue.attach(shared.lanes.clone());
        let finish = Arc::new(Notify::new());
        Self {
            loops: vec![tokio::spawn(dispatcher::run(shared.clone()))],
            janitor: tokio::spawn(janitor::run(shared.clone())),
            recorder: tokio::spawn(records.run(shared.clone(), finish.clone())),
            finish,
            shared,
            stop,
            carrier,
        }
    }

    /// Stops claiming, gives back what only waits, lets what is in flight finish within `bound`,
    /// records it, and gives the remaining leases back. The worker goes on saying that it lives
    /// until then, so that nobody takes its deliveries for orphans.
    pub async fn stop(self, bound: Duration) {
        let _ = self.stop.send(true);
        for mut task in self.loops {
            // What a claim brings after this runs out by itself.
            if tokio::time::timeout(STORE_PATIENCE, &mut task).await.is_err() {
                task.abort();
            }
        }
        let shared = &self.shared;
        let waiting = shared.lanes.stop();
        let given_back = shared.store.give_back(waiting, shared.clock.now());
        if let Err(error) = in_time(given_back).await {
            tracing::warn!(%error, "engine.give_back_failed");
        }
        let finished = tokio::time::timeout(bound, self.carrier.idle()).await.is_ok();
        if !finished {
            let in_flight = shared.lanes.occupancy().in_flight;
            tracing::warn!(in_flight, "engine.stopped_with_attempts_in_flight");
            // What they bring is not waited for: their deliveries are handed back at once.
            self.finish.notify_one();
        }
        self.carrier.close();
        let _ = tokio::time::timeout(RECORDER_PATIENCE, self.recorder).await;
        self.janitor.abort();
        let retired = shared.store.retire(shared.settings.worker_id, shared.clock.now());
        if let Err(error) = in_time(retired).await {
            tracing::warn!(%error, "engine.retire_failed");
        }
    }

    /// Gives the worker's figures in the Prometheus text format, whenever it is called.
    pub fn metrics_source(&self) -> impl Fn() -> String + Send + Sync + use<> {
        let shared = self.shared.clone();
        move || shared.metrics.render(shared.lanes.occupancy())
    }
}

/// A stop does not wait for a store that hangs: what it is not told, it finds out by itself.
async fn in_time(work: impl Future<Output = posthaste_store::Result<()>>) -> Result<(), String> {
    match tokio::time::timeout(STORE_PATIENCE, work).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err("the store does not answer".to_owned()),
    }
}

/// A lease outlives the longest exchange that an endpoint may ask for.
pub(crate) fn lease_for(settings: &EngineSettings) -> Duration {
    settings.timeout.max(limits::TIMEOUT_MAX) + limits::LEASE_SLACK
}
