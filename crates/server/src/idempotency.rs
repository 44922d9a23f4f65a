//! `Idempotency-Key`: a request that is sent twice is done once.
//!
//! A key belongs to an organisation, a method, a path and a query. The first 2xx answer is kept
//! for `limits::IDEMPOTENCY_KEPT_FOR` and given again; any other answer frees the key. The same key
//! with another body is refused with 422, because one of the two would be lost silently.
//!
//! **Invariant:** a key that comes with an application token belongs to that application too: a
//! kept answer is never given to a caller who could not have asked for it.
//!
//! Publishing does not go through `once`: its key is committed together with the message.

use crate::call::{Answer, Call};
use crate::error::{Refusal, Result};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use posthaste_core::limits::{IDEMPOTENCY_KEPT_FOR, IDEMPOTENCY_KEY_BYTES_MAX};
use posthaste_store::catalog::{Begun, KeptAnswer};
use posthaste_store::outbox::IdempotencyKey;
use ring::digest::{Context, SHA256, digest};
use std::future::Future;
use std::time::Duration;

/// A request that was begun so long ago and not finished is taken over: its process is gone.
const TAKEOVER_AFTER: Duration = Duration::from_secs(15);
/// How often and how long a repetition waits for the first request to finish.
const BUSY_TRIES: u32 = 20;
const BUSY_WAIT: Duration = Duration::from_millis(100);

/// The key that the client gave; an empty one counts as none.
pub(crate) fn key(headers: &HeaderMap) -> Result<Option<String>> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let text = value.to_str().map_err(|_| refused("must be printable ASCII"))?.trim();
    if text.len() > IDEMPOTENCY_KEY_BYTES_MAX {
        let message = format!("must not be longer than {IDEMPOTENCY_KEY_BYTES_MAX} bytes");
        return Err(refused(message));
    }
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

/// The key as the store knows it; `None` when the client gave none.
pub(crate) fn stored_key(call: &Call) -> Option<IdempotencyKey> {
    let key = call.idempotency_key.as_deref()?;
    let mut context = Context::new(&SHA256);
    let application = call.caller.application.map(|id| id.to_string());
    let parts = [call.caller.organisation.as_str(), &call.uri_path, call.query.as_str(), key];
    for part in parts.into_iter().chain(application.as_deref()) {
        context.update(part.as_bytes());
        // No part holds a NUL, so no two different requests can run together.
        context.update(&[0]);
    }
    Some(IdempotencyKey {
        key_hash: hash(context.finish().as_ref()),
        request_hash: hash(digest(&SHA256, &call.body).as_ref()),
    })
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(bytes);
    hash
}

/// The refusal of a key that came with another request before.
pub(crate) fn reused() -> Refusal {
    refused("was used with another request")
}

fn refused(message: impl std::fmt::Display) -> Refusal {
    Refusal::problem(&["header", "idempotency-key"], message, "value_error")
}

/// Runs the handler unless the same request was done before.
pub(crate) async fn once<F>(call: Call, handler: fn(Call) -> F) -> Result<Answer>
where
    F: Future<Output = Result<Answer>>,
{
    let Some(key) = stored_key(&call) else { return handler(call).await };
    let shared = call.shared.clone();
    for _ in 0..BUSY_TRIES {
        let now = shared.clock.now();
        match shared.store.begin_request(key, now, now.after(TAKEOVER_AFTER)).await? {
            Begun::Fresh => {
                let answer = handler(call).await;
                let ended_at = shared.clock.now();
                match &answer {
                    Ok(done) if done.status.is_success() => {
                        let body = done.body.to_vec();
                        let kept = KeptAnswer { status: done.status.as_u16(), body };
                        let expires_at = ended_at.after(IDEMPOTENCY_KEPT_FOR);
                        shared.store.finish_request(key, kept, expires_at).await?;
                    }
                    _ => shared.store.drop_request(key).await?,
                }
                return answer;
            }
            Begun::Done(kept) => {
                let status = StatusCode::from_u16(kept.status).map_err(|_| Refusal::internal())?;
                return Ok(Answer::raw(status, Bytes::from(kept.body)));
            }
            Begun::KeyReused => return Err(reused()),
            Begun::Busy => tokio::time::sleep(BUSY_WAIT).await,
        }
    }
    let detail = "the same request is being done now; try again";
    Err(Refusal::new(StatusCode::CONFLICT, "idempotency_busy", detail))
}
