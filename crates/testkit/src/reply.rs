//! What a receiver does with a request: a short script of bytes and pauses.

use bytes::Bytes;
use std::time::Duration;

/// Steps in order. After the last one the connection waits for the next request.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub(crate) steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub enum Step {
    Write(Bytes),
    Wait(Duration),
    /// These bytes one by one, with a pause before each.
    Drip {
        bytes: Bytes,
        every: Duration,
    },
    /// These bytes again and again until the sender has had enough.
    Repeat(Bytes),
    /// Nothing more, with the connection open.
    Hang,
    /// Ends the connection in an orderly way.
    Close,
    /// Ends it with a TCP reset.
    Reset,
}

impl Reply {
    pub fn nothing() -> Self {
        Self::default()
    }

    /// An answer without a body.
    pub fn status(status: u16) -> Self {
        Self::with_body(status, "")
    }

    pub fn ok() -> Self {
        Self::status(200)
    }

    pub fn with_body(status: u16, body: impl Into<Bytes>) -> Self {
        Self::full(status, &[], body)
    }

    pub fn with_headers(status: u16, headers: &[(&str, &str)]) -> Self {
        Self::full(status, headers, "")
    }

    pub fn full(status: u16, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Self {
        let body = body.into();
        let mut head = format!("HTTP/1.1 {status} Scripted\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        // RFC 9110, section 8.6: neither of these may have a Content-Length.
        if status >= 200 && status != 204 {
            let length = if status == 304 { 0 } else { body.len() };
            head.push_str(&format!("content-length: {length}\r\n"));
        }
        head.push_str("\r\n");
        // Head and body leave in one packet, as real servers send them.
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&body);
        Self::raw(bytes)
    }

    pub fn raw(bytes: impl Into<Bytes>) -> Self {
        Self::nothing().then(Step::Write(bytes.into()))
    }

    pub fn hang() -> Self {
        Self::nothing().then(Step::Hang)
    }

    pub fn reset() -> Self {
        Self::nothing().then(Step::Reset)
    }

    pub fn close() -> Self {
        Self::nothing().then(Step::Close)
    }

    pub fn garbage() -> Self {
        Self::raw(&b"\x00\xff\x13SSH-2.0 this is not HTTP\r\n\r\n\x00"[..]).then(Step::Close)
    }

    /// 200 and a chunked body without end.
    pub fn endless_body() -> Self {
        let chunk = format!("2000\r\n{}\r\n", "x".repeat(0x2000));
        Self::raw("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            .then(Step::Repeat(chunk.into()))
    }

    /// 200 and a body that promises much and comes byte by byte.
    pub fn dripping_body(every: Duration) -> Self {
        let bytes = Bytes::from(vec![b'x'; 100_000]);
        Self::raw("HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            .then(Step::Drip { bytes, every })
    }

    /// A status line that comes byte by byte.
    pub fn dripping_head(every: Duration) -> Self {
        let line = format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(100_000));
        Self::nothing().then(Step::Drip { bytes: line.into(), every })
    }

    pub fn interim_flood(status: u16) -> Self {
        let interim = format!("HTTP/1.1 {status} Scripted\r\n\r\n").repeat(100);
        Self::nothing().then(Step::Repeat(interim.into()))
    }

    /// 200 with this many headers, each value of this many bytes.
    pub fn many_headers(count: usize, value_bytes: usize) -> Self {
        let value = "v".repeat(value_bytes);
        let mut head = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n".to_owned();
        for number in 0..count {
            head.push_str(&format!("x-{number}: {value}\r\n"));
        }
        head.push_str("\r\n");
        Self::raw(head)
    }

    #[must_use]
    pub fn then(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Both replies, as one.
    #[must_use]
    pub fn followed_by(mut self, next: Self) -> Self {
        self.steps.extend(next.steps);
        self
    }

    /// The same reply, later.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.steps.insert(0, Step::Wait(delay));
        self
    }
}
