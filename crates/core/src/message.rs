//! An accepted event. Immutable: what was published is what every attempt signs and sends.

use crate::event::{Channel, EventId, EventTypeName};
use crate::id::{ApplicationId, MessageId};
use crate::time::Timestamp;
use bytes::Bytes;

/// **Invariant:** `payload` holds the publisher's own bytes; nothing ever re-serialises them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub id: MessageId,
    pub application_id: ApplicationId,
    pub event_id: Option<EventId>,
    pub event_type: EventTypeName,
    /// Empty means none: such a message never reaches an endpoint that asks for channels.
    pub channels: Vec<Channel>,
    /// `None` once the payload was expunged or its retention ended.
    pub payload: Option<Bytes>,
    pub created_at: Timestamp,
    /// When the payload may be deleted.
    pub expires_at: Timestamp,
}
