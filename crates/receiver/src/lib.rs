//! For those who receive webhooks from posthaste, or from any other sender that keeps to
//! [Standard Webhooks](https://www.standardwebhooks.com): tells a genuine request from a forged,
//! changed or repeated one.
//!
//! Verify the body as it was received, before any parsing: JSON that was read and written again
//! has other bytes. Answer 2xx once the event is safe with you; anything else is sent again, with
//! the same id, so remember the ids of what you have handled.
//!
//! ```
//! use posthaste_receiver::{Rejection, Webhook};
//! use std::time::{Duration, UNIX_EPOCH};
//!
//! let webhook = Webhook::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?;
//!
//! // As they come from your HTTP server; the names are asked for in lower case.
//! let headers = [
//!     ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
//!     ("webhook-timestamp", "1614265330"),
//!     ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
//! ];
//! let header = |name: &str| headers.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
//! let body = br#"{"test": 2432232314}"#;
//!
//! // In earnest: `SystemTime::now()`.
//! let now = UNIX_EPOCH + Duration::from_secs(1_614_265_330);
//! let event = webhook.verify(header, body, now)?;
//! assert_eq!(event.id, "msg_p5jXN8AQM9LWM0D4loKWxJek");
//!
//! // The same request an hour later is a repeated one.
//! let later = now + Duration::from_secs(3_600);
//! let rejection = webhook.verify(header, body, later);
//! assert_eq!(rejection, Err(Rejection::TooOld { skew_secs: 3_600 }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use posthaste_core::time::Timestamp;
use posthaste_core::verify::{Verified, Verifier};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use posthaste_core::sign::SecretError;
pub use posthaste_core::verify::Rejection;

/// Verifies the requests of one sender. Cheap to keep and to share; `Debug` shows no secret.
#[derive(Clone, Debug)]
pub struct Webhook(Verifier);

/// A request that is genuine, unchanged and recent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The same whenever the event is sent again: handle each id once.
    pub id: &'a str,
    /// When this attempt was made, to the second.
    pub sent_at: SystemTime,
}

impl Webhook {
    /// For the endpoint's secret (`whsec_...`) or public key (`whpk_...`), as the sender shows it.
    ///
    /// # Errors
    /// If the text is neither; the error says what is wrong with it and holds none of it.
    pub fn new(key: &str) -> Result<Self, SecretError> {
        Self::any_of([key])
    }

    /// For several keys, of which any may match, such as in the middle of a rotation.
    ///
    /// # Errors
    /// As `new`; also if there are none.
    pub fn any_of<S: AsRef<str>>(keys: impl IntoIterator<Item = S>) -> Result<Self, SecretError> {
        Verifier::new(keys).map(Self)
    }

    /// How far the sender's clock may be from yours, either way; 300 s unless told otherwise.
    #[must_use]
    pub fn tolerance(self, tolerance: Duration) -> Self {
        Self(self.0.tolerance(tolerance))
    }

    /// Verifies a request: `header` gives the value of the header of a lower-case name, `body` is
    /// what was received, byte for byte, `now` is the time. Headers named `webhook-...` and
    /// `svix-...` are both understood.
    ///
    /// # Errors
    /// Says why the request must not be believed. Answer it with 401 and do nothing else.
    pub fn verify<'a>(
        &self,
        header: impl Fn(&str) -> Option<&'a str>,
        body: &[u8],
        now: SystemTime,
    ) -> Result<Event<'a>, Rejection> {
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Timestamp::from_secs(0).after(since_epoch);
        let Verified { id, signed_at, .. } = self.0.verify(header, body, now)?;
        // Within the tolerance of `now`, a time that the system can tell.
        let sent_at = UNIX_EPOCH + signed_at.since(Timestamp::from_secs(0));
        Ok(Event { id, sent_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const BODY: &[u8] = br#"{"z":1,"a":2,"m":{"y":1.0,"b":9007199254740993}}"#;

    fn header(name: &str) -> Option<&'static str> {
        match name {
            "svix-id" => Some("msg_0001"),
            "svix-timestamp" => Some("1700000000"),
            "svix-signature" => Some("v1,erIDpRNWrkjlzumr6IPOlIyr4p+QfcH4iG6OzM/aRJI="),
            _ => None,
        }
    }

    fn at(secs: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(secs)
    }

    #[test]
    fn a_genuine_request_is_an_event() {
        let webhook = Webhook::new(SECRET).unwrap();
        let event = webhook.verify(header, BODY, at(1_700_000_007));
        assert_eq!(event, Ok(Event { id: "msg_0001", sent_at: at(1_700_000_000) }));
    }

    #[test]
    fn anything_else_is_rejected_with_the_reason() {
        let webhook = Webhook::new(SECRET).unwrap();
        let verify = |body, secs| webhook.verify(header, body, at(secs)).unwrap_err();
        assert_eq!(verify(b"{}", 1_700_000_000), Rejection::Mismatch);
        assert_eq!(verify(BODY, 1_700_000_301), Rejection::TooOld { skew_secs: 301 });
        assert_eq!(verify(BODY, 1_699_999_699), Rejection::TooNew { skew_secs: 301 });
        let strict = webhook.clone().tolerance(Duration::from_secs(5));
        let rejection = strict.verify(header, BODY, at(1_700_000_006));
        assert_eq!(rejection, Err(Rejection::TooOld { skew_secs: 6 }));
        let bare = webhook.verify(|_| None, BODY, at(1_700_000_000));
        assert_eq!(bare, Err(Rejection::Missing("webhook-id")));
    }

    #[test]
    fn a_bad_key_is_refused_without_being_shown() {
        let error = Webhook::new("v1,whsec_AAECAwQF").unwrap_err().to_string();
        assert!(error.contains("v1,") && !error.contains("AAECAwQF"), "{error}");
        assert!(!format!("{:?}", Webhook::new(SECRET)).contains("AAEC"));
    }
}
