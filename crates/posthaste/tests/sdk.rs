//! The official client libraries against the real binary, as our users' programs use them.

mod common;

use common::{PATIENCE, Posthaste, Setup};
use posthaste_testkit::{ReceivedRequest, Receiver, Reply};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};
use svix::api::{EndpointListOptions, MessageCreateOptions, MessageListOptions, Svix, SvixOptions};
use svix::models::{
    AppPortalAccessIn, ApplicationIn, BackgroundTaskStatus, EndpointIn, EndpointPatch,
    EndpointSecretRotateIn, EventTypeIn, MessageAttemptOut, MessageAttemptTriggerType, MessageIn,
    MessageStatus, RecoverIn,
};
use ureq::http::{HeaderMap, HeaderName, HeaderValue};

/// The interpreter with the libraries of `tests/python/requirements.txt`.
const PYTHON: &str = "POSTHASTE_TEST_PYTHON";

#[test]
fn the_python_client_does_all_of_tier_1() {
    let python = std::env::var_os(PYTHON).unwrap_or_else(|| {
        panic!("{PYTHON} is not set; run the tests with `cargo xtask test`, which makes it")
    });
    let posthaste = setup().start();
    let ran = Command::new(python)
        // The client leaves its sockets to the garbage collector, which would tell of each.
        .args(["-W", "ignore::ResourceWarning", "-m", "unittest", "--verbose"])
        .args(["test_access", "test_catalog", "test_deliveries", "test_pages"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/python"))
        .env("POSTHASTE_TEST_URL", posthaste.url())
        .env("POSTHASTE_TEST_TOKEN", common::token())
        // Nothing is left beside the sources.
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let printed = [&ran.stdout[..], &ran.stderr[..]].concat();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&printed));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_client_sends_to_whom_it_may_concern() {
    let customer = Customer::start(setup()).await;
    customer.svix.health().get().await.unwrap();
    let paid = EventTypeIn::new("invoice.paid".into(), "An invoice was paid".into());
    customer.svix.event_type().create(paid, None).await.unwrap();
    let all = customer.endpoint("/all", |_| {}).await;
    let filtered = customer
        .endpoint("/paid", |wanted| {
            wanted.event_types = Some(BTreeSet::from(["invoice.paid".into()]));
            wanted.headers = Some(BTreeMap::from([("X-Shop".into(), "7".into())]));
        })
        .await;

    let options = || MessageCreateOptions {
        idempotency_key: Some("order-1".into()),
        with_content: Some(true),
    };
    let paid = MessageIn::new("invoice.paid".into(), json!({ "id": "in_1", "sum": 12.5 }));
    let messages = customer.svix.message();
    let first = messages.create(customer.app(), paid.clone(), Some(options())).await.unwrap();
    assert_eq!(first.payload, paid.payload);
    let again = messages.create(customer.app(), paid.clone(), Some(options())).await.unwrap();
    assert_eq!(again, first, "the same key is the same message");
    let other = customer.send("invoice.sent").await;

    let requests = customer.receiver.wait_for(3).await;
    let mut seen: Vec<_> = requests.iter().map(|it| (it.path(), id(it))).collect();
    seen.sort_unstable();
    let mut wanted = [
        ("/all".into(), first.id.clone()),
        ("/all".into(), other),
        ("/paid".into(), first.id.clone()),
    ];
    wanted.sort_unstable();
    assert_eq!(seen, wanted);
    for request in &requests {
        let endpoint = if request.path() == "/all" { &all } else { &filtered };
        verify(request, &customer.secret(endpoint).await);
    }
    let filtered = requests.iter().find(|it| it.path() == "/paid").unwrap();
    assert_eq!(filtered.header("x-shop").as_deref(), Some("7"));
    assert_eq!(filtered.body, serde_json::to_string(&paid.payload).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_client_lists_attempts_and_resends() {
    let customer = Customer::start(setup()).await;
    let endpoint = customer.endpoint("/", |_| {}).await;
    let mut failures = [503, 500].into_iter().map(Reply::status);
    customer.receiver.change_script(move |_| failures.next().unwrap_or_else(Reply::ok));
    let message = customer.send("a").await;
    let attempts = customer.attempts(&message, 3).await;
    let codes: Vec<_> = attempts.iter().map(|it| it.response_status_code).collect();
    assert_eq!(codes, [200, 500, 503], "newest first");
    assert!(attempts.iter().all(|it| it.endpoint_id == endpoint && it.msg_id == message));
    let svix = customer.svix.message_attempt();
    let one = svix.get(customer.app(), message.clone(), attempts[1].id.clone(), None).await;
    assert_eq!(one.unwrap().id, attempts[1].id);
    let of_endpoint = svix.list_by_endpoint(customer.app(), endpoint.clone(), None).await.unwrap();
    let ids = |attempts: &[MessageAttemptOut]| -> Vec<String> {
        attempts.iter().map(|it| it.id.clone()).collect()
    };
    assert_eq!(ids(&of_endpoint.data), ids(&attempts));
    let standing = svix.list_attempted_destinations(customer.app(), message.clone(), None).await;
    assert_eq!(standing.unwrap().data[0].status, MessageStatus::Success);
    let standing = svix.list_attempted_messages(customer.app(), endpoint.clone(), None).await;
    assert_eq!(standing.unwrap().data[0].id, message);

    svix.resend(customer.app(), message.clone(), endpoint.clone(), None).await.unwrap();
    let attempts = customer.attempts(&message, 4).await;
    assert_eq!(attempts[0].trigger_type, MessageAttemptTriggerType::Manual);
    let requests = customer.receiver.requests();
    assert_eq!(requests.len(), 4);
    let secret = customer.secret(&endpoint).await;
    for request in &requests {
        assert_eq!(id(request), message, "the same on every attempt");
        verify(request, &secret);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_client_recovers_what_was_given_up() {
    let customer = Customer::start(setup()).await;
    let endpoint = customer.endpoint("/", |_| {}).await;
    let delivered = customer.send("before").await;
    customer.attempts(&delivered, 1).await;
    let first = customer.svix.message().get(customer.app(), delivered.clone(), None).await.unwrap();
    customer.receiver.change_to(Reply::status(503));
    let mut failed = BTreeSet::new();
    for _ in 0..5 {
        failed.insert(customer.send("outage").await);
    }
    for message in &failed {
        customer.until_standing(message, MessageStatus::Fail).await;
    }
    let before = customer.receiver.requests().len();
    assert_eq!(before, 1 + failed.len() * 4, "three waits are four attempts");

    customer.receiver.change_to(Reply::ok());
    let since = RecoverIn::new(first.timestamp);
    let endpoints = customer.svix.endpoint();
    let task = endpoints.recover(customer.app(), endpoint.clone(), since, None).await.unwrap();
    for message in &failed {
        customer.until_standing(message, MessageStatus::Success).await;
    }
    let requests = customer.receiver.requests();
    let recovered: Vec<_> = requests[before..].iter().map(id).collect();
    assert_eq!(recovered.len(), failed.len(), "each once");
    assert_eq!(BTreeSet::from_iter(recovered), failed);
    let secret = customer.secret(&endpoint).await;
    requests.iter().for_each(|request| verify(request, &secret));
    let started = Instant::now();
    loop {
        let task = customer.svix.background_task().get(task.id.clone()).await.unwrap();
        if task.status == BackgroundTaskStatus::Finished {
            assert_eq!(task.data["messagesSent"], failed.len());
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{task:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_client_rotates_secrets_with_overlap() {
    let customer = Customer::start(setup()).await;
    let endpoint = customer.endpoint("/", |_| {}).await;
    let old = customer.secret(&endpoint).await;
    let endpoints = customer.svix.endpoint();
    let rotate = EndpointSecretRotateIn::new();
    let new = endpoints.rotate_secret(customer.app(), endpoint.clone(), rotate, None).await;
    let new = new.unwrap().key;
    assert_ne!(new, old);
    customer.send("a").await;
    let request = customer.receiver.next_request().await;
    verify(&request, &old);
    verify(&request, &new);
    let rotate =
        EndpointSecretRotateIn { grace_period_seconds: Some(0), ..EndpointSecretRotateIn::new() };
    let newest = endpoints.rotate_secret(customer.app(), endpoint.clone(), rotate, None).await;
    let newest = newest.unwrap().key;
    assert_eq!(customer.secret(&endpoint).await, newest);
    customer.send("b").await;
    let request = customer.receiver.next_request().await;
    verify(&request, &newest);
    for secret in [&old, &new] {
        // The oldest has its own day of grace; the one that was rotated away at once has none.
        let holds = verifies(&request, secret);
        assert_eq!(holds, [secret == &old; 3], "all three libraries agree");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_of_the_older_name_verify_too() {
    for (names, standard_too) in [("svix", false), ("both", true)] {
        let customer = Customer::start(setup().with("POSTHASTE_SIGNING__HEADERS", names)).await;
        let endpoint = customer.endpoint("/", |_| {}).await;
        let message = customer.send("a").await;
        let request = customer.receiver.next_request().await;
        assert_eq!(request.header("svix-id"), Some(message));
        let secret = customer.secret(&endpoint).await;
        assert_eq!(verifies(&request, &secret), [true, standard_too, true], "{names}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_client_walks_pages_both_ways() {
    let customer = Customer::start(setup()).await;
    let (mut endpoints, mut messages) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        messages.push(customer.send("a").await);
        endpoints.push(customer.endpoint("/", |_| {}).await);
    }
    endpoints.reverse();
    messages.reverse();
    let (mut iterator, mut walked) = (None, Vec::new());
    let before_last = loop {
        let options = MessageListOptions { limit: Some(2), iterator, ..Default::default() };
        let page = customer.svix.message().list(customer.app(), Some(options)).await.unwrap();
        walked.extend(page.data.into_iter().map(|it| it.id));
        if page.done {
            break page.prev_iterator;
        }
        iterator = page.iterator;
    };
    assert_eq!(walked, messages);
    let back = MessageListOptions { limit: Some(2), iterator: before_last, ..Default::default() };
    let page = customer.svix.message().list(customer.app(), Some(back)).await.unwrap();
    let ids: Vec<_> = page.data.into_iter().map(|it| it.id).collect();
    assert_eq!((ids.as_slice(), page.done), (&messages[2..4], false));

    let options = EndpointListOptions { limit: Some(3), ..Default::default() };
    let page = customer.svix.endpoint().list(customer.app(), Some(options)).await.unwrap();
    assert!(!page.done);
    let options = EndpointListOptions { iterator: page.iterator, ..Default::default() };
    let rest = customer.svix.endpoint().list(customer.app(), Some(options)).await.unwrap();
    assert!(rest.done);
    let ids: Vec<_> = page.data.into_iter().chain(rest.data).map(|it| it.id).collect();
    assert_eq!(ids, endpoints);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_client_understands_refusals() {
    let customer = Customer::start(setup()).await;
    let svix = &customer.svix;
    let nobody = svix.with_token("nonsense".into());
    let refused = nobody.application().list(None).await.unwrap_err();
    assert_eq!(http(refused), (401, "authentication_failed".into()));
    let refused = svix.application().get("nobody".into()).await.unwrap_err();
    assert_eq!(http(refused), (404, "not_found".into()));
    let named = ApplicationIn { uid: Some("taken".into()), ..ApplicationIn::new("a".into()) };
    svix.application().create(named.clone(), None).await.unwrap();
    let refused = svix.application().create(named, None).await.unwrap_err();
    assert_eq!(http(refused), (409, "conflict".into()));
    let bad = EndpointIn::new("ftp://a.example/".into());
    match svix.endpoint().create(customer.app(), bad, None).await.unwrap_err() {
        svix::Error::Validation(refused) => {
            let problems = refused.payload.unwrap().detail;
            assert_eq!(problems[0].loc, ["body", "url"]);
            assert!(!problems[0].msg.is_empty());
        }
        other => panic!("{other:?}"),
    }
    let refused = svix.streaming().stream().list(None).await.unwrap_err();
    assert_eq!(http(refused), (404, "not_implemented".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_token_opens_its_application_only() {
    let customer = Customer::start(setup()).await;
    let endpoint = customer.endpoint("/", |_| {}).await;
    let access = customer
        .svix
        .authentication()
        .app_portal_access(customer.app(), AppPortalAccessIn::new(), None)
        .await
        .unwrap();
    let theirs = customer.svix.with_token(access.token);
    let listed = theirs.endpoint().list(customer.app(), None).await.unwrap();
    assert_eq!(listed.data.iter().map(|it| &it.id).collect::<Vec<_>>(), [&endpoint]);
    let patch = EndpointPatch { description: Some("theirs".into()), ..EndpointPatch::new() };
    let patched = theirs.endpoint().patch(customer.app(), endpoint, patch).await.unwrap();
    assert_eq!(patched.description, "theirs");
    let message = MessageIn::new("a".into(), json!({}));
    let refused = theirs.message().create(customer.app(), message, None).await.unwrap_err();
    assert_eq!(http(refused), (403, "insufficient_access".into()));
    let other = ApplicationIn::new("other".into());
    let other = customer.svix.application().create(other, None).await.unwrap().id;
    let refused = theirs.endpoint().list(other, None).await.unwrap_err();
    assert_eq!(http(refused), (404, "not_found".into()));
}

/// A running server, a client with an application on it, and a receiver that answers 200.
struct Customer {
    svix: Svix,
    application: String,
    receiver: Receiver,
    _posthaste: Posthaste,
}

impl Customer {
    async fn start(setup: Setup) -> Self {
        let posthaste = setup.start();
        let options = SvixOptions {
            server_url: Some(posthaste.url()),
            // The client's own repetitions would hide a 5xx of ours.
            num_retries: Some(0),
            ..SvixOptions::default()
        };
        let svix = Svix::new(common::token(), Some(options));
        let shop = ApplicationIn::new("shop".into());
        let application = svix.application().create(shop, None).await.unwrap().id;
        let receiver = Receiver::always(Reply::with_body(200, "seen")).await;
        Self { svix, application, receiver, _posthaste: posthaste }
    }

    fn app(&self) -> String {
        self.application.clone()
    }

    async fn endpoint(&self, path: &str, change: impl FnOnce(&mut EndpointIn)) -> String {
        let mut wanted = EndpointIn::new(self.receiver.url(path));
        change(&mut wanted);
        self.svix.endpoint().create(self.app(), wanted, None).await.unwrap().id
    }

    async fn secret(&self, endpoint: &str) -> String {
        self.svix.endpoint().get_secret(self.app(), endpoint.to_owned()).await.unwrap().key
    }

    async fn send(&self, event_type: &str) -> String {
        let message = MessageIn::new(event_type.to_owned(), json!({ "ü": 1 }));
        self.svix.message().create(self.app(), message, None).await.unwrap().id
    }

    /// The message's attempts, newest first, once there are `count` in the history.
    async fn attempts(&self, message: &str, count: usize) -> Vec<MessageAttemptOut> {
        let started = Instant::now();
        loop {
            let svix = self.svix.message_attempt();
            let listed = svix.list_by_msg(self.app(), message.to_owned(), None).await.unwrap().data;
            if listed.len() >= count {
                return listed;
            }
            assert!(started.elapsed() < PATIENCE, "{count} attempts expected: {listed:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the message stands so at its only endpoint.
    async fn until_standing(&self, message: &str, wanted: MessageStatus) {
        let started = Instant::now();
        loop {
            let svix = self.svix.message_attempt();
            let page = svix.list_attempted_destinations(self.app(), message.to_owned(), None).await;
            let standing = page.unwrap().data[0].status;
            if standing == wanted {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{message} is {standing:?}, not {wanted:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Whole messages fail on purpose here; a breaker that opens would only make the tests wait.
fn setup() -> Setup {
    Setup::new().with("POSTHASTE_BREAKER__FAILURE_THRESHOLD", "1000")
}

fn id(request: &ReceivedRequest) -> String {
    request.header("webhook-id").unwrap()
}

#[track_caller]
fn verify(request: &ReceivedRequest, secret: &str) {
    assert_eq!(verifies(request, secret), [true; 3], "{}", request.head_text());
}

/// What each library says: `svix`, `standardwebhooks` and our own for receivers.
fn verifies(request: &ReceivedRequest, secret: &str) -> [bool; 3] {
    let mut headers = HeaderMap::new();
    for (name, value) in request.headers() {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(&value).unwrap());
    }
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let ours = posthaste_receiver::Webhook::new(secret).unwrap();
    [
        svix::Webhook::new(secret).unwrap().verify(&request.body, &headers).is_ok(),
        standardwebhooks::Webhook::new(secret).unwrap().verify(&request.body, &headers).is_ok(),
        ours.verify(header, &request.body, SystemTime::now()).is_ok(),
    ]
}

/// Status and code of an answer that is no 2xx; its body must be as the client expects it.
#[track_caller]
fn http(error: svix::Error) -> (u16, String) {
    match error {
        svix::Error::Http(refused) => {
            let body = refused.payload.unwrap();
            assert!(!body.detail.is_empty());
            (refused.status.as_u16(), body.code)
        }
        other => panic!("not an HTTP error with a body: {other:?}"),
    }
}
