//! How everything stands, in one row, and how one endpoint does.

use super::health::why;
use crate::call::{Access, Answer, Call, Operation};
use crate::error::{Refusal, Result};
use crate::wire::misc::{DeliveryTimeOut, EndpointHealthOut, OldestOut, StatusOut, WarningOut};
use crate::wire::time::Time;
use http::Method;
use posthaste_core::breaker::Position;
use posthaste_store::diagnosis::Warning;
use std::time::Duration;

/// An endpoint is called slow above this P95.
const SLOW_ABOVE: Duration = Duration::from_secs(2);

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::new(
            (Method::GET, "/api/v1/status"),
            "v1.status.get",
            Access::Organisation,
            "How all deliveries of this server stand.",
            |call| Box::pin(status(call)),
        )
        .gives::<StatusOut>(200),
        Operation::new(
            (Method::GET, "/api/v1/app/{app_id}/endpoint/{endpoint_id}/health"),
            "v1.endpoint.health",
            Access::Application,
            "Breaker, latency over the last 24 h and backlog of an endpoint.",
            |call| Box::pin(health(call)),
        )
        .gives::<EndpointHealthOut>(200),
    ]
}

async fn status(call: Call) -> Result<Answer> {
    let store = &*call.shared.store;
    let status = store.status(call.now).await.map_err(|error| {
        let reason = why(&error, store);
        Refusal::from(error).because(reason)
    })?;
    let warnings = call.shared.standing.warnings(store, call.now).await;
    let times = status.delivery_time;
    let oldest = status.oldest_undelivered.map(|(key, accepted_at)| OldestOut {
        message_id: key.message_id.to_string(),
        endpoint_id: key.endpoint_id.to_string(),
        accepted_at: Time(accepted_at),
        age_seconds: call.now.since(accepted_at).as_secs(),
    });
    Answer::ok(&StatusOut {
        pending: status.pending,
        awaiting_retry: status.awaiting_retry,
        in_flight: status.in_flight,
        dead_letter: status.dead_letter,
        held: status.held,
        delivered_last_hour: status.delivered_last_hour,
        failed_last_hour: status.failed_last_hour,
        failed_attempts_last_hour: status.failed_attempts_last_hour,
        oldest_undelivered: oldest,
        delivery_time_ms: DeliveryTimeOut {
            average: status.delivery_time_average.map(milliseconds),
            p50: times.map(|times| milliseconds(times.p50)),
            p95: times.map(|times| milliseconds(times.p95)),
            p99: times.map(|times| milliseconds(times.p99)),
            count: times.map_or(0, |times| times.count),
        },
        breakers_open: status.breakers_open,
        endpoints_disabled: status.endpoints_disabled,
        workers: status.workers,
        warnings: warnings
            .into_iter()
            .map(|Warning { code, text }| WarningOut { code, detail: text })
            .collect(),
    })
}

async fn health(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let endpoint = call.endpoint(&application).await?;
    let found = call.shared.store.health(endpoint.id, call.now).await?;
    let found = found.ok_or(Refusal::not_found("Endpoint"))?;
    let times = found.percentiles();
    let health = &found.health;
    let (breaker, next_probe_at) = match health.breaker.position {
        Position::Closed => ("closed", None),
        Position::Open { until } => ("open", Some(until)),
        Position::HalfOpen { probe_until } => ("half_open", Some(probe_until)),
    };
    Answer::ok(&EndpointHealthOut {
        endpoint_id: endpoint.id.to_string(),
        breaker,
        consecutive_failures: health.breaker.consecutive_failures,
        cooldown_seconds: health.breaker.cooldown.as_secs_f64(),
        next_probe_at: next_probe_at.map(Time),
        p50_ms: times.map(|times| milliseconds(times.p50)),
        p95_ms: times.map(|times| milliseconds(times.p95)),
        p99_ms: times.map(|times| milliseconds(times.p99)),
        samples: times.map_or(0, |times| times.count),
        slow: times.is_some_and(|times| times.p95 > SLOW_ABOVE),
        waiting: found.waiting,
        held: found.held,
        disabled: endpoint.disabled.map(Into::into),
        failing_since: health.failing_since.map(Time),
        last_success_at: health.last_success_at.map(Time),
        last_failure_at: health.last_failure_at.map(Time),
        quiet_until: health.quiet_until.map(Time),
        ramp: health.ramp,
    })
}

/// With three digits behind the point: no sketch is more exact than that.
fn milliseconds(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e6).round() / 1e3
}
