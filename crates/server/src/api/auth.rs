//! Tokens for the owners of applications.

use super::application;
use crate::auth::{
    APPLICATION_TOKEN_LIVES, APPLICATION_TOKEN_LIVES_MAX, ApplicationGrant, mint_application,
};
use crate::call::{Access, Answer, Call, Operation, Repetition};
use crate::error::{Problems, Refusal, Result};
use crate::wire::decode_or_empty;
use crate::wire::misc::{PortalIn, PortalOut};
use http::Method;
use posthaste_core::event::FeatureFlag;
use std::time::Duration;

pub(super) fn operations() -> Vec<Operation> {
    let portal = Operation::new(
        (Method::POST, "/api/v1/auth/app-portal-access/{app_id}"),
        "v1.authentication.app-portal-access",
        Access::Organisation,
        "Makes a token for one application, and a link that carries it.",
        |call| Box::pin(portal_access(call)),
    );
    let dashboard = Operation::new(
        (Method::POST, "/api/v1/auth/dashboard-access/{app_id}"),
        "v1.authentication.dashboard-access",
        Access::Organisation,
        "As app-portal-access, for older clients.",
        |call| Box::pin(dashboard_access(call)),
    );
    // The answers are secrets, which the store must not keep; to make another token is harmless.
    vec![
        Operation { repetition: Repetition::ByHandler, ..portal }
            .takes::<PortalIn>()
            .gives::<PortalOut>(200),
        Operation { repetition: Repetition::ByHandler, ..dashboard }.gives::<PortalOut>(200),
    ]
}

async fn portal_access(call: Call) -> Result<Answer> {
    let input: PortalIn = decode_or_empty(&call.body)?;
    grant(&call, input).await
}

async fn dashboard_access(call: Call) -> Result<Answer> {
    grant(&call, PortalIn::default()).await
}

async fn grant(call: &Call, input: PortalIn) -> Result<Answer> {
    let mut problems = Problems::default();
    let mut flags = Vec::new();
    for (index, text) in input.feature_flags.iter().flatten().enumerate() {
        match FeatureFlag::new(text) {
            Ok(flag) => flags.push(flag),
            Err(error) => problems.add_at(&["featureFlags", &format!("[{index}]")], error),
        }
    }
    let lives = input.expiry.map_or(APPLICATION_TOKEN_LIVES, Duration::from_secs);
    if lives.is_zero() || lives > APPLICATION_TOKEN_LIVES_MAX {
        let seconds_max = APPLICATION_TOKEN_LIVES_MAX.as_secs();
        problems.add("expiry", format!("must be 1 to {seconds_max} seconds"));
    }
    problems.finish()?;
    let application = match input.application {
        Some(given) => application::find_or_create(call, given).await?,
        None => call.application().await?,
    };
    let settings = &call.shared.settings;
    let granted = ApplicationGrant {
        organisation: &call.caller.organisation,
        application: application.id,
        feature_flags: &flags,
        read_only: input.read_only.unwrap_or_default(),
    };
    let token = mint_application(&settings.tokens, &granted, call.now, lives);
    // Behind the `#`, so that no server's log and no `Referer` ever sees it.
    let url = format!("{}/portal/{}#token={token}", settings.public_url, application.id);
    Answer::ok(&PortalOut { url, token }).map_err(|_| Refusal::internal())
}
