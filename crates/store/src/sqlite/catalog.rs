//! `Catalog`: applications, endpoints, event types, requests with an idempotency key.

use super::SqliteStore;
use super::changes::{
    begin_request, changed, create_application, create_endpoint, delete_application,
    delete_endpoint, update_application, update_endpoint,
};
use super::writer::{Tx, Urgency};
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
use rusqlite::params;
use std::sync::Arc;

pub(super) mod sql {
    crate::queries::queries! { "../../sql/sqlite/catalog.sql":
        APPLICATION_INSERT, APPLICATION_BY_ID, APPLICATION_BY_UID, APPLICATION_UID_TAKEN,
        APPLICATION_VERSION, APPLICATION_UPDATE, APPLICATION_DELETE,
        APPLICATION_ENDPOINTS_DELETE, APPLICATION_LANES_DELETE, APPLICATIONS_PAGE,
        ROUTES_APPLICATION, ROUTES_ENDPOINTS, ENDPOINT_INSERT, LANE_INSERT, ENDPOINT_COUNT,
        ENDPOINT_BY_ID, ENDPOINT_BY_UID, ENDPOINT_UID_TAKEN, ENDPOINT_VERSION, ENDPOINT_UPDATE,
        LANE_TOUCH, LANE_OPEN, ENDPOINT_DELETE, ENDPOINTS_PAGE, EVENT_TYPE_INSERT,
        EVENT_TYPE_FIND, EVENT_TYPE_UPDATE, EVENT_TYPE_DELETE, EVENT_TYPES_PAGE, REQUEST_BEGIN,
        REQUEST_FINISH, REQUEST_DROP,
    }
}

static APPLICATIONS: Directed = Directed::new(sql::APPLICATIONS_PAGE);
static ENDPOINTS: Directed = Directed::new(sql::ENDPOINTS_PAGE);
static EVENT_TYPES: Directed = Directed::new(sql::EVENT_TYPES_PAGE);

/// The ends of an open range of names, which are ASCII.
const FIRST_NAME: &str = "";
const LAST_NAME: &str = "\u{7F}";

/// An id as the end of a range.
pub(super) fn bound(id: Option<&[u8; 16]>, open: &'static [u8]) -> Vec<u8> {
    id.map_or(open, |id| &id[..]).to_vec()
}

/// The ends of a walk over ids.
macro_rules! bounds {
    ($walk:expr) => {
        (
            $crate::sqlite::catalog::bound($walk.after.as_ref().map(|id| id.as_bytes()), &[]),
            $crate::sqlite::catalog::bound(
                $walk.before.as_ref().map(|id| id.as_bytes()),
                &[0xFF; 17],
            ),
        )
    };
}
pub(super) use bounds;

#[async_trait]
impl Catalog for SqliteStore {
    async fn create_application(&self, application: Application) -> Result<()> {
        self.change(move |tx| create_application(tx, &application)).await
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
        let (of, wanted) = (organisation.clone(), name.to_owned());
        let found = self
            .read(move |db| match wanted.parse::<ApplicationId>() {
                Ok(id) => {
                    let key = params![id.as_bytes(), of.as_str()];
                    db.one(sql::APPLICATION_BY_ID, key, rows::application)
                }
                Err(_) => {
                    let key = params![of.as_str(), wanted];
                    db.one(sql::APPLICATION_BY_UID, key, rows::application)
                }
            })
            .await?;
        if let Some(application) = &found {
            self.cache.keep_application(generation, name, application);
        }
        Ok(found)
    }

    async fn update_application(&self, application: Application, read_at: Timestamp) -> Result<()> {
        self.change(move |tx| update_application(tx, &application, read_at)).await
    }

    async fn delete_application(&self, id: ApplicationId, now: Timestamp) -> Result<()> {
        self.change(move |tx| delete_application(tx, id, now)).await
    }

    async fn applications(
        &self,
        organisation: &OrganisationId,
        page: Page<ApplicationId>,
    ) -> Result<Slice<Application>> {
        let (of, walk) = (organisation.clone(), Walk::new(page));
        self.read(move |db| {
            let (after, before) = bounds!(walk);
            let key = params![of.as_str(), after, before, walk.rows()];
            let sql = APPLICATIONS.sql(walk.descending);
            Ok(walk.slice(db.all(sql, key, rows::application)?))
        })
        .await
    }

    async fn routes(&self, id: ApplicationId) -> Result<Option<Arc<Routes>>> {
        if let Some(routes) = self.cache.routes(id) {
            return Ok(Some(routes));
        }
        let generation = self.cache.generation();
        let found = self
            .read(move |db| {
                let found = db.one(sql::ROUTES_APPLICATION, [id.as_bytes()], |row| {
                    Ok((row.int()?, rows::application(row)?))
                })?;
                let Some((version, application)) = found else { return Ok(None) };
                let endpoints = db.all(sql::ROUTES_ENDPOINTS, [id.as_bytes()], |row| {
                    rows::endpoint(row).map(Arc::new)
                })?;
                Ok(Some(Arc::new(Routes { application, version, endpoints })))
            })
            .await?;
        if let Some(routes) = &found {
            self.cache.keep_routes(generation, routes);
        }
        Ok(found)
    }

    async fn create_endpoint(&self, endpoint: Endpoint) -> Result<()> {
        self.change(move |tx| create_endpoint(tx, &endpoint)).await
    }

    async fn endpoint(&self, application: ApplicationId, name: &str) -> Result<Option<Endpoint>> {
        let wanted = name.to_owned();
        self.read(move |db| match wanted.parse::<EndpointId>() {
            Ok(id) => {
                let key = params![id.as_bytes(), application.as_bytes()];
                db.one(sql::ENDPOINT_BY_ID, key, rows::endpoint)
            }
            Err(_) => {
                let key = params![application.as_bytes(), wanted];
                db.one(sql::ENDPOINT_BY_UID, key, rows::endpoint)
            }
        })
        .await
    }

    async fn update_endpoint(&self, endpoint: Endpoint, read_at: Timestamp) -> Result<()> {
        let (id, enabled) = (endpoint.id, endpoint.disabled.is_none());
        let endpoint = Arc::new(endpoint);
        loop {
            let next = Arc::clone(&endpoint);
            if self.change(move |tx| update_endpoint(tx, &next, read_at)).await? {
                return Ok(());
            }
            debug_assert!(enabled, "only enabling has to wait for a sweep");
            // What waited when it was disabled is held first, in bounded steps.
            self.writer
                .call(Urgency::Now, 1, move |tx| super::upkeep::sweep(tx, id, read_at))
                .await?;
        }
    }

    async fn delete_endpoint(&self, id: EndpointId, now: Timestamp) -> Result<()> {
        self.change(move |tx| delete_endpoint(tx, id, now)).await
    }

    async fn endpoints(
        &self,
        application: ApplicationId,
        page: Page<EndpointId>,
    ) -> Result<Slice<Endpoint>> {
        let walk = Walk::new(page);
        self.read(move |db| {
            let (after, before) = bounds!(walk);
            let key = params![application.as_bytes(), after, before, walk.rows()];
            Ok(walk.slice(db.all(ENDPOINTS.sql(walk.descending), key, rows::endpoint)?))
        })
        .await
    }

    async fn create_event_type(&self, event_type: EventType) -> Result<()> {
        let created = self.write_event_type(sql::EVENT_TYPE_INSERT, event_type).await?;
        changed(created, Kind::Conflict, "an event type of this name exists")
    }

    async fn event_type(
        &self,
        organisation: &OrganisationId,
        name: &EventTypeName,
    ) -> Result<Option<EventType>> {
        let (of, name) = (organisation.clone(), name.clone());
        self.read(move |db| {
            let key = params![of.as_str(), name.as_str()];
            db.one(sql::EVENT_TYPE_FIND, key, rows::event_type)
        })
        .await
    }

    async fn update_event_type(&self, event_type: EventType) -> Result<()> {
        let updated = self.write_event_type(sql::EVENT_TYPE_UPDATE, event_type).await?;
        changed(updated, Kind::NotFound, "no such event type")
    }

    async fn delete_event_type(
        &self,
        organisation: &OrganisationId,
        name: &EventTypeName,
    ) -> Result<()> {
        let (of, name) = (organisation.clone(), name.clone());
        let delete = move |tx: &mut Tx<'_>| {
            tx.db.run(sql::EVENT_TYPE_DELETE, params![of.as_str(), name.as_str()])
        };
        let deleted = self.writer.call(Urgency::Now, 1, delete).await?;
        changed(deleted, Kind::NotFound, "no such event type")
    }

    async fn event_types(
        &self,
        organisation: &OrganisationId,
        filter: EventTypeFilter,
        page: Page<EventTypeName>,
    ) -> Result<Slice<EventType>> {
        let (of, walk) = (organisation.clone(), Walk::new(page));
        self.read(move |db| {
            let flags = filter.feature_flags.as_ref().map(rows::json).transpose()?;
            let key = params![
                of.as_str(),
                walk.after.as_ref().map_or(FIRST_NAME, |name| name.as_str()),
                walk.before.as_ref().map_or(LAST_NAME, |name| name.as_str()),
                walk.rows(),
                filter.include_archived,
                flags,
            ];
            Ok(walk.slice(db.all(EVENT_TYPES.sql(walk.descending), key, rows::event_type)?))
        })
        .await
    }

    async fn begin_request(
        &self,
        key: IdempotencyKey,
        now: Timestamp,
        takeover_at: Timestamp,
    ) -> Result<Begun> {
        self.writer.call(Urgency::Now, 1, move |tx| begin_request(tx, &key, now, takeover_at)).await
    }

    async fn finish_request(
        &self,
        key: IdempotencyKey,
        answer: KeptAnswer,
        expires_at: Timestamp,
    ) -> Result<()> {
        let finish = move |tx: &mut Tx<'_>| {
            let expires_at = expires_at.as_micros();
            let (status, body) = (answer.status, &answer.body);
            let row = params![key.key_hash, key.request_hash, status, body, expires_at];
            tx.db.run(sql::REQUEST_FINISH, row).map(drop)
        };
        self.writer.call(Urgency::Now, 1, finish).await
    }

    async fn drop_request(&self, key: IdempotencyKey) -> Result<()> {
        let forget = move |tx: &mut Tx<'_>| {
            tx.db.run(sql::REQUEST_DROP, params![key.key_hash, key.request_hash]).map(drop)
        };
        self.writer.call(Urgency::Now, 1, forget).await
    }
}

impl SqliteStore {
    /// A change to applications or endpoints; whatever comes of it, nothing old is used after it.
    async fn change<T, F>(&self, work: F) -> Result<T>
    where
        F: Fn(&mut Tx<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        let work = move |tx: &mut Tx<'_>| {
            tx.versions.clear();
            work(tx)
        };
        let done = self.writer.call(Urgency::Now, 1, work).await;
        self.cache.forget();
        done
    }

    async fn write_event_type(&self, sql: &'static str, event_type: EventType) -> Result<usize> {
        let write = move |tx: &mut Tx<'_>| {
            tx.db.run(
                sql,
                params![
                    event_type.organisation_id.as_str(),
                    event_type.name.as_str(),
                    event_type.description,
                    event_type.archived,
                    event_type.deprecated,
                    event_type.schemas,
                    event_type.feature_flag.as_ref().map(|flag| flag.as_str()),
                    event_type.group_name,
                    event_type.created_at.as_micros(),
                    event_type.updated_at.as_micros(),
                ],
            )
        };
        self.writer.call(Urgency::Now, 1, write).await
    }
}
