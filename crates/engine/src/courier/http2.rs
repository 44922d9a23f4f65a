//! One HTTP/2 connection, shared by all exchanges with its host and driven by a task of its own.

use super::Remedy;
use super::answer::{self, Broken, Received, Sent};
use super::failure;
use super::trace::Trace;
use super::wire::{Meter, Wire};
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use posthaste_core::limits::ANSWER_HEAD_BYTES_MAX;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// A connection with open streams that says nothing for so long is asked whether it lives ...
const PING_EVERY: Duration = Duration::from_secs(10);
/// ... and is given up when it does not answer within this.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Flow-control windows: little more than what is read of an answer.
const STREAM_WINDOW_BYTES: u32 = 128 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;

#[derive(Clone)]
pub(super) struct Http2 {
    sender: http2::SendRequest<Full<Bytes>>,
    meter: Arc<Meter>,
    remote: IpAddr,
    pub is_reused: bool,
}

impl Http2 {
    pub async fn open(wire: Wire, remote: IpAddr) -> Result<Self, hyper::Error> {
        let meter = wire.meter();
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_header_list_size(ANSWER_HEAD_BYTES_MAX as u32)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .handshake(TokioIo::new(wire))
            .await?;
        // Ends when the last sender is gone; what went wrong is told to each exchange.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(Self { sender, meter, remote, is_reused: false })
    }

    pub async fn exchange(&mut self, request: Sent, trace: &mut Trace) -> Result<Received, Broken> {
        trace.send_over(self.remote, &self.meter);
        let head = self.sender.try_send_request(request);
        answer::receive(head, &self.meter, trace).await
    }

    pub fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    pub fn meter(&self) -> &Meter {
        &self.meter
    }
}

/// Which failures of a stream are safe to send again (RFC 9113, section 8.7): the receiver says
/// that it did not process the request, or the request was never sent.
pub(super) fn remedy(broken: &Broken) -> Remedy {
    if broken.is_unsent || broken.error.is_canceled() {
        return Remedy::SendAgain;
    }
    match failure::source_of::<h2::Error>(&broken.error) {
        Some(error) if error.is_remote() => match error.reason() {
            Some(h2::Reason::HTTP_1_1_REQUIRED) => Remedy::SendAgainOverHttp1,
            Some(h2::Reason::REFUSED_STREAM) => Remedy::SendAgain,
            Some(_) if error.is_go_away() => Remedy::SendAgain,
            _ => Remedy::None,
        },
        _ => Remedy::None,
    }
}
