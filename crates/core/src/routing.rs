//! Which endpoints of an application get a message, and why the others do not.

use crate::endpoint::{Application, Endpoint};
use crate::message::Message;
use std::sync::Arc;

/// An application's routes as they were at `version`.
///
/// **Invariant:** `version` grows with every change to the application or one of its endpoints;
/// accepting a message checks it in the same transaction, so a stale snapshot never routes.
#[derive(Clone, Debug)]
pub struct Routes {
    pub application: Application,
    pub version: i64,
    pub endpoints: Vec<Arc<Endpoint>>,
}

/// Why an endpoint does not get a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// It asks for other event types.
    EventType,
    /// It asks for channels, and the message has none of them.
    Channel,
}

impl Routes {
    /// The endpoints that get `message`; disabled ones too: their deliveries are held.
    pub fn matching<'a>(
        &'a self,
        message: &'a Message,
    ) -> impl Iterator<Item = &'a Arc<Endpoint>> + 'a {
        self.endpoints.iter().filter(|endpoint| check(endpoint, message).is_ok())
    }
}

/// Whether `endpoint` asks for messages such as `message`. Both filters must let it through; one
/// that is `None` lets everything through.
pub fn check(endpoint: &Endpoint, message: &Message) -> Result<(), Mismatch> {
    if endpoint.event_types.as_ref().is_some_and(|types| !types.contains(&message.event_type)) {
        return Err(Mismatch::EventType);
    }
    let asked = |channels: &Vec<_>| message.channels.iter().any(|own| channels.contains(own));
    if endpoint.channels.as_ref().is_some_and(|channels| !asked(channels)) {
        return Err(Mismatch::Channel);
    }
    Ok(())
}
