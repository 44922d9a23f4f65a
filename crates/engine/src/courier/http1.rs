//! One HTTP/1.1 connection.
//!
//! The connection is driven by the task that uses it: an exchange costs no hop between tasks, and
//! an idle connection costs none at all. It is looked at when it is taken out of the pool.

use super::answer::{self, Broken, Received, Sent};
use super::trace::Trace;
use super::wire::{Meter, Wire};
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use posthaste_core::limits::{ANSWER_HEAD_BYTES_MAX, ANSWER_HEADERS_MAX};
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

type Connection = http1::Connection<TokioIo<Wire>, Full<Bytes>>;

/// Bytes let in until an answer's head is complete: the head and the interim answers before it.
/// Part of a body may come in with the head.
const HEADS_BYTES_MAX: u64 = 2 * ANSWER_HEAD_BYTES_MAX as u64;

pub(super) struct Http1 {
    sender: http1::SendRequest<Full<Bytes>>,
    /// `None` once it has ended.
    connection: Option<Connection>,
    meter: Arc<Meter>,
    remote: IpAddr,
    pub is_reused: bool,
}

impl Http1 {
    pub async fn open(wire: Wire, remote: IpAddr) -> Result<Box<Self>, hyper::Error> {
        let meter = wire.meter();
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(ANSWER_HEAD_BYTES_MAX)
            .max_headers(ANSWER_HEADERS_MAX)
            .handshake(TokioIo::new(wire))
            .await?;
        let connection = Some(connection);
        Ok(Box::new(Self { sender, connection, meter, remote, is_reused: false }))
    }

    pub async fn exchange(&mut self, request: Sent, trace: &mut Trace) -> Result<Received, Broken> {
        self.meter.begin(HEADS_BYTES_MAX);
        trace.send_over(self.remote, &self.meter);
        let head = self.sender.try_send_request(request);
        let mut exchange = pin!(answer::receive(head, &self.meter, trace));
        let connection = &mut self.connection;
        poll_fn(|cx| {
            if let Some(running) = connection
                && running.poll_without_shutdown(cx).is_ready()
            {
                // Dropping it is what tells a waiting exchange.
                *connection = None;
            }
            exchange.as_mut().poll(cx)
        })
        .await
    }

    /// Whether another request can go over this connection: the last exchange is over and the
    /// receiver has neither closed it nor sent anything since.
    pub fn is_idle(&mut self) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        let mut cx = Context::from_waker(Waker::noop());
        if connection.poll_without_shutdown(&mut cx).is_ready() {
            self.connection = None;
            return false;
        }
        self.sender.is_ready()
    }

    pub fn meter(&self) -> &Meter {
        &self.meter
    }
}
