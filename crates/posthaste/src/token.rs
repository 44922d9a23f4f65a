//! Mints the API's tokens with the key that the server checks them with.

use crate::config::JwtSecret;
use crate::failure::Failure;
use posthaste_core::event::OrganisationId;
use posthaste_core::id::ApplicationId;
use posthaste_core::time::Timestamp;
use posthaste_server::auth::{self, ApplicationGrant, TokenKeys};
use std::time::Duration;

/// The organisation that tokens are for when nobody names one.
pub const ORGANISATION: &str = "org_23rb8YdGqMT0qIzpgGwdXfHirMu";
/// How long a token lives when nobody says otherwise.
pub const LIFETIME: Duration = auth::ORGANISATION_TOKEN_LIVES;
/// The same for a token of one application.
pub const APPLICATION_LIFETIME: Duration = auth::APPLICATION_TOKEN_LIVES;

/// Whom a token speaks for.
pub enum Subject {
    Organisation,
    /// One application only.
    Application(ApplicationId),
}

/// A token for `subject` within `organisation`, good from `now` on for `lifetime`.
///
/// # Errors
/// The secret is empty, which no `JwtSecret` is.
pub fn mint(
    secret: &JwtSecret,
    organisation: &OrganisationId,
    subject: Subject,
    now: Timestamp,
    lifetime: Duration,
) -> Result<String, Failure> {
    let keys = TokenKeys::new(&[secret.expose().as_bytes()])
        .ok_or_else(|| Failure::usage("the key of the tokens is empty"))?;
    Ok(match subject {
        Subject::Organisation => auth::mint_organisation(&keys, organisation, now, lifetime),
        Subject::Application(application) => {
            let grant = ApplicationGrant {
                organisation,
                application,
                feature_flags: &[],
                read_only: false,
            };
            auth::mint_application(&keys, &grant, now, lifetime)
        }
    })
}
