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
    /// What the connection had received when the exchange began.
    received_before: u64,
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
        Ok(Self { sender, meter, remote, is_reused: false, received_before: 0 })
    }

    pub async fn exchange(&mut self, request: Sent, trace: &mut Trace) -> Result<Received, Broken> {
        self.received_before = self.meter.received();
        trace.send_over(self.remote, &self.meter);
        let head = self.sender.try_send_request(request);
        answer::receive(head, &self.meter, trace).await
    }

    pub fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.meter, &other.meter)
    }

    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Which failures of a stream are safe to send again (RFC 9113, section 8.7): the receiver
    /// says that it did not process the request, or the request was never sent, or a kept
    /// connection died without another byte.
    pub fn remedy(&self, broken: &Broken) -> Remedy {
        if broken.is_unsent || broken.error.is_canceled() {
            return Remedy::SendAgain;
        }
        let said = failure::source_of::<h2::Error>(&broken.error)
            .filter(|error| error.is_remote())
            .and_then(|error| error.reason().map(|reason| (reason, error.is_go_away())));
        match said {
            Some((h2::Reason::HTTP_1_1_REQUIRED, _)) => Remedy::SendAgainOverHttp1,
            Some((h2::Reason::REFUSED_STREAM, _) | (_, true)) => Remedy::SendAgain,
            Some(_) => Remedy::None,
            None if self.is_reused && self.meter.received() == self.received_before => {
                Remedy::SendAgain
            }
            None => Remedy::None,
        }
    }
}
