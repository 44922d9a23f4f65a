//! Messages on the wire. A payload's bytes are taken from and given to the client as they are.

use crate::ApiSettings;
use crate::error::{Problems, Refusal, Result};
use crate::wire::application::ApplicationIn;
use crate::wire::not_null;
use crate::wire::time::Time;
use bytes::Bytes;
use posthaste_core::event::{Channel, EventId, EventTypeName};
use posthaste_core::limits::{MESSAGE_CHANNELS_MAX, PAYLOAD_BYTES_MAX};
use posthaste_core::message::Message;
use posthaste_core::time::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::time::Duration;

/// Days for which a message may ask to keep its payload.
const RETENTION_DAYS: std::ops::RangeInclusive<u16> = 5..=90;
/// Payloads up to this size are copied out of the request. A slice would keep the connection's
/// whole read buffer alive until the last delivery, which for a small payload is many times its
/// size and costs more than the copy.
const COPIED_BYTES_MAX: usize = 16 * 1024;

/// To publish a message.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "MessageIn")]
pub(crate) struct MessageIn<'a> {
    #[serde(borrow)]
    pub event_type: Cow<'a, str>,
    /// A JSON object; signed and sent byte for byte as it stands here.
    #[serde(borrow, default, alias = "data")]
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub payload: Option<&'a RawValue>,
    /// The message's name in the publisher's own system; unique within the application.
    #[serde(borrow, default)]
    pub event_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub channels: Option<Vec<Cow<'a, str>>>,
    /// For how many days the payload is kept, 5 to 90.
    #[serde(default, deserialize_with = "not_null")]
    #[schemars(with = "u16")]
    pub payload_retention_period: Option<u16>,
    #[serde(borrow, default)]
    pub transformations_params: Option<Transformations<'a>>,
    /// Creates the application if there is none; its `uid` must be the one in the path.
    #[serde(default)]
    pub application: Option<ApplicationIn>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Transformations<'a> {
    /// Any text, sent as the body instead of the payload.
    #[serde(borrow, default)]
    pub raw_payload: Option<Cow<'a, str>>,
}

/// The checked fields of a `MessageIn`.
#[derive(Debug)]
pub(crate) struct MessageDraft {
    pub event_type: EventTypeName,
    pub event_id: Option<EventId>,
    pub channels: Vec<Channel>,
    pub payload: Bytes,
    kept_for: Duration,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "MessageOut")]
pub(crate) struct MessageOut<'a> {
    pub event_id: Option<String>,
    pub event_type: String,
    /// As it was published; `{}` when it was not asked for, `{"expired":true}` when it is gone, and
    /// `{"rawPayload": text}` for a body that is not a JSON object.
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub payload: Cow<'a, RawValue>,
    pub channels: Option<Vec<String>>,
    pub id: String,
    pub timestamp: Time,
}

impl MessageIn<'_> {
    /// Checks all fields but `application`. `body` is what this was read from.
    pub fn checked(&self, body: &Bytes, settings: &ApiSettings) -> Result<MessageDraft> {
        let mut problems = Problems::default();
        let event_type = problems.take("eventType", EventTypeName::new(&self.event_type));
        let given = self.event_id.as_deref();
        let event_id = given.and_then(|text| problems.take("eventId", EventId::new(text)));
        let given = self.channels.as_deref();
        let channels = channels(&mut problems, given, MESSAGE_CHANNELS_MAX).unwrap_or_default();
        let days = self.payload_retention_period.unwrap_or(settings.payload_kept_for_days);
        if self.payload_retention_period.is_some_and(|days| !RETENTION_DAYS.contains(&days)) {
            problems.add("payloadRetentionPeriod", "must be 5 to 90 (days)");
        }
        let payload = self.payload(&mut problems, body)?;
        let Some(event_type) = event_type else { return Err(problems.refusal()) };
        problems.finish()?;
        let kept_for = Duration::from_secs(u64::from(days) * 86_400);
        Ok(MessageDraft { event_type, event_id, channels, payload, kept_for })
    }

    fn payload(&self, problems: &mut Problems, body: &Bytes) -> Result<Bytes> {
        if self.payload.is_some_and(|payload| !payload.get().starts_with('{')) {
            problems.add("payload", "must be a JSON object");
        }
        let raw = self.transformations_params.as_ref().and_then(|it| it.raw_payload.as_deref());
        let text = match (raw, self.payload) {
            (Some(raw), _) => raw,
            (None, Some(payload)) => payload.get(),
            (None, None) => {
                problems.add("payload", "field required");
                ""
            }
        };
        if text.len() > PAYLOAD_BYTES_MAX {
            return Err(Refusal::too_large("the payload", PAYLOAD_BYTES_MAX));
        }
        let of_body = body.as_ptr_range().contains(&text.as_ptr());
        Ok(if of_body && text.len() > COPIED_BYTES_MAX {
            body.slice_ref(text.as_bytes())
        } else {
            Bytes::copy_from_slice(text.as_bytes())
        })
    }
}

impl MessageDraft {
    pub fn message(
        self,
        id: posthaste_core::id::MessageId,
        application_id: posthaste_core::id::ApplicationId,
        now: Timestamp,
    ) -> Message {
        Message {
            id,
            application_id,
            event_id: self.event_id,
            event_type: self.event_type,
            channels: self.channels,
            payload: Some(self.payload),
            created_at: now,
            expires_at: now.after(self.kept_for),
        }
    }
}

impl<'a> MessageOut<'a> {
    pub fn new(message: &'a Message, with_content: bool) -> Self {
        Self::with(message, payload_out(message.payload.as_deref(), with_content))
    }

    /// For a message that was just published: its payload is known to be a JSON object.
    pub fn published(message: &Message, payload: Option<&'a RawValue>, with_content: bool) -> Self {
        match payload.filter(|_| with_content) {
            Some(payload) => Self::with(message, Cow::Borrowed(payload)),
            None => {
                let shown = payload_out(message.payload.as_deref(), with_content).into_owned();
                Self::with(message, Cow::Owned(shown))
            }
        }
    }

    fn with(message: &Message, payload: Cow<'a, RawValue>) -> Self {
        let channels = &message.channels;
        Self {
            event_id: message.event_id.as_ref().map(ToString::to_string),
            event_type: message.event_type.to_string(),
            payload,
            channels: (!channels.is_empty())
                .then(|| channels.iter().map(ToString::to_string).collect()),
            id: message.id.to_string(),
            timestamp: Time(message.created_at),
        }
    }
}

/// Byte for byte where it is a JSON object. Always an object, because clients insist on one.
fn payload_out(payload: Option<&[u8]>, with_content: bool) -> Cow<'_, RawValue> {
    let Some(bytes) = payload else { return constant(r#"{"expired":true}"#) };
    if !with_content {
        return constant("{}");
    }
    if bytes.starts_with(b"{")
        && let Ok(raw) = serde_json::from_slice(bytes)
    {
        return Cow::Borrowed(raw);
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Raw<'a> {
        raw_payload: &'a str,
    }
    let raw = Raw { raw_payload: &String::from_utf8_lossy(bytes) };
    serde_json::value::to_raw_value(&raw).map_or_else(|_| constant("{}"), Cow::Owned)
}

fn constant(json: &'static str) -> Cow<'static, RawValue> {
    // The constants here are JSON; `null` is what is left if one were not.
    serde_json::from_str(json).map_or_else(|_| Cow::Owned(Box::default()), Cow::Borrowed)
}

/// Channels of a message or an endpoint: `None` is none; an empty list would match nothing.
pub(crate) fn channels<T: AsRef<str>>(
    problems: &mut Problems,
    given: Option<&[T]>,
    count_max: usize,
) -> Option<Vec<Channel>> {
    let given = given?;
    if given.is_empty() || given.len() > count_max {
        problems.add("channels", format!("must be `null` or 1 to {count_max} channels"));
        return None;
    }
    let mut channels = Vec::with_capacity(given.len());
    for (index, text) in given.iter().enumerate() {
        match Channel::new(text.as_ref()) {
            Ok(channel) => channels.push(channel),
            Err(error) => problems.add_at(&["channels", &format!("[{index}]")], error),
        }
    }
    Some(channels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::TokenKeys;
    use crate::wire::decode;

    fn settings() -> ApiSettings {
        ApiSettings::new(TokenKeys::new(&[b"x"]).unwrap(), "http://127.0.0.1")
    }

    fn draft(body: &str) -> Result<MessageDraft> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let input: MessageIn<'_> = decode(&body)?;
        input.checked(&body, &settings())
    }

    #[test]
    fn f005_the_payload_is_taken_byte_for_byte() {
        for payload in [
            r#"{"b": 1, "a": "é 😊", "n": 1.0}"#,
            r#"{"z":1,"a":2,"m":{"y":1.0,"b":9007199254740993},"a2":1e2,"dup":1,"dup":2}"#,
            "{ }",
            "{\"a\" :\n\t[1 ,2]}",
            r#"{"nul":"\u0000","esc":"\/"}"#,
        ] {
            for field in ["payload", "data"] {
                let body = format!(r#" {{ "eventType":"a", "{field}" :  {payload}  }} "#);
                assert_eq!(draft(&body).unwrap().payload, payload);
            }
            let out = payload_out(Some(payload.as_bytes()), true);
            assert_eq!(out.get(), payload);
        }
    }

    #[test]
    fn a_large_payload_is_not_copied() {
        let payload = format!(r#"{{"x":"{}"}}"#, "y".repeat(COPIED_BYTES_MAX));
        let body = Bytes::from(format!(r#"{{"eventType":"a","payload":{payload}}}"#));
        let input: MessageIn<'_> = decode(&body).unwrap();
        let draft = input.checked(&body, &settings()).unwrap();
        assert_eq!(draft.payload, payload);
        assert!(body.as_ptr_range().contains(&draft.payload.as_ptr()));
    }

    #[test]
    fn a_raw_payload_replaces_the_body() {
        let body = r#"{"eventType":"a","payload":{},"transformationsParams":
            {"rawPayload":"<x>\u00e9</x>","headers":{"content-type":"application/xml"}}}"#;
        let payload = draft(body).unwrap().payload;
        assert_eq!(payload, "<x>é</x>");
        assert_eq!(payload_out(Some(&payload), true).get(), r#"{"rawPayload":"<x>é</x>"}"#);
    }

    #[test]
    fn what_is_not_there_is_still_an_object() {
        assert_eq!(payload_out(None, true).get(), r#"{"expired":true}"#);
        assert_eq!(payload_out(Some(b"{\"a\":1}"), false).get(), "{}");
    }

    #[test]
    fn bad_messages_name_the_field() {
        for (body, field) in [
            (r#"{"payload":{}}"#, "eventType"),
            (r#"{"eventType":"a b","payload":{}}"#, "eventType"),
            (r#"{"eventType":"a"}"#, "payload"),
            (r#"{"eventType":"a","payload":null}"#, "payload"),
            (r#"{"eventType":"a","payload":[1]}"#, "payload"),
            (r#"{"eventType":"a","payload":"{}"}"#, "payload"),
            (r#"{"eventType":"a","payload":{},"eventId":"msg_x"}"#, "eventId"),
            (r#"{"eventType":"a","payload":{},"eventId":""}"#, "eventId"),
            (r#"{"eventType":"a","payload":{},"channels":[]}"#, "channels"),
            (r#"{"eventType":"a","payload":{},"channels":["1","2","3","4","5","6"]}"#, "channels"),
            (r#"{"eventType":"a","payload":{},"channels":["a","b c"]}"#, "[1]"),
            (r#"{"eventType":"a","payload":{},"channels":"a"}"#, "channels"),
            (r#"{"eventType":"a","payload":{},"payloadRetentionPeriod":4}"#, "payloadRetention"),
            (r#"{"eventType":"a","payload":{},"payloadRetentionPeriod":91}"#, "payloadRetention"),
            (r#"{"eventType":"a","payload":{},"payloadRetentionPeriod":null}"#, "payloadReten"),
            (r#"{"eventType":"a","payload":{},"payload":{}}"#, "duplicate field"),
            (r#"{"eventType":"a","payload":{]}"#, "is not JSON"),
        ] {
            let text = draft(body).unwrap_err().answer().body;
            let text = std::str::from_utf8(&text).unwrap();
            assert!(text.contains(field) && text.contains("validation"), "{body} gave {text}");
        }
    }

    #[test]
    fn f101_a_payload_over_the_limit_is_refused_with_the_limit() {
        let filler = "x".repeat(PAYLOAD_BYTES_MAX - 4 + 1);
        let body = format!(r#"{{"eventType":"a","payload":{{"{filler}":1}}}}"#);
        let answer = draft(&body).unwrap_err().answer();
        assert_eq!(answer.status, http::StatusCode::PAYLOAD_TOO_LARGE);
        let limit = PAYLOAD_BYTES_MAX.to_string();
        assert!(std::str::from_utf8(&answer.body).unwrap().contains(&limit));
    }
}
