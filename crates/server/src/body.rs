//! Reads a request's body: whole, bounded in bytes and in time.

use crate::error::{Refusal, Result};
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use posthaste_core::limits::REQUEST_BODY_BYTES_MAX;
use std::time::Duration;

/// A client that sends its body more slowly than this gets 408.
const TIME_MAX: Duration = Duration::from_secs(60);
const DISCARD_TIME_MAX: Duration = Duration::from_secs(2);
/// What is read and thrown away of a body that is too large, so that the client, which is still
/// sending, gets to see the answer instead of a reset.
const DRAINED_BYTES_MAX: usize = 4 * REQUEST_BODY_BYTES_MAX;

pub(crate) async fn read(headers: &HeaderMap, body: Body) -> Result<Bytes> {
    let declared = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse::<usize>().ok());
    if declared.is_some_and(|bytes| bytes > DRAINED_BYTES_MAX) {
        return Err(Refusal::too_large("the body", REQUEST_BODY_BYTES_MAX));
    }
    // A small body is there already; no timer is made for it.
    match tokio::time::timeout(TIME_MAX, whole(body, declared.unwrap_or(0))).await {
        Ok(read) => read,
        Err(_) => {
            let detail = "the body did not arrive in time";
            Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", detail))
        }
    }
}

/// Reads the body of a request that is refused already, so that a client that sends first and looks
/// afterwards sees the refusal instead of a reset. Gives up early: it may be anybody's.
pub(crate) async fn discard(mut body: Body) {
    let all = async {
        let mut read = 0_usize;
        while let Some(Ok(frame)) = body.frame().await {
            read = read.saturating_add(frame.data_ref().map_or(0, Bytes::len));
            if read > REQUEST_BODY_BYTES_MAX {
                return;
            }
        }
    };
    // Whether it all came does not matter.
    let _ = tokio::time::timeout(DISCARD_TIME_MAX, all).await;
}

/// One frame is taken as it is; several are put together.
async fn whole(mut body: Body, declared: usize) -> Result<Bytes> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let mut read = 0_usize;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            Refusal::bad_request("generic_error", "the body ended before it was complete")
        })?;
        let Ok(data) = frame.into_data() else { continue };
        read = read.saturating_add(data.len());
        if read > DRAINED_BYTES_MAX {
            break;
        }
        if read > REQUEST_BODY_BYTES_MAX {
            (first, rest) = (Bytes::new(), BytesMut::new());
        } else if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.reserve(declared.clamp(read, REQUEST_BODY_BYTES_MAX));
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&data);
        }
    }
    if read > REQUEST_BODY_BYTES_MAX {
        return Err(Refusal::too_large("the body", REQUEST_BODY_BYTES_MAX));
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}
