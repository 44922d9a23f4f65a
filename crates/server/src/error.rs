//! The one place where what went wrong becomes a status and a JSON body.
//!
//! Two forms, both never empty: `{"code", "detail": text}`, and for a field that is wrong
//! `{"code": "validation", "detail": [{"loc", "msg", "type"}]}` with status 422, where `loc` ends
//! in the field's name as the client wrote it.
//!
//! **Invariant:** an answer tells what the client did or can do, never our insides. What the store
//! says goes to the log.

use crate::call::Answer;
use bytes::Bytes;
use http::StatusCode;
use posthaste_store::{Kind, Reason};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Display;

pub(crate) type Result<T, E = Refusal> = std::result::Result<T, E>;

/// Why a request gets no 2xx.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    code: &'static str,
    detail: Detail,
    retry_after_secs: Option<u32>,
    stale: bool,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Detail {
    Text(String),
    Problems(Vec<Problem>),
}

/// One thing that is wrong with a request.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Problem {
    /// `body`, `query`, `path` or `header`, then the way to the field.
    loc: Vec<String>,
    msg: String,
    #[serde(rename = "type")]
    kind: &'static str,
}

/// Body of every error but those of validation.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "HttpErrorOut")]
pub(crate) struct ErrorOut {
    /// For programs.
    code: String,
    /// For people.
    detail: String,
}

/// Body of status 422.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "HTTPValidationError")]
pub(crate) struct ValidationOut {
    /// Always `validation`.
    code: String,
    detail: Vec<Problem>,
}

/// A rule of the value is broken.
const RULE: &str = "value_error";
/// The body is no JSON, or not of the right shape.
const SHAPE: &str = "value_error.jsondecode";

impl Refusal {
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let detail = Detail::Text(detail.into());
        Self { status, code, detail, retry_after_secs: None, stale: false }
    }

    pub fn bad_request(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, detail)
    }

    /// A query parameter that is not of its type.
    pub fn bad_query(name: &str, wanted: &str) -> Self {
        Self::bad_request("generic_error", format!("the query parameter `{name}` must be {wanted}"))
    }

    pub fn unauthenticated(detail: &'static str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "authentication_failed", detail)
    }

    pub fn forbidden() -> Self {
        let detail = "Insufficient access for the given operation.";
        Self::new(StatusCode::FORBIDDEN, "insufficient_access", detail)
    }

    pub fn not_found(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("{what} not found"))
    }

    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", detail)
    }

    pub fn too_large(what: &str, bytes_max: usize) -> Self {
        let detail = format!("{what} must not be larger than {bytes_max} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", detail)
    }

    pub fn unavailable() -> Self {
        let detail = "the store cannot be used now; try again";
        let refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail);
        Self { retry_after_secs: Some(1), ..refusal }
    }

    /// Says why the store cannot be used, for who runs the server. Others are told only that.
    #[must_use]
    pub fn because(self, reason: Option<Reason>) -> Self {
        match reason {
            Some(reason) => Self { detail: Detail::Text(reason.explanation().to_owned()), ..self },
            None => self,
        }
    }

    pub fn internal() -> Self {
        let detail = "the server could not do this; its log says why";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
    }

    /// A rule that one field of the body breaks.
    pub fn field(name: &str, message: impl Display) -> Self {
        Self::problem(&["body", name], message, RULE)
    }

    /// A rule that one query parameter breaks.
    pub fn query(name: &str, message: impl Display) -> Self {
        Self::problem(&["query", name], message, RULE)
    }

    pub fn problem(loc: &[&str], message: impl Display, kind: &'static str) -> Self {
        let loc = loc.iter().map(|part| (*part).to_owned()).collect();
        Self::validation(vec![Problem { loc, msg: message.to_string(), kind }])
    }

    /// The body is not what the operation takes; `loc` is the way to the place.
    pub fn shape(loc: Vec<String>, message: impl Display) -> Self {
        Self::validation(vec![Problem { loc, msg: message.to_string(), kind: SHAPE }])
    }

    fn validation(problems: Vec<Problem>) -> Self {
        Self {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            code: "validation",
            detail: Detail::Problems(problems),
            retry_after_secs: None,
            stale: false,
        }
    }

    /// The same where the body checked was the value of `field` within a larger one.
    #[must_use]
    pub fn within(mut self, field: &str) -> Self {
        if let Detail::Problems(problems) = &mut self.detail {
            for problem in problems {
                // Behind the `body` that every one of them begins with.
                problem.loc.insert(1.min(problem.loc.len()), field.to_owned());
            }
        }
        self
    }

    /// Somebody else changed the row in between: reading it again may help.
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// A conflict over the name that was looked for and not found: it was made in between.
    #[must_use]
    pub fn made_meanwhile(mut self) -> Self {
        self.stale |= self.status == StatusCode::CONFLICT;
        self
    }

    /// The object that was found was deleted in between.
    #[must_use]
    pub fn deleted_meanwhile(mut self) -> Self {
        self.stale |= self.status == StatusCode::NOT_FOUND;
        self
    }

    pub fn answer(&self) -> Answer {
        #[derive(Serialize)]
        struct Body<'a> {
            code: &'static str,
            detail: &'a Detail,
        }
        let body = Body { code: self.code, detail: &self.detail };
        let body = serde_json::to_vec(&body).map_or_else(
            // Cannot happen for texts; still no empty body.
            |_| Bytes::from_static(br#"{"code":"internal","detail":"no detail"}"#),
            Bytes::from,
        );
        let mut answer = Answer::raw(self.status, body);
        answer.retry_after_secs = self.retry_after_secs;
        answer
    }
}

impl From<posthaste_store::Error> for Refusal {
    fn from(error: posthaste_store::Error) -> Self {
        match error.kind() {
            Kind::NotFound => Self::not_found("Entity"),
            Kind::Conflict => Self::conflict("another object has this name already"),
            Kind::Stale => {
                let detail = "the object was changed by somebody else meanwhile; try again";
                Self { stale: true, ..Self::conflict(detail) }
            }
            Kind::Limit => Self::bad_request("limit_reached", "a limit of this server is reached"),
            Kind::Unavailable | Kind::Unusable => {
                // That the store is away is told once, by itself.
                if error.reason().is_none() {
                    tracing::warn!(error = %error, "the store is not available");
                }
                Self::unavailable()
            }
            Kind::Internal => {
                tracing::error!(error = %error, "the store failed");
                Self::internal()
            }
        }
    }
}

/// Collects what is wrong with the fields of a body, so that one answer names all of it.
#[derive(Debug, Default)]
pub(crate) struct Problems(Vec<Problem>);

impl Problems {
    pub fn add(&mut self, field: &str, message: impl Display) {
        self.add_at(&[field], message);
    }

    /// `path` leads from the body to the field.
    pub fn add_at(&mut self, path: &[&str], message: impl Display) {
        let parts = std::iter::once("body").chain(path.iter().copied());
        let loc = parts.map(str::to_owned).collect();
        self.0.push(Problem { loc, msg: message.to_string(), kind: RULE });
    }

    /// The value, or `None` and a problem noted.
    pub fn take<T, E: Display>(&mut self, field: &str, value: Result<T, E>) -> Option<T> {
        value.map_err(|error| self.add(field, error)).ok()
    }

    /// Fails if anything was noted.
    pub fn finish(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Refusal::validation(self.0)) }
    }

    /// For a place that is reached only after something was noted.
    pub fn refusal(self) -> Refusal {
        Refusal::validation(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(refusal: &Refusal) -> String {
        String::from_utf8(refusal.answer().body.to_vec()).unwrap()
    }

    #[test]
    fn no_store_text_reaches_the_client() {
        for kind in [Kind::Internal, Kind::Unavailable, Kind::Unusable, Kind::Stale, Kind::Limit] {
            let error = posthaste_store::Error::new(kind, "table endpoints, row 7");
            let refusal = Refusal::from(error);
            assert!(!text(&refusal).contains("row 7"), "{kind:?}");
            assert_eq!(refusal.is_stale(), kind == Kind::Stale);
        }
    }

    #[test]
    fn an_unavailable_store_says_when_to_come_back() {
        let refusal = Refusal::from(posthaste_store::Error::new(Kind::Unavailable, "busy"));
        assert_eq!(refusal.answer().status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refusal.answer().retry_after_secs, Some(1));
    }

    #[test]
    fn all_wrong_fields_are_named_at_once() {
        let mut problems = Problems::default();
        problems.add("url", "is not a URL");
        problems.add_at(&["policy", "timeoutMs"], "is too long");
        let body = text(&problems.finish().unwrap_err());
        assert_eq!(
            body,
            r#"{"code":"validation","detail":[{"loc":["body","url"],"msg":"is not a URL","#
                .to_owned()
                + r#""type":"value_error"},{"loc":["body","policy","timeoutMs"],"#
                + r#""msg":"is too long","type":"value_error"}]}"#
        );
    }
}
