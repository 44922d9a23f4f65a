//! Applications on the wire.

use crate::error::{Problems, Result};
use crate::wire::time::Time;
use crate::wire::{metadata, not_null, nullable, plain_text, throttle_rate};
use posthaste_core::endpoint::{Application, Metadata};
use posthaste_core::event::ApplicationUid;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// To create or replace an application.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ApplicationIn {
    pub name: String,
    /// Messages a second over all its endpoints.
    pub throttle_rate: Option<u16>,
    /// Old name of `throttleRate`.
    pub rate_limit: Option<u16>,
    /// Its name in the owner's own system.
    #[serde(default, deserialize_with = "nullable")]
    #[schemars(with = "Option<String>")]
    pub uid: Option<Option<String>>,
    pub metadata: Option<Metadata>,
}

/// To change some fields of an application.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ApplicationPatch {
    #[serde(default, deserialize_with = "not_null")]
    #[schemars(with = "String")]
    pub name: Option<String>,
    #[serde(default, deserialize_with = "nullable")]
    #[schemars(with = "Option<u16>")]
    pub throttle_rate: Option<Option<u16>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schemars(with = "Option<u16>")]
    pub rate_limit: Option<Option<u16>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schemars(with = "Option<String>")]
    pub uid: Option<Option<String>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schemars(with = "Option<Metadata>")]
    pub metadata: Option<Option<Metadata>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ApplicationOut {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<u16>,
    pub throttle_rate: Option<u16>,
    pub id: String,
    pub created_at: Time,
    pub updated_at: Time,
    pub metadata: Metadata,
}

/// The checked fields of an `ApplicationIn`.
#[derive(Debug)]
pub(crate) struct ApplicationDraft {
    pub name: String,
    pub throttle_rate: Option<u16>,
    /// `None`: not given; `Some(None)`: given as `null`.
    pub uid: Option<Option<ApplicationUid>>,
    pub metadata: Metadata,
}

impl ApplicationIn {
    pub fn checked(self) -> Result<ApplicationDraft> {
        let mut problems = Problems::default();
        let draft = ApplicationDraft {
            name: name(&mut problems, self.name),
            throttle_rate: throttle_rate(&mut problems, self.throttle_rate, self.rate_limit),
            uid: self.uid.map(|given| uid(&mut problems, given)),
            metadata: metadata(&mut problems, self.metadata),
        };
        problems.finish().map(|()| draft)
    }
}

impl ApplicationPatch {
    /// Changes what the patch names.
    pub fn apply(self, application: &mut Application) -> Result<()> {
        let mut problems = Problems::default();
        if let Some(given) = self.name {
            application.name = name(&mut problems, given);
        }
        match (self.throttle_rate, self.rate_limit) {
            (Some(rate), _) => {
                application.throttle_rate = throttle_rate(&mut problems, rate, None);
            }
            (None, Some(rate)) => {
                application.throttle_rate = throttle_rate(&mut problems, None, rate);
            }
            (None, None) => {}
        }
        if let Some(given) = self.uid {
            application.uid = uid(&mut problems, given);
        }
        if let Some(given) = self.metadata {
            application.metadata = metadata(&mut problems, given);
        }
        problems.finish()
    }
}

impl From<Application> for ApplicationOut {
    fn from(application: Application) -> Self {
        Self {
            uid: application.uid.map(String::from),
            name: application.name,
            rate_limit: application.throttle_rate,
            throttle_rate: application.throttle_rate,
            id: application.id.to_string(),
            created_at: Time(application.created_at),
            updated_at: Time(application.updated_at),
            metadata: application.metadata,
        }
    }
}

fn name(problems: &mut Problems, given: String) -> String {
    if given.is_empty() {
        problems.add("name", "must not be empty");
    }
    plain_text(problems, "name", given)
}

fn uid(problems: &mut Problems, given: Option<String>) -> Option<ApplicationUid> {
    given.and_then(|text| problems.take("uid", ApplicationUid::new(&text)))
}
