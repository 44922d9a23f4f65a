//! Keeps the store well while the worker runs: heartbeat, recovery, sweeps and tasks, retention.

use crate::{POLL_EVERY, Shared};
use posthaste_core::limits::{HEARTBEAT_EVERY, HEARTBEAT_LOST_AFTER};
use posthaste_store::upkeep::Step;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

const TIDY_EVERY: Duration = Duration::from_secs(1);
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// Between two bounded steps of long work, so that it does not crowd out deliveries.
const STEP_PAUSE: Duration = Duration::from_millis(5);

/// Runs until it is aborted: the worker says that it lives until its last attempt is recorded.
pub async fn run(shared: Arc<Shared>) {
    tokio::join!(
        every(HEARTBEAT_EVERY, || heartbeat(&shared)),
        every(HEARTBEAT_EVERY, || recover(&shared)),
        every(TIDY_EVERY, || tidy(&shared)),
        every(PRUNE_EVERY, || prune(&shared)),
        steps(&shared),
    );
}

async fn every<F: Future<Output = ()>>(period: Duration, mut work: impl FnMut() -> F) {
    loop {
        work().await;
        tokio::time::sleep(period).await;
    }
}

async fn heartbeat(shared: &Shared) {
    let beat = shared.store.heartbeat(shared.settings.worker_id, shared.clock.now()).await;
    if let Err(error) = beat {
        tracing::warn!(%error, "janitor.heartbeat_failed");
    }
}

async fn recover(shared: &Shared) {
    let now = shared.clock.now();
    match shared.store.recover(now, now.before(HEARTBEAT_LOST_AFTER)).await {
        Ok(0) => {}
        Ok(deliveries) => {
            shared.metrics.recovered(deliveries);
            tracing::warn!(deliveries, "janitor.recovered_leases");
            shared.queue.nudge();
        }
        Err(error) => tracing::warn!(%error, "janitor.recover_failed"),
    }
}

async fn tidy(shared: &Shared) {
    let waiting = shared.lanes.tidy();
    if waiting.is_empty() {
        return;
    }
    match shared.store.give_back(waiting, shared.clock.now()).await {
        Ok(()) => shared.queue.nudge(),
        Err(error) => tracing::warn!(%error, "janitor.give_back_failed"),
    }
}

async fn prune(shared: &Shared) {
    match shared.store.prune(shared.clock.now()).await {
        Ok(0) => {}
        Ok(rows) => tracing::debug!(rows, "janitor.pruned"),
        Err(error) => tracing::warn!(%error, "janitor.prune_failed"),
    }
}

async fn steps(shared: &Shared) {
    loop {
        let pause = match shared.store.step(shared.clock.now()).await {
            Ok(Step::Idle) => POLL_EVERY,
            Ok(Step::Worked { due }) => {
                if due {
                    shared.queue.nudge();
                }
                STEP_PAUSE
            }
            Err(error) => {
                tracing::warn!(%error, "janitor.step_failed");
                POLL_EVERY
            }
        };
        tokio::time::sleep(pause).await;
    }
}
