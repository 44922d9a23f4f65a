//! Puts what broke into words: fixed texts, never a byte of the receiver.

use super::answer::Broken;
use super::trace::Trace;
use super::wire::Meter;
use posthaste_core::limits::{ANSWER_HEAD_BYTES_MAX, ANSWER_HEADERS_MAX};
use posthaste_core::outcome::{Failure, FailureKind, Phase};
use std::error::Error;
use std::io;

pub(super) fn describe(broken: &Broken, meter: &Meter, trace: &Trace) -> Failure {
    let error = &broken.error;
    if meter.is_overrun() || is_head_too_large(error) {
        let detail = format!(
            "the answer's head has more than {ANSWER_HEAD_BYTES_MAX} bytes or \
             {ANSWER_HEADERS_MAX} headers, or too many interim answers came before it"
        );
        return trace.failure(FailureKind::Protocol, detail);
    }
    if error.is_parse() {
        return trace.failure(FailureKind::Protocol, "the answer is not HTTP");
    }
    if let Some(http2) = source_of::<h2::Error>(error) {
        return describe_http2(http2, trace);
    }
    match source_of::<io::Error>(error).map(io::Error::kind) {
        Some(io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput)
            if trace.phase() == Phase::Body =>
        {
            trace.failure(FailureKind::Protocol, "the answer's body is not HTTP")
        }
        Some(io::ErrorKind::ConnectionReset) => {
            trace.failure(FailureKind::Closed, "the receiver reset the connection")
        }
        Some(io::ErrorKind::UnexpectedEof) | None => trace.failure(
            FailureKind::Closed,
            "the receiver closed the connection before the answer was complete",
        ),
        Some(kind) => trace.failure(FailureKind::Closed, format!("the connection broke: {kind}")),
    }
}

fn describe_http2(error: &h2::Error, trace: &Trace) -> Failure {
    match error.reason() {
        Some(reason) if error.is_remote() => trace.failure(
            FailureKind::Closed,
            format!("the receiver ended the exchange with HTTP/2 code {}", u32::from(reason)),
        ),
        Some(reason) => trace.failure(
            FailureKind::Protocol,
            format!("the answer breaks the rules of HTTP/2 (code {})", u32::from(reason)),
        ),
        None => {
            let kind = error.get_io().map_or(io::ErrorKind::UnexpectedEof, io::Error::kind);
            trace.failure(FailureKind::Closed, format!("the connection broke: {kind}"))
        }
    }
}

/// hyper tells this only with its server part compiled in, so its fixed text has to do.
fn is_head_too_large(error: &hyper::Error) -> bool {
    error.is_parse() && error.to_string() == "message head is too large"
}

pub(super) fn source_of<E: Error + 'static>(error: &hyper::Error) -> Option<&E> {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(found) = inner.downcast_ref::<E>() {
            return Some(found);
        }
        source = inner.source();
    }
    None
}
