//! Sending again what was given up or held: tasks that the store carries out step by step.
//!
//! A task touches dead letters (and, for a replay, held deliveries) only. What waits for a retry
//! keeps its plan. Every delivery is looked at once, by message, so none is sent twice. What has no
//! payload any more is counted as skipped.

use crate::call::{Access, Answer, Call, Operation};
use crate::error::{Problems, Refusal, Result};
use crate::wire::decode;
use crate::wire::misc::{RecoverIn, ReplayIn, TaskData, TaskOut};
use crate::wire::time::Time;
use http::{Method, StatusCode};
use posthaste_core::delivery::DeliveryState;
use posthaste_core::endpoint::Endpoint;
use posthaste_core::id::TaskId;
use posthaste_core::time::Timestamp;
use posthaste_store::upkeep::{Task, TaskStatus};
use std::time::Duration;

/// How far back a recovery may reach, with what clocks may differ by.
const RECOVERY_SPAN_MAX: Duration = Duration::from_secs(14 * 86_400 + 5 * 60);
const RATE_MAX: u32 = 100_000;

pub(super) fn operations() -> Vec<Operation> {
    use Access::Application;
    vec![
        Operation::new(
            (Method::POST, "/api/v1/app/{app_id}/endpoint/{endpoint_id}/recover"),
            "v1.endpoint.recover",
            Application,
            "Sends again what was given up since a time, at most 14 days back.",
            |call| Box::pin(recover(call)),
        )
        .takes::<RecoverIn>()
        .gives::<TaskOut>(202),
        Operation::new(
            (Method::POST, "/api/v1/app/{app_id}/endpoint/{endpoint_id}/replay"),
            "v1.endpoint.replay",
            Application,
            "Sends again what was given up or is held, at a pace.",
            |call| Box::pin(replay(call)),
        )
        .takes::<ReplayIn>()
        .gives::<TaskOut>(202),
        Operation::new(
            (Method::GET, "/api/v1/background-task/{task_id}"),
            "v1.background-task.get",
            Application,
            "Tells how far a task is.",
            |call| Box::pin(get(call)),
        )
        .gives::<TaskOut>(200),
    ]
}

async fn recover(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let endpoint = call.endpoint(&application).await?;
    let input: RecoverIn = decode(&call.body)?;
    let (since, until) = window(&call, input.since, input.until)?;
    if until.since(since) > RECOVERY_SPAN_MAX {
        return Err(Refusal::field("since", "must not be more than 14 days before `until`"));
    }
    start(&call, &endpoint, (since, until), vec![DeliveryState::DeadLetter], None).await
}

async fn replay(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let endpoint = call.endpoint(&application).await?;
    let input: ReplayIn = decode(&call.body)?;
    let window = window(&call, input.since, input.until)?;
    let mut problems = Problems::default();
    let names = input.states.unwrap_or_else(|| vec!["dead_letter".to_owned()]);
    let mut states = Vec::new();
    for name in &names {
        match name.as_str() {
            "dead_letter" => states.push(DeliveryState::DeadLetter),
            "held" => states.push(DeliveryState::Held),
            _ => problems.add("states", "may hold `dead_letter` and `held`"),
        }
    }
    states.sort();
    states.dedup();
    if names.is_empty() {
        problems.add("states", "must not be empty");
    }
    if input.rate_per_second.is_some_and(|rate| !(1..=RATE_MAX).contains(&rate)) {
        problems.add("ratePerSecond", format!("must be 1 to {RATE_MAX}"));
    }
    problems.finish()?;
    start(&call, &endpoint, window, states, input.rate_per_second).await
}

fn window(call: &Call, since: Time, until: Option<Time>) -> Result<(Timestamp, Timestamp)> {
    let until = until.map_or(call.now, |until| until.0);
    if since.0 > until {
        return Err(Refusal::field("since", "must not be after `until`"));
    }
    Ok((since.0, until))
}

async fn start(
    call: &Call,
    endpoint: &Endpoint,
    (since, until): (Timestamp, Timestamp),
    states: Vec<DeliveryState>,
    rate_per_second: Option<u32>,
) -> Result<Answer> {
    let task = Task {
        id: TaskId::new(call.now, call.random()),
        application_id: endpoint.application_id,
        endpoint_id: endpoint.id,
        since,
        until,
        states,
        rate_per_second,
        status: TaskStatus::Running,
        replayed: 0,
        skipped: 0,
        cursor: None,
        created_at: call.now,
        updated_at: call.now,
    };
    call.shared.store.start_task(task.clone()).await?;
    call.shared.queue.nudge();
    Answer::json(StatusCode::ACCEPTED, &shown(&task))
}

/// A task of an application that is not the caller's is not there.
async fn get(call: Call) -> Result<Answer> {
    let missing = || Refusal::not_found("Background task");
    let id = call.name("task_id").parse::<TaskId>().map_err(|_| missing())?;
    let task = call.shared.store.task(id).await?.ok_or_else(missing)?;
    call.find_application(&task.application_id.to_string()).await?.ok_or_else(missing)?;
    Answer::ok(&shown(&task))
}

fn shown(task: &Task) -> TaskOut {
    let status = match task.status {
        TaskStatus::Running => "running",
        TaskStatus::Finished => "finished",
    };
    TaskOut {
        id: task.id.to_string(),
        status: status.to_owned(),
        task: "endpoint.recover".to_owned(),
        updated_at: Time(task.updated_at),
        data: TaskData {
            endpoint_id: task.endpoint_id.to_string(),
            replayed: task.replayed,
            messages_sent: task.replayed,
            skipped: task.skipped,
            since: Time(task.since),
            until: Time(task.until),
        },
    }
}
