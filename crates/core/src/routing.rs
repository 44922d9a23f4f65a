//! Which endpoints of an application get a message, and why the others do not.

use crate::endpoint::{Application, Endpoint};
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

impl Routes {
    /// The endpoints that get `message`; disabled ones too: their deliveries are held.
    pub fn matching<'a>(
        &'a self,
        _message: &'a crate::message::Message,
    ) -> impl Iterator<Item = &'a Arc<Endpoint>> + 'a {
        self.endpoints.iter()
    }
}
