//! What the courier's tests share.

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method};
use posthaste_core::endpoint::EndpointUrl;
use posthaste_core::outcome::{Answer, Failure, Outcome, OutcomeClass};
use posthaste_engine::courier::{Courier, CourierSettings, Errand, Target};
use posthaste_engine::guard::{Allowed, Guard};
use posthaste_engine::resolver::{Resolve, ResolveError};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Far longer than anything here takes, unless the test is about the timeout itself.
pub const PATIENT: Duration = Duration::from_secs(20);

/// Answers in order, the last one from then on, whatever the name.
pub struct ScriptedResolver {
    answers: Mutex<VecDeque<Result<Vec<IpAddr>, ResolveError>>>,
    asked: Mutex<Vec<String>>,
}

impl ScriptedResolver {
    pub fn new(answers: Vec<Result<Vec<IpAddr>, ResolveError>>) -> Arc<Self> {
        Arc::new(Self { answers: Mutex::new(answers.into()), asked: Mutex::default() })
    }

    pub fn to(addresses: &[&str]) -> Arc<Self> {
        Self::new(vec![Ok(ips(addresses))])
    }

    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl Resolve for ScriptedResolver {
    async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
        self.asked.lock().unwrap().push(host.to_owned());
        let mut answers = self.answers.lock().unwrap();
        if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() }
            .unwrap_or(Err(ResolveError::NoSuchName))
    }
}

pub fn ips(addresses: &[&str]) -> Vec<IpAddr> {
    addresses.iter().map(|address| address.parse().unwrap()).collect()
}

/// A courier that may send to loopback and knows no name.
pub fn courier() -> Courier {
    courier_with(CourierSettings::default(), "127.0.0.0/8", ScriptedResolver::new(Vec::new()))
}

pub fn courier_with(
    settings: CourierSettings,
    allowed: &str,
    resolver: Arc<dyn Resolve>,
) -> Courier {
    let guard = Guard::new(Allowed::parse(allowed).unwrap(), resolver);
    Courier::new(settings, Arc::new(guard)).unwrap()
}

pub fn target(url: &str) -> Target {
    Target::from(&EndpointUrl::parse(url).unwrap())
}

pub fn errand<'a>(target: &'a Target, body: &str) -> Errand<'a> {
    Errand {
        target,
        method: Method::POST,
        headers: HeaderMap::new(),
        body: Bytes::from(body.to_owned()),
        timeout: PATIENT,
    }
}

/// Posts `body` to `url` with nothing special.
pub async fn post(courier: &Courier, url: &str, body: &str) -> Outcome {
    courier.send(&errand(&target(url), body)).await
}

#[track_caller]
pub fn assert_success(outcome: &Outcome) {
    assert_eq!(outcome.class(), OutcomeClass::Success, "{outcome:?}");
}

#[track_caller]
pub fn failure(outcome: &Outcome) -> &Failure {
    match &outcome.answer {
        Answer::Failure(failure) => failure,
        Answer::Response(response) => panic!("a failure expected, got {response:?}"),
    }
}
