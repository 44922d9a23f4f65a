//! Reads an answer within its bounds.

use super::trace::Trace;
use super::wire::Meter;
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use posthaste_core::limits::{ANSWER_BODY_BYTES_KEPT, ANSWER_BODY_BYTES_READ};
use posthaste_core::outcome::{Phase, Response};

/// Longest `Retry-After` that is looked at; a date has 29 characters.
const RETRY_AFTER_BYTES_MAX: usize = 64;

pub(super) type Sent = http::Request<Full<Bytes>>;

pub(super) struct Received {
    pub response: Response,
    /// The body was read to its end, so that the connection can be used again.
    pub is_complete: bool,
}

/// An exchange that broke.
pub(super) struct Broken {
    pub error: hyper::Error,
    /// The request never left this process.
    pub is_unsent: bool,
}

/// Waits for the head, then reads the body up to `ANSWER_BODY_BYTES_READ`.
pub(super) async fn receive(
    head: impl Future<Output = Result<http::Response<Incoming>, TrySendError<Sent>>>,
    meter: &Meter,
    trace: &mut Trace,
) -> Result<Received, Broken> {
    let answer = head.await.map_err(|mut refused| Broken {
        is_unsent: refused.take_message().is_some(),
        error: refused.into_error(),
    })?;
    meter.lift();
    trace.enter(Phase::Body);
    let (head, mut body) = answer.into_parts();
    let mut kept = Vec::new();
    let mut read = 0;
    let mut is_complete = true;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Broken { error, is_unsent: false })?;
        let Ok(data) = frame.into_data() else { continue };
        read += data.len();
        let room = ANSWER_BODY_BYTES_KEPT - kept.len();
        kept.extend_from_slice(&data[..data.len().min(room)]);
        if read > ANSWER_BODY_BYTES_READ {
            is_complete = false;
            break;
        }
    }
    let response = Response {
        status: head.status.as_u16(),
        retry_after: head.headers.get(RETRY_AFTER).and_then(|value| {
            let text = value.to_str().ok()?;
            (text.len() <= RETRY_AFTER_BYTES_MAX).then(|| text.to_owned())
        }),
        body_cut: read > kept.len(),
        body: Bytes::from(kept),
    };
    Ok(Received { response, is_complete })
}
