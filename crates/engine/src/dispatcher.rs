//! Claims what is due, as much as there is room for, and sleeps until the next due time or a nudge.

use crate::lanes::Asked;
use crate::{POLL_EVERY, Shared, lease_for};
use posthaste_core::limits::CLAIM_BATCH_MAX;
use posthaste_core::time::{Timestamp, within};
use posthaste_store::outbox::Claim;
use std::sync::Arc;
use std::time::Duration;

/// Deliveries of one lane in one claim.
const LANE_MAX: u32 = 32;
/// After a claim that brought nothing, nudges gather for so long: each message for an endpoint
/// whose breaker is open nudges, and a claim for each would find nothing again.
const NUDGES_GATHER_FOR: Duration = Duration::from_millis(5);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);

pub async fn run(shared: Arc<Shared>) {
    let mut failures = 0;
    let mut stopping = shared.stopping.clone();
    while !*stopping.borrow() {
        let mut gather = Duration::ZERO;
        let wait = match claim(&shared).await {
            Ok(Found { count, wait }) => {
                failures = 0;
                if count == 0 {
                    gather = NUDGES_GATHER_FOR.min(wait);
                }
                wait
            }
            Err(error) => {
                failures += 1;
                complain!(error, failures, "dispatcher.claim_failed");
                backoff(failures, shared.dice.roll())
            }
        };
        if wait.is_zero() {
            continue;
        }
        tokio::time::sleep(gather).await;
        tokio::select! {
            () = tokio::time::sleep(wait - gather) => {}
            () = shared.queue.nudged() => {}
            () = shared.lanes.freed.notified() => {}
            _ = stopping.changed() => {}
        }
    }
}

/// What a claim brought, and how long to sleep after it unless somebody wakes us.
struct Found {
    count: usize,
    wait: Duration,
}

async fn claim(shared: &Shared) -> posthaste_store::Result<Found> {
    let room = shared.lanes.room();
    if room == 0 {
        return Ok(Found { count: 0, wait: POLL_EVERY });
    }
    let deliveries_max = room.min(CLAIM_BATCH_MAX);
    let full = shared.lanes.full(LANE_MAX);
    let claim = Claim {
        worker_id: shared.settings.worker_id,
        now: shared.clock.now(),
        lease_for: lease_for(&shared.settings),
        deliveries_max,
        lane_max: LANE_MAX as usize,
        full: full.clone(),
        rules: shared.settings.rules,
    };
    let claimed = shared.queue.claim(claim).await?;
    let count: usize = claimed.lanes.iter().map(|lane| lane.deliveries.len()).sum();
    shared.metrics.claimed(count);
    let now = shared.clock.now();
    let next_due_at = claimed.next_due_at;
    let had_all = next_due_at.is_none_or(|due| due > now) && count < deliveries_max;
    let asked = Asked { lane_max: LANE_MAX, full: full.into_iter().collect(), had_all };
    shared.lanes.take_claimed(claimed.lanes, &asked);
    Ok(Found { count, wait: sleep_for(next_due_at, now) })
}

fn sleep_for(next_due_at: Option<Timestamp>, now: Timestamp) -> Duration {
    next_due_at.map_or(POLL_EVERY, |due| due.since(now).min(POLL_EVERY))
}

fn backoff(failures: u32, roll: u64) -> Duration {
    let bound = Duration::from_millis(50 << failures.min(7)).min(RETRY_AFTER_MAX);
    bound / 2 + within(bound / 2, roll)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound() {
        assert!(backoff(1, 0) >= Duration::from_millis(50));
        assert!(backoff(u32::MAX, u64::MAX) <= RETRY_AFTER_MAX);
    }

    #[test]
    fn sleeps_until_the_next_due_time_but_never_past_a_poll() {
        let now = Timestamp::from_secs(100);
        assert_eq!(sleep_for(None, now), POLL_EVERY);
        assert_eq!(sleep_for(Some(Timestamp::from_secs(99)), now), Duration::ZERO);
        assert_eq!(sleep_for(Some(Timestamp::from_secs(500)), now), POLL_EVERY);
    }
}
