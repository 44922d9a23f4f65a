//! Keeps the store well while the worker runs: heartbeat, recovery, sweeps and tasks, retention.
//!
//! **Invariant:** while the store is away, nobody can say that it lives; so a worker's silence
//! counts only for who could write all the time itself.

use crate::{POLL_EVERY, Shared};
use posthaste_core::limits::{HEARTBEAT_EVERY, HEARTBEAT_LOST_AFTER};
use posthaste_core::time::Timestamp;
use posthaste_store::diagnosis::{Diagnosis, Warning};
use posthaste_store::upkeep::{Refused, Step, TakenIn};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const TIDY_EVERY: Duration = Duration::from_secs(1);
const PRUNE_EVERY: Duration = Duration::from_secs(60);
const DIAGNOSE_EVERY: Duration = Duration::from_secs(30);
/// What stays wrong is said again after so long.
const WARN_EVERY: Duration = Duration::from_secs(3_600);
/// Between two bounded steps of long work, so that it does not crowd out deliveries.
const STEP_PAUSE: Duration = Duration::from_millis(5);
/// After word of something enqueued, more may come for so long without a word.
const ENQUEUED_GATHER_FOR: Duration = Duration::from_millis(60);

/// Runs until it is aborted: the worker says that it lives until its last attempt is recorded.
pub async fn run(shared: Arc<Shared>) {
    let pulse = Mutex::new(Pulse::default());
    tokio::join!(
        every(HEARTBEAT_EVERY, || heartbeat(&shared, &pulse)),
        every(HEARTBEAT_EVERY, || recover(&shared, &pulse)),
        every(TIDY_EVERY, || tidy(&shared)),
        every(PRUNE_EVERY, || prune(&shared)),
        diagnose(&shared),
        steps(&shared),
        take_in(&shared),
    );
}

async fn every<F: Future<Output = ()>>(period: Duration, mut work: impl FnMut() -> F) {
    loop {
        work().await;
        tokio::time::sleep(period).await;
    }
}

/// When this worker's own heartbeats were written.
#[derive(Default)]
struct Pulse {
    last: Option<Timestamp>,
    /// Since when none was missed.
    steady_since: Option<Timestamp>,
}

impl Pulse {
    /// A heartbeat was written at `now`.
    fn beat(&mut self, now: Timestamp) {
        if !self.is_fresh(now) {
            self.steady_since = Some(now);
        }
        self.last = Some(now);
    }

    /// Who has not been heard of since is dead. Before our own are steady, nobody is taken for
    /// dead because of silence: after an outage everybody needs a while to be heard of again.
    fn silent_since(&self, now: Timestamp) -> Timestamp {
        let is_steady =
            self.steady_since.is_some_and(|since| now.since(since) >= HEARTBEAT_LOST_AFTER);
        if is_steady && self.is_fresh(now) {
            now.before(HEARTBEAT_LOST_AFTER)
        } else {
            Timestamp::MIN
        }
    }

    fn is_fresh(&self, now: Timestamp) -> bool {
        self.last.is_some_and(|last| now.since(last) <= HEARTBEAT_LOST_AFTER / 2)
    }
}

async fn heartbeat(shared: &Shared, pulse: &Mutex<Pulse>) {
    match shared.store.heartbeat(shared.settings.worker_id, shared.clock.now()).await {
        Ok(()) => pulse.lock().unwrap_or_else(PoisonError::into_inner).beat(shared.clock.now()),
        Err(error) => complain!(error, "janitor.heartbeat_failed"),
    }
}

async fn recover(shared: &Shared, pulse: &Mutex<Pulse>) {
    let now = shared.clock.now();
    let silent_since = pulse.lock().unwrap_or_else(PoisonError::into_inner).silent_since(now);
    match shared.store.recover(now, silent_since).await {
        Ok(0) => {}
        Ok(deliveries) => {
            shared.metrics.recovered(deliveries);
            tracing::warn!(deliveries, "janitor.recovered_leases");
            shared.queue.nudge();
        }
        Err(error) => complain!(error, "janitor.recover_failed"),
    }
}

async fn tidy(shared: &Shared) {
    let waiting = shared.lanes.tidy();
    if waiting.is_empty() {
        return;
    }
    match shared.store.give_back(waiting, shared.clock.now()).await {
        Ok(()) => shared.queue.nudge(),
        Err(error) => complain!(error, "janitor.give_back_failed"),
    }
}

async fn prune(shared: &Shared) {
    match shared.store.prune(shared.clock.now()).await {
        Ok(0) => {}
        Ok(rows) => tracing::debug!(rows, "janitor.pruned"),
        Err(error) => complain!(error, "janitor.prune_failed"),
    }
    let Some(kept_for) = shared.settings.history_kept_for else { return };
    match shared.store.forget(shared.clock.now().before(kept_for)).await {
        Ok(0) => {}
        Ok(messages) => tracing::info!(messages, "janitor.forgot_history"),
        Err(error) => complain!(error, "janitor.forget_failed"),
    }
}

/// Says what will go wrong with the database: when it is found, as long as it lasts now and then,
/// and when it is over.
async fn diagnose(shared: &Shared) {
    let mut told: BTreeMap<&'static str, Timestamp> = BTreeMap::new();
    loop {
        match shared.store.diagnose(shared.clock.now()).await {
            Ok(Diagnosis { warnings, .. }) => {
                let now = shared.clock.now();
                for Warning { code, text } in &warnings {
                    if told.get(code).is_none_or(|at| now.since(*at) >= WARN_EVERY) {
                        tracing::warn!(code, text, "database.warning");
                        told.insert(code, now);
                    }
                }
                told.retain(|code, _| {
                    let lasts = warnings.iter().any(|warning| warning.code == *code);
                    if !lasts {
                        tracing::info!(code, "database.warning_over");
                    }
                    lasts
                });
            }
            Err(error) => complain!(error, "janitor.diagnose_failed"),
        }
        tokio::time::sleep(DIAGNOSE_EVERY).await;
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
                complain!(error, "janitor.step_failed");
                POLL_EVERY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Accepts what applications enqueue in the database itself.
async fn take_in(shared: &Shared) {
    loop {
        let heard = tokio::time::timeout(POLL_EVERY, shared.store.enqueued()).await.is_ok();
        take_in_all(shared).await;
        if heard {
            // Of transactions that commit about now, one tells for all; look again for the rest.
            tokio::time::sleep(ENQUEUED_GATHER_FOR).await;
            take_in_all(shared).await;
        }
    }
}

async fn take_in_all(shared: &Shared) {
    loop {
        match shared.store.take_in(shared.clock.now()).await {
            Ok(TakenIn { accepted, due, refused }) => {
                for Refused { message_id, why } in &refused {
                    tracing::warn!(%message_id, why, "janitor.enqueued_refused");
                }
                if due {
                    shared.queue.nudge();
                }
                if accepted == 0 && refused.is_empty() {
                    return;
                }
            }
            Err(error) => return complain!(error, "janitor.take_in_failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f072_silence_counts_only_for_who_was_heard_all_the_time() {
        let at = Timestamp::from_secs;
        let mut pulse = Pulse::default();
        assert_eq!(pulse.silent_since(at(100)), Timestamp::MIN);
        for second in (100..112).step_by(3) {
            assert_eq!(pulse.silent_since(at(second)), Timestamp::MIN, "{second}");
            pulse.beat(at(second));
        }
        pulse.beat(at(112));
        assert_eq!(pulse.silent_since(at(112)), at(100));
        // The store is away until 130, then it takes as long again until all were heard of.
        assert_eq!(pulse.silent_since(at(119)), Timestamp::MIN);
        for second in (130..=142).step_by(3) {
            pulse.beat(at(second));
            let silent_since = pulse.silent_since(at(second));
            assert_eq!(silent_since, if second < 142 { Timestamp::MIN } else { at(130) });
        }
    }
}
