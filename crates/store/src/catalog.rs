//! What users set up: applications, endpoints, event types; and the keys of requests already done.
//!
//! Every change to an application or one of its endpoints raises the version of its routes in the
//! same transaction.

use crate::Result;
use crate::outbox::IdempotencyKey;
use async_trait::async_trait;
use posthaste_core::endpoint::{Application, Endpoint, EventType};
use posthaste_core::event::{EventTypeName, OrganisationId};
use posthaste_core::id::{ApplicationId, EndpointId};
use posthaste_core::routing::Routes;
use posthaste_core::time::Timestamp;
use std::sync::Arc;

/// Applications, endpoints, event types and begun requests, read and changed one at a time.
#[async_trait]
pub trait Catalog: Send + Sync {
    /// `Conflict` when the uid is taken within the organisation.
    async fn create_application(&self, application: Application) -> Result<()>;

    /// By id or uid, within the organisation; deleted ones are not there.
    async fn application(
        &self,
        organisation: &OrganisationId,
        name: &str,
    ) -> Result<Option<Application>>;

    /// Writes all fields. `Stale` when `updated_at` in the store is not `read_at`; `Conflict` when
    /// the new uid is taken.
    async fn update_application(&self, application: Application, read_at: Timestamp) -> Result<()>;

    /// The uid is free again; deliveries of its endpoints end as cancelled. `NotFound` if it is not
    /// there.
    async fn delete_application(&self, id: ApplicationId, now: Timestamp) -> Result<()>;

    async fn applications(
        &self,
        organisation: &OrganisationId,
        page: Page<ApplicationId>,
    ) -> Result<Slice<Application>>;

    /// The application and its endpoints, disabled ones too, for routing; `None` if deleted.
    async fn routes(&self, id: ApplicationId) -> Result<Option<Arc<Routes>>>;

    /// `Conflict` when the uid is taken within the application, `Limit` when the application has
    /// `limits::ENDPOINTS_PER_APPLICATION_MAX`, `NotFound` when the application is not there.
    async fn create_endpoint(&self, endpoint: Endpoint) -> Result<()>;

    /// By id or uid, within the application; deleted ones are not there.
    async fn endpoint(&self, application: ApplicationId, name: &str) -> Result<Option<Endpoint>>;

    /// Writes all fields, secrets and headers too. `Stale` when `updated_at` in the store is not
    /// `read_at`; `Conflict` when the new uid is taken. Disabling holds what waits; enabling starts
    /// with a closed breaker and sends nothing of what was held.
    async fn update_endpoint(&self, endpoint: Endpoint, read_at: Timestamp) -> Result<()>;

    /// The uid is free again; open deliveries end as cancelled.
    async fn delete_endpoint(&self, id: EndpointId, now: Timestamp) -> Result<()>;

    async fn endpoints(
        &self,
        application: ApplicationId,
        page: Page<EndpointId>,
    ) -> Result<Slice<Endpoint>>;

    /// `Conflict` when a live one has the name; an archived one is brought back and overwritten.
    async fn create_event_type(&self, event_type: EventType) -> Result<()>;

    async fn event_type(
        &self,
        organisation: &OrganisationId,
        name: &EventTypeName,
    ) -> Result<Option<EventType>>;

    /// Writes all fields; `NotFound` if it is not there.
    async fn update_event_type(&self, event_type: EventType) -> Result<()>;

    /// Removes it whole (archiving is an update); `NotFound` if it is not there.
    async fn delete_event_type(
        &self,
        organisation: &OrganisationId,
        name: &EventTypeName,
    ) -> Result<()>;

    /// Pages by name.
    async fn event_types(
        &self,
        organisation: &OrganisationId,
        filter: EventTypeFilter,
        page: Page<EventTypeName>,
    ) -> Result<Slice<EventType>>;

    /// Begins a request that carries an idempotency key. A request that was begun and neither
    /// finished nor dropped is taken over after `takeover_at`.
    async fn begin_request(
        &self,
        key: IdempotencyKey,
        now: Timestamp,
        takeover_at: Timestamp,
    ) -> Result<Begun>;

    /// Keeps the answer for repetitions until `expires_at`.
    async fn finish_request(
        &self,
        key: IdempotencyKey,
        answer: KeptAnswer,
        expires_at: Timestamp,
    ) -> Result<()>;

    /// Forgets a request that failed, so that it can be made again.
    async fn drop_request(&self, key: IdempotencyKey) -> Result<()>;
}

/// What became of a request with an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Ours to do.
    Fresh,
    /// Done before: answer this.
    Done(KeptAnswer),
    /// Somebody is doing it now.
    Busy,
    /// The key was used with another request.
    KeyReused,
}

/// An answer as it was given, to be given again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAnswer {
    pub status: u16,
    pub body: Vec<u8>,
}

/// Which event types are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventTypeFilter {
    pub include_archived: bool,
    /// `None`: all. `Some`: unflagged ones and those with one of these flags.
    pub feature_flags: Option<Vec<String>>,
}

/// Which page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<Key> {
    pub limit: u32,
    pub order: Order,
    pub from: Option<Cursor<Key>>,
}

/// Of keys; ids are ordered by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Ascending,
    Descending,
}

/// Where a page begins: right after the key in the list's order, or right before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cursor<Key> {
    After(Key),
    Before(Key),
}

/// A page in the list's own order, and whether more lies in the direction that was walked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice<Item> {
    pub items: Vec<Item>,
    pub more: bool,
}
