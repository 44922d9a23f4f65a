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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::{DisabledReason, EndpointHeaders, EndpointPolicy, EndpointUrl, Metadata};
    use crate::event::{Channel, EventTypeName, OrganisationId};
    use crate::id::{ApplicationId, EndpointId, MessageId};
    use crate::sign::{Secret, SecretRing};
    use crate::time::Timestamp;

    const APPLICATION: ApplicationId = ApplicationId::from_bytes([1; 16]);
    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn channels(names: &[&str]) -> Vec<Channel> {
        names.iter().map(|name| Channel::new(name).unwrap()).collect()
    }

    fn endpoint(types: Option<&[&str]>, asked: Option<&[&str]>) -> Endpoint {
        Endpoint {
            id: EndpointId::from_bytes([2; 16]),
            application_id: APPLICATION,
            uid: None,
            url: EndpointUrl::parse("https://example.com/").unwrap(),
            description: String::new(),
            disabled: None,
            event_types: types
                .map(|names| names.iter().map(|name| EventTypeName::new(name).unwrap()).collect()),
            channels: asked.map(channels),
            throttle_rate: None,
            version: 1,
            metadata: Metadata::new(),
            headers: EndpointHeaders::default(),
            secrets: SecretRing::new(Secret::generate_hmac([3; 32])),
            policy: EndpointPolicy::default(),
            created_at: NOW,
            updated_at: NOW,
        }
    }

    fn message(event_type: &str, own: &[&str]) -> Message {
        Message {
            id: MessageId::from_bytes([4; 16]),
            application_id: APPLICATION,
            event_id: None,
            event_type: EventTypeName::new(event_type).unwrap(),
            channels: channels(own),
            payload: None,
            created_at: NOW,
            expires_at: NOW,
        }
    }

    #[test]
    fn both_filters_must_let_a_message_through() {
        let no_filter = endpoint(None, None);
        assert_eq!(check(&no_filter, &message("a.b", &[])), Ok(()));
        assert_eq!(check(&no_filter, &message("a.b", &["x"])), Ok(()));

        let by_type = endpoint(Some(&["a.b", "a.c"]), None);
        assert_eq!(check(&by_type, &message("a.c", &["x"])), Ok(()));
        assert_eq!(check(&by_type, &message("a", &[])), Err(Mismatch::EventType));
        assert_eq!(check(&endpoint(Some(&[]), None), &message("a", &[])), Err(Mismatch::EventType));

        let by_channel = endpoint(Some(&["a.b"]), Some(&["x", "y"]));
        assert_eq!(check(&by_channel, &message("a.b", &["z", "y"])), Ok(()));
        assert_eq!(check(&by_channel, &message("a.b", &["z"])), Err(Mismatch::Channel));
        assert_eq!(check(&by_channel, &message("a.b", &[])), Err(Mismatch::Channel));
        assert_eq!(check(&by_channel, &message("a.c", &["x"])), Err(Mismatch::EventType));
    }

    #[test]
    fn disabled_endpoints_are_routed_to() {
        let disabled = Some(DisabledReason::Manual);
        let held = Endpoint { disabled, ..endpoint(None, None) };
        let endpoints = vec![Arc::new(held), Arc::new(endpoint(Some(&["other"]), None))];
        let application = Application {
            id: APPLICATION,
            organisation_id: OrganisationId::new("org_x").unwrap(),
            uid: None,
            name: String::new(),
            throttle_rate: None,
            metadata: Metadata::new(),
            created_at: NOW,
            updated_at: NOW,
        };
        let routes = Routes { application, version: 1, endpoints };
        let message = message("a", &[]);
        let matching: Vec<_> = routes.matching(&message).map(|to| to.disabled).collect();
        assert_eq!(matching, [disabled]);
    }
}
