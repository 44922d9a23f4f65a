//! Applications, endpoints, event types, requests with an idempotency key.

use super::Ground;
use super::world::*;
use crate::Kind;
use crate::catalog::{Begun, Cursor, EventTypeFilter, KeptAnswer, Order, Page};
use crate::outbox::Accepted;
use posthaste_core::endpoint::{DisabledReason, EndpointHeaders, EndpointUrl, EventType};
use posthaste_core::event::{
    ApplicationUid, Channel, EndpointUid, EventTypeName, FeatureFlag, OrganisationId,
};
use posthaste_core::limiter::RateLimit;
use posthaste_core::retry::RetryPolicy;
use posthaste_core::sign::{OldSecret, Secret};
use std::time::Duration;

/// Walks a list both ways, in both orders, two items at a time, and compares with `expected`, the
/// keys in ascending order.
macro_rules! walks_both_ways {
    ($expected:expr, $key:expr, $list:expr) => {
        for order in [Order::Ascending, Order::Descending] {
            let mut expected = $expected.clone();
            if order == Order::Descending {
                expected.reverse();
            }
            let mut seen = Vec::new();
            let mut from = None;
            loop {
                let page = Page { limit: 2, order, from: from.clone() };
                let slice = $list(page).await.unwrap();
                seen.extend(slice.items.iter().map($key));
                assert_eq!(slice.more, seen.len() < expected.len());
                if !slice.more {
                    break;
                }
                from = seen.last().cloned().map(Cursor::After);
            }
            assert_eq!(seen, expected);
            let last = seen.last().cloned().map(Cursor::Before);
            let page = Page { limit: 2, order, from: last };
            let slice = $list(page).await.unwrap();
            let before: Vec<_> = slice.items.iter().map($key).collect();
            let end = expected.len() - 1;
            assert_eq!(before, expected[end.saturating_sub(2)..end]);
            assert_eq!(slice.more, end > 2);
        }
    };
}

pub async fn application_comes_back(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let mut application = world.new_application();
    application.uid = Some(ApplicationUid::new("shop-1").unwrap());
    application.throttle_rate = Some(300);
    application.metadata.insert("tier".to_owned(), "gold \"é\"".to_owned());
    world.store.create_application(application.clone()).await.unwrap();
    for name in [application.id.to_string(), "shop-1".to_owned()] {
        let found = world.store.application(&organisation(), &name).await.unwrap();
        assert_eq!(found.as_ref(), Some(&application));
    }
    assert_eq!(world.store.application(&organisation(), "shop-2").await.unwrap(), None);
    let error = world.store.create_application(application).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
}

pub async fn application_uid_is_unique(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let named = |uid: &str| {
        let mut application = world.new_application();
        application.uid = Some(ApplicationUid::new(uid).unwrap());
        application
    };
    let first = named("shop");
    world.store.create_application(first.clone()).await.unwrap();
    let error = world.store.create_application(named("shop")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
    let mut second = named("other");
    world.store.create_application(second.clone()).await.unwrap();
    second.uid.clone_from(&first.uid);
    let error =
        world.store.update_application(second.clone(), second.updated_at).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
    world.store.delete_application(first.id, world.now()).await.unwrap();
    assert_eq!(world.store.application(&organisation(), "shop").await.unwrap(), None);
    world.store.update_application(second.clone(), second.updated_at).await.unwrap();
    let found = world.store.application(&organisation(), "shop").await.unwrap();
    assert_eq!(found.map(|found| found.id), Some(second.id));
}

pub async fn application_update_is_checked(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let mut application = world.application().await;
    let read_at = application.updated_at;
    application.name = "Renamed".to_owned();
    application.updated_at = world.pass_secs(1);
    world.store.update_application(application.clone(), read_at).await.unwrap();
    let name = application.id.to_string();
    let found = world.store.application(&organisation(), &name).await.unwrap();
    assert_eq!(found.as_ref(), Some(&application));
    let error = world.store.update_application(application.clone(), read_at).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Stale);
    world.store.delete_application(application.id, world.now()).await.unwrap();
    for error in [
        world.store.update_application(application.clone(), read_at).await.unwrap_err(),
        world.store.delete_application(application.id, world.now()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::NotFound);
    }
}

pub async fn organisations_are_apart(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let other = OrganisationId::new("org_two").unwrap();
    let mut application = world.new_application();
    application.uid = Some(ApplicationUid::new("shop").unwrap());
    world.store.create_application(application.clone()).await.unwrap();
    for name in ["shop".to_owned(), application.id.to_string()] {
        assert_eq!(world.store.application(&other, &name).await.unwrap(), None);
    }
    let mut theirs = world.new_application();
    theirs.organisation_id = other.clone();
    theirs.uid.clone_from(&application.uid);
    world.store.create_application(theirs.clone()).await.unwrap();
    let listed = world.store.applications(&other, page(50)).await.unwrap();
    assert_eq!(listed.items, [theirs]);
}

pub async fn applications_in_pages(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let mut expected = Vec::new();
    for _ in 0..6 {
        expected.push(world.application().await.id);
        world.pass(Duration::from_millis(1));
    }
    let gone = expected.remove(3);
    world.store.delete_application(gone, world.now()).await.unwrap();
    walks_both_ways!(expected, |application| application.id, |page| {
        world.store.applications(&ORGANISATION, page)
    });
}

static ORGANISATION: std::sync::LazyLock<OrganisationId> = std::sync::LazyLock::new(organisation);

pub async fn endpoint_comes_back(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world
        .endpoint_with(&application, |endpoint| {
            endpoint.uid = Some(EndpointUid::new("main").unwrap());
            endpoint.url = EndpointUrl::parse("https://user:pw@h.example:8443/p?q=1").unwrap();
            endpoint.description = "first\nsecond \u{1F600}".to_owned();
            endpoint.disabled = Some(DisabledReason::Manual);
            endpoint.event_types = Some(vec![EventTypeName::new("order.paid").unwrap()]);
            endpoint.channels = Some(vec![Channel::new("eu").unwrap()]);
            endpoint.throttle_rate = Some(50);
            endpoint.version = 3;
            endpoint.metadata.insert("a".to_owned(), "b".to_owned());
            let headers = [("X-Second", "2"), ("Authorization", "Basic x"), ("a", "")];
            endpoint.headers = EndpointHeaders::new(
                headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
            )
            .unwrap();
            endpoint.secrets.current = Secret::generate_ed25519([1; 32]).unwrap();
            endpoint.secrets.old =
                vec![OldSecret { secret: Secret::generate_hmac([2; 32]), expires_at: world.now() }];
            endpoint.policy.retry = RetryPolicy::preset("email");
            endpoint.policy.timeout_ms = Some(3_000);
            endpoint.policy.rate_limit = Some(RateLimit { count: 3, period_ms: 60_000, burst: 2 });
            endpoint.policy.final_statuses = vec![404, 501];
        })
        .await;
    for name in [endpoint.id.to_string(), "main".to_owned()] {
        let found = world.store.endpoint(application.id, &name).await.unwrap();
        assert!(found.as_ref() == Some(&endpoint), "the endpoint changed");
    }
    assert_eq!(world.store.endpoint(application.id, "other").await.unwrap(), None);
    let routes = world.store.routes(application.id).await.unwrap().unwrap();
    assert!(*routes.endpoints[0] == endpoint, "the endpoint changed");
}

pub async fn f042_long_urls(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    for length in [255, 256, 1_000, 2_048, 8_000] {
        let start = "https://receiver.example/";
        let url = format!("{start}{}", "p".repeat(length - start.len()));
        let endpoint = world
            .endpoint_with(&application, |endpoint| {
                endpoint.url = EndpointUrl::parse(&url).unwrap();
            })
            .await;
        let name = endpoint.id.to_string();
        let found = world.store.endpoint(application.id, &name).await.unwrap().unwrap();
        assert_eq!(found.url.as_str(), url);
    }
}

pub async fn endpoint_uid_is_unique(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (one, other) = (world.application().await, world.application().await);
    let uid = Some(EndpointUid::new("main").unwrap());
    let first = world.endpoint_with(&one, |endpoint| endpoint.uid.clone_from(&uid)).await;
    world.endpoint_with(&other, |endpoint| endpoint.uid.clone_from(&uid)).await;
    let mut second = world.new_endpoint(&one);
    second.uid.clone_from(&uid);
    let error = world.store.create_endpoint(second.clone()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
    let mut third = world.endpoint(&one).await;
    third.uid.clone_from(&uid);
    let error = world.store.update_endpoint(third.clone(), third.updated_at).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
    world.store.delete_endpoint(first.id, world.now()).await.unwrap();
    world.store.create_endpoint(second.clone()).await.unwrap();
    let found = world.store.endpoint(one.id, "main").await.unwrap();
    assert_eq!(found.map(|found| found.id), Some(second.id));
}

pub async fn endpoint_update_is_checked(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let mut endpoint = world.endpoint(&application).await;
    let read_at = endpoint.updated_at;
    endpoint.description = "changed".to_owned();
    endpoint.secrets.current = Secret::generate_hmac([9; 32]);
    endpoint.updated_at = world.pass_secs(1);
    world.store.update_endpoint(endpoint.clone(), read_at).await.unwrap();
    let name = endpoint.id.to_string();
    let found = world.store.endpoint(application.id, &name).await.unwrap().unwrap();
    assert!(found == endpoint, "the endpoint changed");
    let error = world.store.update_endpoint(endpoint.clone(), read_at).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Stale);
    world.store.delete_endpoint(endpoint.id, world.now()).await.unwrap();
    for error in [
        world.store.update_endpoint(endpoint.clone(), endpoint.updated_at).await.unwrap_err(),
        world.store.delete_endpoint(endpoint.id, world.now()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::NotFound);
    }
}

pub async fn endpoint_without_application(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.new_application();
    let endpoint = world.new_endpoint(&application);
    let error = world.store.create_endpoint(endpoint).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}

pub async fn endpoints_in_pages(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (application, other) = (world.application().await, world.application().await);
    let mut expected = Vec::new();
    for _ in 0..5 {
        expected.push(world.endpoint(&application).await.id);
        world.endpoint(&other).await;
    }
    walks_both_ways!(expected, |endpoint| endpoint.id, |page| {
        world.store.endpoints(application.id, page)
    });
}

pub async fn deleted_endpoint_is_gone(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    world.store.delete_endpoint(endpoint.id, world.now()).await.unwrap();
    let name = endpoint.id.to_string();
    assert_eq!(world.store.endpoint(application.id, &name).await.unwrap(), None);
    assert!(world.store.endpoints(application.id, page(50)).await.unwrap().items.is_empty());
    let routes = world.store.routes(application.id).await.unwrap().unwrap();
    assert!(routes.endpoints.is_empty());
    assert!(world.store.health(endpoint.id, world.now()).await.unwrap().is_none());
}

pub async fn routes_follow_every_change(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let mut versions = vec![world.store.routes(application.id).await.unwrap().unwrap().version];
    let endpoint = world.endpoint(&application).await;
    versions.push(world.store.routes(application.id).await.unwrap().unwrap().version);
    world.disable(&endpoint).await;
    let routes = world.store.routes(application.id).await.unwrap().unwrap();
    assert_eq!(routes.endpoints[0].disabled, Some(DisabledReason::Manual));
    versions.push(routes.version);
    let mut renamed = application.clone();
    renamed.throttle_rate = Some(7);
    world.store.update_application(renamed, application.updated_at).await.unwrap();
    let routes = world.store.routes(application.id).await.unwrap().unwrap();
    assert_eq!(routes.application.throttle_rate, Some(7));
    versions.push(routes.version);
    world.store.delete_endpoint(endpoint.id, world.now()).await.unwrap();
    versions.push(world.store.routes(application.id).await.unwrap().unwrap().version);
    assert!(versions.windows(2).all(|pair| pair[0] < pair[1]), "{versions:?}");
}

pub async fn routes_of_nothing(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.new_application();
    assert!(world.store.routes(application.id).await.unwrap().is_none());
    world.store.create_application(application.clone()).await.unwrap();
    assert!(world.store.routes(application.id).await.unwrap().is_some());
    world.store.delete_application(application.id, world.now()).await.unwrap();
    assert!(world.store.routes(application.id).await.unwrap().is_none());
}

pub async fn routes_changed_by_another_process(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    let acceptance = world.acceptance(world.message(&application)).await;
    let other = world.another(ground).await;
    let added = other.endpoint(&application).await;
    assert_eq!(world.store.accept(acceptance).await.unwrap(), Accepted::RoutesChanged);
    // What is read after such an answer is not the old copy again.
    let message = world.publish(&application).await;
    assert!(world.store.delivery(key(&added, message)).await.unwrap().is_some());
}

pub async fn update_leaves_health_alone(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    world.open_breaker(&application).await;
    let health = async || world.store.health(endpoint.id, world.now()).await.unwrap().unwrap();
    let before = health().await;
    world.change(&endpoint, |endpoint| endpoint.description = "x".to_owned()).await;
    assert_eq!(health().await.health, before.health);
    world.disable(&endpoint).await;
    assert_eq!(health().await.health, before.health);
    world.enable(&endpoint).await;
    assert_eq!(health().await.health, Default::default());
}

fn event_type(world: &World, name: &str) -> EventType {
    EventType {
        organisation_id: organisation(),
        name: EventTypeName::new(name).unwrap(),
        description: "An order".to_owned(),
        archived: false,
        deprecated: false,
        schemas: None,
        feature_flag: None,
        group_name: None,
        created_at: world.now(),
        updated_at: world.now(),
    }
}

pub async fn event_type_lives_and_returns(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let mut order = event_type(&world, "order.paid");
    order.schemas = Some(r#"{"1":{"b":1,"a":2.0}}"#.to_owned());
    order.feature_flag = Some(FeatureFlag::new("beta").unwrap());
    order.group_name = Some("orders".to_owned());
    world.store.create_event_type(order.clone()).await.unwrap();
    let find = async || world.store.event_type(&organisation(), &order.name).await.unwrap();
    assert_eq!(find().await, Some(order.clone()));
    let error = world.store.create_event_type(order.clone()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
    let mut archived = order.clone();
    (archived.archived, archived.deprecated) = (true, true);
    world.store.update_event_type(archived.clone()).await.unwrap();
    assert_eq!(find().await, Some(archived));
    let mut again = order.clone();
    again.description = "Back".to_owned();
    again.schemas = None;
    world.store.create_event_type(again.clone()).await.unwrap();
    assert_eq!(find().await, Some(again));
    world.store.delete_event_type(&organisation(), &order.name).await.unwrap();
    assert_eq!(find().await, None);
}

pub async fn event_types_are_filtered(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let variants = [("a", None, false), ("b", Some("beta"), false), ("c", None, true)];
    for (name, flag, archived) in variants {
        let mut event_type = event_type(&world, name);
        event_type.feature_flag = flag.map(|flag| FeatureFlag::new(flag).unwrap());
        event_type.archived = archived;
        world.store.create_event_type(event_type).await.unwrap();
    }
    let names = async |filter: EventTypeFilter| {
        let page = Page { limit: 50, order: Order::Ascending, from: None };
        let slice = world.store.event_types(&organisation(), filter, page).await.unwrap();
        slice.items.iter().map(|item| item.name.to_string()).collect::<Vec<_>>()
    };
    let flags = |flags: &[&str]| Some(flags.iter().map(|flag| (*flag).to_owned()).collect());
    assert_eq!(names(EventTypeFilter::default()).await, ["a", "b"]);
    let filter = EventTypeFilter { include_archived: true, feature_flags: None };
    assert_eq!(names(filter).await, ["a", "b", "c"]);
    let filter = EventTypeFilter { include_archived: false, feature_flags: flags(&[]) };
    assert_eq!(names(filter).await, ["a"]);
    let filter = EventTypeFilter { include_archived: true, feature_flags: flags(&["beta", "x"]) };
    assert_eq!(names(filter).await, ["a", "b", "c"]);
    let filter = EventTypeFilter { include_archived: false, feature_flags: flags(&["x"]) };
    assert_eq!(names(filter).await, ["a"]);
}

pub async fn event_types_in_pages(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let mut expected = Vec::new();
    for name in ["A", "B.c", "a", "a.b", "z"] {
        let event_type = event_type(&world, name);
        expected.push(event_type.name.clone());
        world.store.create_event_type(event_type).await.unwrap();
    }
    walks_both_ways!(expected, |event_type| event_type.name.clone(), |page| {
        world.store.event_types(&ORGANISATION, EventTypeFilter::default(), page)
    });
}

pub async fn missing_event_type(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let event_type = event_type(&world, "order.paid");
    for error in [
        world.store.update_event_type(event_type.clone()).await.unwrap_err(),
        world.store.delete_event_type(&organisation(), &event_type.name).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::NotFound);
    }
}

pub async fn request_is_done_once(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let begin = async |request| {
        let takeover_at = world.now().after(Duration::from_secs(60));
        let key = idempotency(1, request);
        world.store.begin_request(key, world.now(), takeover_at).await.unwrap()
    };
    assert_eq!(begin(1).await, Begun::Fresh);
    assert_eq!(begin(1).await, Begun::Busy);
    assert_eq!(begin(2).await, Begun::KeyReused);
    let answer = KeptAnswer { status: 201, body: b"{\"id\":\"a\0b\"}".to_vec() };
    let expires_at = world.now().after(Duration::from_secs(86_400));
    world.store.finish_request(idempotency(1, 1), answer.clone(), expires_at).await.unwrap();
    assert_eq!(begin(1).await, Begun::Done(answer.clone()));
    assert_eq!(begin(2).await, Begun::KeyReused);
    world.pass_secs(86_399);
    assert_eq!(begin(1).await, Begun::Done(answer));
    world.pass_secs(1);
    assert_eq!(begin(2).await, Begun::Fresh, "a key is free when it has expired");
}

pub async fn request_is_taken_over(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let begin = async || {
        let takeover_at = world.now().after(Duration::from_secs(60));
        world.store.begin_request(idempotency(1, 1), world.now(), takeover_at).await.unwrap()
    };
    assert_eq!(begin().await, Begun::Fresh);
    world.pass_secs(59);
    assert_eq!(begin().await, Begun::Busy);
    world.pass_secs(1);
    assert_eq!(begin().await, Begun::Fresh);
    assert_eq!(begin().await, Begun::Busy);
}

pub async fn request_is_dropped(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let takeover_at = world.now().after(Duration::from_secs(60));
    for _ in 0..2 {
        let begun = world.store.begin_request(idempotency(1, 1), world.now(), takeover_at);
        assert_eq!(begun.await.unwrap(), Begun::Fresh);
        world.store.drop_request(idempotency(1, 1)).await.unwrap();
    }
}
