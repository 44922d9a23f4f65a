//! Event types on the wire.

use crate::error::{Problems, Result};
use crate::wire::time::Time;
use crate::wire::{not_null, nullable, plain_text};
use posthaste_core::endpoint::EventType;
use posthaste_core::event::{EventTypeName, FeatureFlag, OrganisationId};
use posthaste_core::time::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// To create an event type, or (with the name in the path) to replace one.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventTypeIn {
    /// Not needed where the path has it.
    pub name: Option<String>,
    pub description: String,
    pub archived: Option<bool>,
    pub deprecated: Option<bool>,
    /// JSON Schemas by version.
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    pub schemas: Option<Box<RawValue>>,
    /// Shows the event type only to those who have the flag.
    pub feature_flag: Option<String>,
    /// What it is listed under.
    pub group_name: Option<String>,
}

/// To change some fields of an event type.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventTypePatch {
    #[serde(default, deserialize_with = "not_null")]
    #[schemars(with = "String")]
    pub description: Option<String>,
    #[serde(default, deserialize_with = "not_null")]
    #[schemars(with = "bool")]
    pub archived: Option<bool>,
    #[serde(default, deserialize_with = "not_null")]
    #[schemars(with = "bool")]
    pub deprecated: Option<bool>,
    #[serde(default, deserialize_with = "nullable")]
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    pub schemas: Option<Option<Box<RawValue>>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schemars(with = "Option<String>")]
    pub feature_flag: Option<Option<String>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schemars(with = "Option<String>")]
    pub group_name: Option<Option<String>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventTypeOut {
    pub name: String,
    pub description: String,
    pub archived: bool,
    pub deprecated: bool,
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    pub schemas: Option<Box<RawValue>>,
    pub created_at: Time,
    pub updated_at: Time,
    pub feature_flag: Option<String>,
    pub group_name: Option<String>,
}

impl EventTypeIn {
    /// `name`: the one in the path, which wins.
    pub fn checked(
        self,
        name: Option<EventTypeName>,
        organisation_id: OrganisationId,
        now: Timestamp,
    ) -> Result<EventType> {
        let mut problems = Problems::default();
        let name = name.or_else(|| match self.name.as_deref() {
            Some(text) => problems.take("name", EventTypeName::new(text)),
            None => {
                problems.add("name", "field required");
                None
            }
        });
        let description = plain_text(&mut problems, "description", self.description);
        let schemas = schemas(&mut problems, self.schemas);
        let feature_flag = flag(&mut problems, self.feature_flag);
        let group_name = group(&mut problems, self.group_name);
        let Some(name) = name else { return Err(problems.refusal()) };
        problems.finish()?;
        Ok(EventType {
            organisation_id,
            name,
            description,
            archived: self.archived.unwrap_or_default(),
            deprecated: self.deprecated.unwrap_or_default(),
            schemas,
            feature_flag,
            group_name,
            created_at: now,
            updated_at: now,
        })
    }
}

impl EventTypePatch {
    pub fn apply(self, event_type: &mut EventType) -> Result<()> {
        let mut problems = Problems::default();
        if let Some(given) = self.description {
            event_type.description = plain_text(&mut problems, "description", given);
        }
        event_type.archived = self.archived.unwrap_or(event_type.archived);
        event_type.deprecated = self.deprecated.unwrap_or(event_type.deprecated);
        if let Some(given) = self.schemas {
            event_type.schemas = schemas(&mut problems, given);
        }
        if let Some(given) = self.feature_flag {
            event_type.feature_flag = flag(&mut problems, given);
        }
        if let Some(given) = self.group_name {
            event_type.group_name = group(&mut problems, given);
        }
        problems.finish()
    }
}

impl EventTypeOut {
    pub fn new(event_type: EventType, with_content: bool) -> Self {
        let schemas = event_type.schemas.filter(|_| with_content);
        Self {
            name: event_type.name.to_string(),
            description: event_type.description,
            archived: event_type.archived,
            deprecated: event_type.deprecated,
            schemas: schemas.and_then(|text| RawValue::from_string(text).ok()),
            created_at: Time(event_type.created_at),
            updated_at: Time(event_type.updated_at),
            feature_flag: event_type.feature_flag.map(String::from),
            group_name: event_type.group_name,
        }
    }
}

/// An object whose values are objects or booleans, which is what a JSON Schema is.
fn schemas(problems: &mut Problems, given: Option<Box<RawValue>>) -> Option<String> {
    let given = given?;
    type Versions<'a> = std::collections::BTreeMap<String, &'a RawValue>;
    let Ok(versions) = serde_json::from_str::<Versions<'_>>(given.get()) else {
        problems.add("schemas", "must be an object of JSON Schemas by version");
        return None;
    };
    for (version, schema) in &versions {
        if !schema.get().starts_with(['{', 't', 'f']) {
            problems.add_at(&["schemas", version], "is not a JSON Schema");
        }
    }
    Some(given.get().to_owned())
}

fn flag(problems: &mut Problems, given: Option<String>) -> Option<FeatureFlag> {
    given.and_then(|text| problems.take("featureFlag", FeatureFlag::new(&text)))
}

fn group(problems: &mut Problems, given: Option<String>) -> Option<String> {
    given.map(|text| plain_text(problems, "groupName", text))
}
