//! What goes over the wire: JSON types, apart from the domain's types.
//!
//! A body is read in two steps: its shape here (`decode`), its rules where a wire type becomes a
//! domain type. Unknown fields are ignored, as clients of many versions send many.

pub(crate) mod application;
pub(crate) mod attempt;
pub(crate) mod endpoint;
pub(crate) mod event_type;
pub(crate) mod message;
pub(crate) mod misc;
pub(crate) mod time;

use crate::error::{Problems, Refusal, Result};
use posthaste_core::endpoint::Metadata;
use posthaste_core::limits::{DESCRIPTION_BYTES_MAX, METADATA_BYTES_MAX};
use serde::de::{Deserialize, Deserializer};

/// Reads a body. On failure the answer names the field.
pub(crate) fn decode<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|_| explain::<T>(body))
}

/// As `decode`, where a client may send no body at all.
pub(crate) fn decode_or_empty<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T> {
    decode(if body.is_empty() { b"{}" } else { body })
}

/// Reads the body a second time, more slowly, to find out where it goes wrong.
#[cold]
fn explain<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Refusal {
    let mut loc = vec!["body".to_owned()];
    if body.is_empty() {
        return Refusal::shape(loc, "the body must not be empty");
    }
    if let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(body) {
        return Refusal::shape(loc, format!("the body is not JSON: {error}"));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let Err(error) = serde_path_to_error::deserialize::<_, T>(&mut deserializer) else {
        return Refusal::shape(loc, "the body is not what this operation takes");
    };
    for segment in error.path() {
        match segment {
            serde_path_to_error::Segment::Seq { index } => loc.push(format!("[{index}]")),
            serde_path_to_error::Segment::Map { key } => loc.push(key.clone()),
            _ => {}
        }
    }
    let message = error.inner().to_string();
    // serde names a missing field in its text only.
    let missing = message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    if let Some(name) = missing {
        loc.push(name.to_owned());
    }
    // Where in the text it was is of no use to who wrote an object.
    let message = message.split(" at line ").next().unwrap_or(&message).to_owned();
    Refusal::shape(loc, message)
}

/// For a field that a PATCH may clear: absent is `None`, `null` is `Some(None)`.
pub(crate) fn nullable<'de, T, D>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}

/// For a field that may be absent but not `null`.
pub(crate) fn not_null<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    T::deserialize(deserializer).map(Some)
}

pub(crate) fn metadata(problems: &mut Problems, given: Option<Metadata>) -> Metadata {
    let metadata = given.unwrap_or_default();
    let bytes = serde_json::to_vec(&metadata).map_or(usize::MAX, |text| text.len());
    if bytes > METADATA_BYTES_MAX {
        problems.add(
            "metadata",
            format!("must not be larger than {METADATA_BYTES_MAX} bytes as JSON, not {bytes}"),
        );
    }
    metadata
}

/// A text for people: bounded, and without the control characters that no database or log likes.
pub(crate) fn plain_text(problems: &mut Problems, field: &str, text: String) -> String {
    if text.len() > DESCRIPTION_BYTES_MAX {
        problems.add(field, format!("must not be longer than {DESCRIPTION_BYTES_MAX} bytes"));
    }
    if text.bytes().any(|byte| byte <= 0x08) {
        problems.add(field, "must not hold control characters");
    }
    text
}

/// `throttleRate`, or its old name `rateLimit` where only that is given.
pub(crate) fn throttle_rate(
    problems: &mut Problems,
    throttle_rate: Option<u16>,
    rate_limit: Option<u16>,
) -> Option<u16> {
    let (field, rate) = match throttle_rate {
        Some(rate) => ("throttleRate", Some(rate)),
        None => ("rateLimit", rate_limit),
    };
    if rate == Some(0) {
        problems.add(field, "must be at least 1");
    }
    rate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct Inner {
        #[expect(dead_code, reason = "only its shape matters")]
        count: u16,
    }

    #[derive(Debug, serde::Deserialize)]
    #[expect(dead_code, reason = "only its shape matters")]
    struct Outer {
        name: String,
        #[serde(default)]
        items: Vec<Inner>,
        #[serde(default, deserialize_with = "not_null")]
        flag: Option<bool>,
    }

    #[test]
    fn a_wrong_shape_names_the_field() {
        for (body, loc, message) in [
            ("", r#"["body"]"#, "must not be empty"),
            ("{", r#"["body"]"#, "is not JSON"),
            ("[]", r#"["body"]"#, "invalid length 0"),
            ("{}", r#"["body","name"]"#, "missing field `name`"),
            (r#"{"name":1}"#, r#"["body","name"]"#, "invalid type: integer `1`"),
            (r#"{"name":"x","flag":null}"#, r#"["body","flag"]"#, "invalid type: null"),
            (
                r#"{"name":"x","items":[{"count":1},{"count":70000}]}"#,
                r#"["body","items","[1]","count"]"#,
                "invalid value: integer `70000`, expected u16",
            ),
            (r#"{"name":"x","items":[{}]}"#, r#"["body","items","[0]","count"]"#, "missing field"),
            (r#"{"name":"x"} x"#, r#"["body"]"#, "is not JSON"),
        ] {
            let refusal = decode::<Outer>(body.as_bytes()).unwrap_err().answer();
            let text = String::from_utf8(refusal.body.to_vec()).unwrap();
            assert!(text.contains(&format!(r#""loc":{loc}"#)), "{body} gave {text}");
            assert!(text.contains(message), "{body} gave {text}");
        }
    }
}
