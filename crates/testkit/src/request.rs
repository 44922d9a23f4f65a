//! What a receiver saw, byte for byte.

use bytes::Bytes;

/// One request as it came over the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedRequest {
    /// Counted from 1 per receiver.
    pub connection: usize,
    /// Counted from 1 per receiver.
    pub number: usize,
    /// No other request came over this connection before.
    pub is_first_on_connection: bool,
    /// Request line and headers with the empty line.
    pub head: Bytes,
    pub body: Bytes,
}

impl ReceivedRequest {
    pub fn head_text(&self) -> String {
        String::from_utf8_lossy(&self.head).into_owned()
    }

    pub fn method(&self) -> String {
        self.request_line(0)
    }

    /// Path and query as they stand in the request line.
    pub fn path(&self) -> String {
        self.request_line(1)
    }

    /// The first header of this name, in any case.
    pub fn header(&self, name: &str) -> Option<String> {
        let wanted = |(found, _): &(String, String)| found.eq_ignore_ascii_case(name);
        self.headers().into_iter().find(wanted).map(|(_, value)| value)
    }

    /// Names and values in order, names in the case they were sent in.
    pub fn headers(&self) -> Vec<(String, String)> {
        let text = self.head_text();
        text.split("\r\n")
            .skip(1)
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect()
    }

    fn request_line(&self, part: usize) -> String {
        let text = self.head_text();
        text.lines()
            .next()
            .and_then(|line| line.split(' ').nth(part))
            .unwrap_or_default()
            .to_owned()
    }
}
