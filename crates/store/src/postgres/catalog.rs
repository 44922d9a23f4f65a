//! `Catalog`: applications, endpoints, event types, requests with an idempotency key.

use super::PostgresStore;
use super::changes::{
    begin_request, changed, create_application, create_endpoint, delete_application,
    delete_endpoint, update_application, update_endpoint,
};
use super::db::{Column, Params, Tx, Uuid, params};
use super::upkeep::sweep;
use crate::catalog::{Begun, Catalog, EventTypeFilter, KeptAnswer, Page, Slice};
use crate::outbox::IdempotencyKey;
use crate::page::Walk;
use crate::queries::Directed;
use crate::rows;
use crate::{Kind, Result};
use async_trait::async_trait;
use posthaste_core::endpoint::{Application, Endpoint, EventType};
use posthaste_core::event::{EventTypeName, OrganisationId};
use posthaste_core::id::{ApplicationId, EndpointId};
use posthaste_core::routing::Routes;
use posthaste_core::time::Timestamp;
use std::sync::Arc;

pub(super) mod sql {
    crate::queries::queries! { "../../sql/postgres/catalog.sql":
        APPLICATION_INSERT, APPLICATION_BY_ID, APPLICATION_BY_UID, APPLICATION_UID_TAKEN,
        APPLICATION_VERSION, APPLICATION_UPDATE, APPLICATION_DELETE,
        APPLICATION_ENDPOINTS_DELETE, APPLICATION_LANES_DELETE, APPLICATIONS_PAGE,
        ROUTES_APPLICATION, ROUTES_ENDPOINTS, ENDPOINT_INSERT, LANE_INSERT, ENDPOINT_COUNT,
        ENDPOINT_BY_ID, ENDPOINT_BY_UID, ENDPOINT_UID_TAKEN, ENDPOINT_APPLICATION_LOCK,
        ENDPOINT_VERSION, ENDPOINT_UPDATE, LANE_SWEEPING, LANE_TOUCH, LANE_OPEN, ENDPOINT_DELETE,
        ENDPOINTS_PAGE, EVENT_TYPE_INSERT, EVENT_TYPE_FIND, EVENT_TYPE_UPDATE, EVENT_TYPE_DELETE,
        EVENT_TYPES_PAGE, REQUEST_INSERT, REQUEST_FIND, REQUEST_BEGIN, REQUEST_FINISH,
        REQUEST_DROP,
    }
}

static APPLICATIONS: Directed = Directed::new(sql::APPLICATIONS_PAGE);
static ENDPOINTS: Directed = Directed::new(sql::ENDPOINTS_PAGE);
static EVENT_TYPES: Directed = Directed::new(sql::EVENT_TYPES_PAGE);

/// The ends of an open range of names, which are ASCII and compare byte by byte.
const FIRST_NAME: &str = "";
const LAST_NAME: &str = "\u{7F}";

/// The ends of a walk over ids, none of which is all zeros or all ones.
pub(super) fn bounds<Id: Copy + Into<Uuid>>(walk: &Walk<Id>) -> (Uuid, Uuid) {
    (walk.after.map_or(Uuid::NIL, Into::into), walk.before.map_or(Uuid::MAX, Into::into))
}

/// Whether a name that a client made up can be stored at all: PostgreSQL's texts hold no NUL.
pub(super) fn is_storable(name: &str) -> bool {
    !name.contains('\0')
}

/// Changes the catalogue in a transaction. What was kept of it is forgotten whatever came of it: an
/// answer that was lost may have been that of a commit.
macro_rules! change {
    ($store:expr, |$tx:ident| $work:expr) => {{
        let done = transact!($store.core, Write, |$tx| $work);
        $store.cache.forget();
        done
    }};
}

#[async_trait]
impl Catalog for PostgresStore {
    async fn create_application(&self, application: Application) -> Result<()> {
        change!(self, |tx| create_application(tx, &application).await)
    }

    async fn application(
        &self,
        organisation: &OrganisationId,
        name: &str,
    ) -> Result<Option<Application>> {
        if let Some(application) = self.cache.application(organisation, name) {
            return Ok(Some(application));
        }
        let generation = self.cache.generation();
        let found = transact!(self.core, Read, |tx| match name.parse::<ApplicationId>() {
            Ok(id) => {
                let key = params![Uuid::from(id), organisation.as_str()];
                tx.one(sql::APPLICATION_BY_ID, key, rows::application).await
            }
            Err(_) if !is_storable(name) => Ok(None),
            Err(_) => {
                let key = params![organisation.as_str(), name];
                tx.one(sql::APPLICATION_BY_UID, key, rows::application).await
            }
        })?;
        if let Some(application) = &found {
            self.cache.keep_application(generation, name, application);
        }
        Ok(found)
    }

    async fn update_application(&self, application: Application, read_at: Timestamp) -> Result<()> {
        change!(self, |tx| update_application(tx, &application, read_at).await)
    }

    async fn delete_application(&self, id: ApplicationId, now: Timestamp) -> Result<()> {
        change!(self, |tx| delete_application(tx, id, now).await)
    }

    async fn applications(
        &self,
        organisation: &OrganisationId,
        page: Page<ApplicationId>,
    ) -> Result<Slice<Application>> {
        let walk = Walk::new(page);
        let (after, before) = bounds(&walk);
        let key = params![organisation.as_str(), after, before, walk.rows()];
        let sql = APPLICATIONS.sql(walk.descending);
        let found = transact!(self.core, Read, |tx| tx.all(sql, key, rows::application).await)?;
        Ok(walk.slice(found))
    }

    async fn routes(&self, id: ApplicationId) -> Result<Option<Arc<Routes>>> {
        if let Some(routes) = self.cache.routes(id) {
            return Ok(Some(routes));
        }
        let generation = self.cache.generation();
        let found = transact!(self.core, Read, |tx| read_routes(tx, id).await)?;
        if let Some(routes) = &found {
            self.cache.keep_routes(generation, routes);
        }
        Ok(found)
    }

    async fn create_endpoint(&self, endpoint: Endpoint) -> Result<()> {
        change!(self, |tx| create_endpoint(tx, &endpoint).await)
    }

    async fn endpoint(&self, application: ApplicationId, name: &str) -> Result<Option<Endpoint>> {
        let application = Uuid::from(application);
        transact!(self.core, Read, |tx| match name.parse::<EndpointId>() {
            Ok(id) => {
                let key = params![Uuid::from(id), application];
                tx.one(sql::ENDPOINT_BY_ID, key, rows::endpoint).await
            }
            Err(_) if !is_storable(name) => Ok(None),
            Err(_) => {
                tx.one(sql::ENDPOINT_BY_UID, params![application, name], rows::endpoint).await
            }
        })
    }

    async fn update_endpoint(&self, endpoint: Endpoint, read_at: Timestamp) -> Result<()> {
        let enabled = endpoint.disabled.is_none();
        while !change!(self, |tx| update_endpoint(tx, &endpoint, read_at).await)? {
            debug_assert!(enabled, "only enabling has to wait for a sweep");
            // What waited when it was disabled is held first, in bounded steps.
            transact!(self.core, Write, |tx| sweep(tx, endpoint.id, read_at).await)?;
        }
        Ok(())
    }

    async fn delete_endpoint(&self, id: EndpointId, now: Timestamp) -> Result<()> {
        change!(self, |tx| delete_endpoint(tx, id, now).await)
    }

    async fn endpoints(
        &self,
        application: ApplicationId,
        page: Page<EndpointId>,
    ) -> Result<Slice<Endpoint>> {
        let walk = Walk::new(page);
        let (after, before) = bounds(&walk);
        let key = params![Uuid::from(application), after, before, walk.rows()];
        let sql = ENDPOINTS.sql(walk.descending);
        let found = transact!(self.core, Read, |tx| tx.all(sql, key, rows::endpoint).await)?;
        Ok(walk.slice(found))
    }

    async fn create_event_type(&self, event_type: EventType) -> Result<()> {
        let created = self.write_event_type(sql::EVENT_TYPE_INSERT, &event_type).await?;
        changed(created, Kind::Conflict, "an event type of this name exists")
    }

    async fn event_type(
        &self,
        organisation: &OrganisationId,
        name: &EventTypeName,
    ) -> Result<Option<EventType>> {
        let key = params![organisation.as_str(), name.as_str()];
        transact!(self.core, Read, |tx| tx.one(sql::EVENT_TYPE_FIND, key, rows::event_type).await)
    }

    async fn update_event_type(&self, event_type: EventType) -> Result<()> {
        let updated = self.write_event_type(sql::EVENT_TYPE_UPDATE, &event_type).await?;
        changed(updated, Kind::NotFound, "no such event type")
    }

    async fn delete_event_type(
        &self,
        organisation: &OrganisationId,
        name: &EventTypeName,
    ) -> Result<()> {
        let key = params![organisation.as_str(), name.as_str()];
        let deleted = self.run(sql::EVENT_TYPE_DELETE, key).await?;
        changed(deleted, Kind::NotFound, "no such event type")
    }

    async fn event_types(
        &self,
        organisation: &OrganisationId,
        filter: EventTypeFilter,
        page: Page<EventTypeName>,
    ) -> Result<Slice<EventType>> {
        let walk = Walk::new(page);
        let key = params![
            organisation.as_str(),
            walk.after.as_ref().map_or(FIRST_NAME, |name| name.as_str()),
            walk.before.as_ref().map_or(LAST_NAME, |name| name.as_str()),
            walk.rows(),
            filter.include_archived,
            filter.feature_flags.map(Column),
        ];
        let sql = EVENT_TYPES.sql(walk.descending);
        let found = transact!(self.core, Read, |tx| tx.all(sql, key, rows::event_type).await)?;
        Ok(walk.slice(found))
    }

    async fn begin_request(
        &self,
        key: IdempotencyKey,
        now: Timestamp,
        takeover_at: Timestamp,
    ) -> Result<Begun> {
        transact!(self.core, Write, |tx| begin_request(tx, &key, now, takeover_at).await)
    }

    async fn finish_request(
        &self,
        key: IdempotencyKey,
        answer: KeptAnswer,
        expires_at: Timestamp,
    ) -> Result<()> {
        let row = params![
            &key.key_hash[..],
            &key.request_hash[..],
            i64::from(answer.status),
            answer.body,
            expires_at.as_micros(),
        ];
        self.run(sql::REQUEST_FINISH, row).await.map(drop)
    }

    async fn drop_request(&self, key: IdempotencyKey) -> Result<()> {
        let key = params![&key.key_hash[..], &key.request_hash[..]];
        self.run(sql::REQUEST_DROP, key).await.map(drop)
    }
}

pub(super) async fn read_routes(tx: &Tx, id: ApplicationId) -> Result<Option<Arc<Routes>>> {
    let key = params![Uuid::from(id)];
    // The version first: what changes after it was read is found to have changed.
    let (found, endpoints) = tokio::join!(biased;
        tx.one(sql::ROUTES_APPLICATION, key, |row| Ok((row.int()?, rows::application(row)?))),
        tx.all(sql::ROUTES_ENDPOINTS, key, |row| rows::endpoint(row).map(Arc::new)),
    );
    let endpoints = endpoints?;
    let Some((version, application)) = found? else { return Ok(None) };
    Ok(Some(Arc::new(Routes { application, version, endpoints })))
}

impl PostgresStore {
    /// One statement that needs nothing else.
    async fn run(&self, sql: &str, key: Params<'_>) -> Result<u64> {
        transact!(self.core, Write, |tx| tx.run(sql, key).await)
    }

    async fn write_event_type(&self, sql: &'static str, event_type: &EventType) -> Result<u64> {
        let row = params![
            event_type.organisation_id.as_str(),
            event_type.name.as_str(),
            event_type.description.as_str(),
            event_type.archived,
            event_type.deprecated,
            event_type.schemas.as_deref(),
            event_type.feature_flag.as_ref().map(|flag| flag.as_str()),
            event_type.group_name.as_deref(),
            event_type.created_at.as_micros(),
            event_type.updated_at.as_micros(),
        ];
        self.run(sql, row).await
    }
}
