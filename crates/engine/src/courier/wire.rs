//! One connection's bytes: plain or TLS, metered where they enter.

use posthaste_core::limits::{INTERIM_ANSWERS_MAX, INTERIM_BYTES_FREE};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// How each status line but the first begins.
const STATUS_LINE: &[u8] = b"\nHTTP/1.";

pub(super) struct Wire {
    stream: Stream,
    meter: Arc<Meter>,
}

pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// What the courier must know about a connection that hyper owns.
#[derive(Debug)]
pub(super) struct Meter {
    received: AtomicU64,
    /// Reading beyond this many bytes is an error: bounds the heads of an answer, interim answers
    /// included, however small each of them is.
    receivable: AtomicU64,
    interim: AtomicUsize,
    overrun: AtomicBool,
    write_blocked: AtomicBool,
}

impl Meter {
    /// Counts afresh, and lets at most `bytes_max` in.
    pub fn begin(&self, bytes_max: u64) {
        self.received.store(0, Ordering::Relaxed);
        self.receivable.store(bytes_max, Ordering::Relaxed);
        self.interim.store(0, Ordering::Relaxed);
    }

    /// Lets everything in; the reader has its own bound from here on.
    pub fn lift(&self) {
        self.receivable.store(u64::MAX, Ordering::Relaxed);
    }

    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub fn is_overrun(&self) -> bool {
        self.overrun.load(Ordering::Relaxed)
    }

    /// Whether bytes of the request still wait for the receiver to take them.
    pub fn is_write_blocked(&self) -> bool {
        self.write_blocked.load(Ordering::Relaxed)
    }

    fn count(&self, bytes: &[u8]) -> io::Result<()> {
        let length = bytes.len() as u64;
        let received = self.received.fetch_add(length, Ordering::Relaxed) + length;
        let receivable = self.receivable.load(Ordering::Relaxed);
        if receivable == u64::MAX || received <= INTERIM_BYTES_FREE {
            return Ok(());
        }
        // Only a head that is still not complete after so much is looked into: a flood of tiny
        // interim answers costs far more to parse than its bytes to receive.
        let starts = bytes.windows(STATUS_LINE.len()).filter(|window| *window == STATUS_LINE);
        let interim = starts.count() + self.interim.load(Ordering::Relaxed);
        self.interim.store(interim, Ordering::Relaxed);
        if received <= receivable && interim <= INTERIM_ANSWERS_MAX {
            return Ok(());
        }
        self.overrun.store(true, Ordering::Relaxed);
        Err(io::Error::new(io::ErrorKind::InvalidData, "the answer's head is too large"))
    }

    fn note_write<T>(&self, written: &Poll<T>) {
        self.write_blocked.store(written.is_pending(), Ordering::Relaxed);
    }
}

impl Wire {
    pub fn new(stream: Stream) -> Self {
        let meter = Arc::new(Meter {
            received: AtomicU64::new(0),
            receivable: AtomicU64::new(u64::MAX),
            interim: AtomicUsize::new(0),
            overrun: AtomicBool::new(false),
            write_blocked: AtomicBool::new(false),
        });
        Self { stream, meter }
    }

    pub fn meter(&self) -> Arc<Meter> {
        Arc::clone(&self.meter)
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        });
        match read {
            // Many servers end TLS without saying so. HTTP's own framing tells a cut answer.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            other => other?,
        }
        Poll::Ready(self.meter.count(&buffer.filled()[before..]))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        };
        self.meter.note_write(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        };
        self.meter.note_write(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        };
        self.meter.note_write(&flushed);
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
