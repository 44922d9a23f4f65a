//! The signing secret of an endpoint.

use super::endpoint::{new_secret, write};
use super::until_fresh;
use crate::call::{Access, Answer, Call, Operation};
use crate::error::{Refusal, Result};
use crate::wire::decode_or_empty;
use crate::wire::misc::{RotateIn, SecretOut};
use crate::wire::time::Time;
use http::Method;
use posthaste_core::sign::Secret;
use std::time::Duration;

const GRACE_SECS_DEFAULT: i64 = 86_400;
const GRACE_SECS_MAX: i64 = 7 * 86_400;

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::new(
            (Method::GET, "/api/v1/app/{app_id}/endpoint/{endpoint_id}/secret"),
            "v1.endpoint.get-secret",
            Access::Application,
            "Reads what a receiver verifies with.",
            |call| Box::pin(get(call)),
        )
        .gives::<SecretOut>(200),
        Operation::new(
            (Method::POST, "/api/v1/app/{app_id}/endpoint/{endpoint_id}/secret/rotate"),
            "v1.endpoint.rotate-secret",
            Access::Application,
            "Replaces the secret; the old one still signs beside it for the grace period.",
            |call| Box::pin(rotate(call)),
        )
        .takes::<RotateIn>()
        .gives::<SecretOut>(200),
    ]
}

async fn get(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let endpoint = call.endpoint(&application).await?;
    Answer::ok(&SecretOut { key: endpoint.secrets.current.verification_key() })
}

/// Answers 200 with the new key: newer clients need a body, older ones discard it.
async fn rotate(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let input: RotateIn = decode_or_empty(&call.body)?;
    let seconds = input.grace_period_seconds.unwrap_or(GRACE_SECS_DEFAULT);
    if !(0..=GRACE_SECS_MAX).contains(&seconds) {
        let message = format!("must be 0 to {GRACE_SECS_MAX} (7 days)");
        return Err(Refusal::field("gracePeriodSeconds", message));
    }
    let overlap = Duration::from_secs(seconds.unsigned_abs());
    let secret = match input.key {
        Some(text) => Secret::parse(&text).map_err(|error| Refusal::field("key", error))?,
        None => new_secret(&call)?,
    };
    let endpoint = until_fresh(|| async {
        let mut endpoint = call.endpoint(&application).await?;
        let rotated = endpoint.secrets.rotate(secret.clone(), call.now, overlap);
        endpoint.secrets = rotated.map_err(|error| {
            let next = Time(error.next_expiry_at);
            Refusal::bad_request("limit_reached", format!("{error}; the next expires at {next}"))
        })?;
        write(&call, endpoint).await
    })
    .await?;
    Answer::ok(&SecretOut { key: endpoint.secrets.current.verification_key() })
}
