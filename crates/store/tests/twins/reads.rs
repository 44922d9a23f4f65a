//! Looks at everything that the traits show.

use crate::operation::Read;
use crate::pair::{Checked, Pair, both, organisation};
use posthaste_core::delivery::{DeliveryKey, DeliveryState};
use posthaste_core::event::{Channel, EventTypeName};
use posthaste_core::id::{ApplicationId, EndpointId, MessageId};
use posthaste_store::catalog::{Cursor, EventTypeFilter, Order, Page};
use posthaste_store::history::{AttemptFilter, DeadLetterFilter, MessageFilter};
use posthaste_store::{Catalog, History, Upkeep};
use std::time::Duration;

impl Pair {
    /// One list, one page, one filter.
    pub async fn read(&mut self, read: &Read) -> Checked {
        let Some(application) = self.application(read.application) else { return Ok(()) };
        let endpoint = self.endpoint(read.endpoint);
        let message = self.message(read.message);
        let odd = read.filter % 2 == 1;
        let order = if odd { Order::Ascending } else { Order::Descending };
        match (read.list % 9, endpoint, message) {
            (0, ..) => {
                let from = cursor(read, Some(application));
                let page = Page { limit: read.limit, order, from };
                both!(self, applications(&organisation(), page)).map(drop)
            }
            (1, endpoint, _) => {
                let from = cursor(read, endpoint.map(|(_, id)| id));
                let page = Page { limit: read.limit, order, from };
                both!(self, endpoints(application, page)).map(drop)
            }
            (2, ..) => {
                let name = EventTypeName::new("order.n1").unwrap();
                let page = Page { limit: read.limit, order, from: cursor(read, Some(name)) };
                let filter = EventTypeFilter {
                    include_archived: odd,
                    feature_flags: (read.filter.is_multiple_of(3)).then(|| vec!["f1".to_owned()]),
                };
                both!(self, event_types(&organisation(), filter, page)).map(drop)
            }
            (3, _, message) => {
                let page = self.page(read, message.map(|(_, id)| id));
                both!(self, messages(application, self.message_filter(read.filter), page)).map(drop)
            }
            (4, _, Some((of, message))) => {
                let page = Page { limit: read.limit, order: Order::Descending, from: None };
                let filter = self.attempt_filter(read.filter);
                both!(self, attempts_of_message(of, message, filter, page)).map(drop)
            }
            (5, Some((_, endpoint)), _) => {
                let page = Page { limit: read.limit, order: Order::Descending, from: None };
                let filter = self.attempt_filter(read.filter);
                both!(self, attempts_of_endpoint(endpoint, filter, page)).map(drop)
            }
            (6, Some((_, endpoint)), message) => {
                let page = self.page(read, message.map(|(_, id)| id));
                let states = odd.then(|| vec![DeliveryState::ALL[usize::from(read.filter) % 7]]);
                let filter = self.message_filter(read.filter / 2);
                both!(self, messages_of_endpoint(endpoint, filter, states, page)).map(drop)
            }
            (7, endpoint, message) => {
                let page = self.page(read, message.map(|(_, id)| id));
                let filter = DeadLetterFilter {
                    application_ids: odd.then(|| vec![application]),
                    endpoint_id: endpoint
                        .filter(|_| read.filter.is_multiple_of(3))
                        .map(|(_, id)| id),
                    before: (read.filter.is_multiple_of(5))
                        .then(|| self.now.before(Duration::from_secs(5))),
                    after: (read.filter.is_multiple_of(7))
                        .then(|| self.now.before(Duration::from_secs(60))),
                };
                both!(self, dead_letters(filter, page)).map(drop)
            }
            (_, endpoint, Some((of, message))) => {
                let from = cursor(read, endpoint.map(|(_, id)| id));
                let page = Page { limit: read.limit, order: Order::Ascending, from };
                both!(self, deliveries_of_message(of, message, page)).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Everything, once more.
    pub async fn read_all(&mut self) -> Checked {
        for application in self.applications.clone() {
            both!(self, application(&organisation(), application.to_string().as_str()))?;
            both!(self, routes(application))?;
            both!(self, notices(Some(application), 3))?;
            both!(self, messages(application, MessageFilter::default(), whole::<MessageId>()))?;
            both!(self, endpoints(application, whole::<EndpointId>()))?;
        }
        both!(self, applications(&organisation(), whole::<ApplicationId>()))?;
        for (_, endpoint) in self.endpoints.clone() {
            both!(self, health(endpoint, self.now))?;
            both!(self, attempts_of_endpoint(endpoint, AttemptFilter::default(), whole()))?;
            let all = MessageFilter::default();
            both!(self, messages_of_endpoint(endpoint, all, None, whole::<MessageId>()))?;
        }
        for (application, message) in self.messages.clone() {
            both!(self, message(application, message.to_string().as_str()))?;
            both!(self, deliveries_of_message(application, message, whole::<EndpointId>()))?;
            let all = AttemptFilter::default();
            let attempts = both!(self, attempts_of_message(application, message, all, whole()))?;
            for attempt in attempts.into_iter().flat_map(|slice| slice.items).take(2) {
                both!(self, attempt(application, message, attempt.id))?;
            }
            for (_, endpoint_id) in self.endpoints.clone() {
                both!(self, delivery(DeliveryKey { endpoint_id, message_id: message }))?;
            }
        }
        for task in self.tasks.clone() {
            both!(self, task(task.id))?;
        }
        both!(self, dead_letters(DeadLetterFilter::default(), whole::<MessageId>()))?;
        Ok(())
    }

    fn page(&self, read: &Read, key: Option<MessageId>) -> Page<MessageId> {
        Page { limit: read.limit, order: Order::Descending, from: cursor(read, key) }
    }

    fn message_filter(&self, number: u8) -> MessageFilter {
        let named =
            EventTypeName::new(if number.is_multiple_of(5) { "order.sent" } else { "order.paid" });
        MessageFilter {
            channel: (number % 2 == 1).then(|| Channel::new("eu").unwrap()),
            event_types: (number.is_multiple_of(3)).then(|| named.unwrap()).into_iter().collect(),
            before: (number.is_multiple_of(7)).then(|| self.now.before(Duration::from_secs(1))),
            after: (number.is_multiple_of(4)).then(|| self.now.before(Duration::from_secs(60))),
        }
    }

    fn attempt_filter(&self, number: u8) -> AttemptFilter {
        AttemptFilter {
            message: self.message_filter(number / 4),
            delivered: (number.is_multiple_of(3)).then_some(number.is_multiple_of(2)),
            status_class: (number % 4 == 1).then_some(u16::from(number % 5 + 1) * 100),
            endpoint_id: None,
        }
    }
}

/// The first page, the one after the key or the one before it.
fn cursor<Key>(read: &Read, key: Option<Key>) -> Option<Cursor<Key>> {
    match read.filter % 4 {
        0 | 1 => None,
        2 => key.map(Cursor::After),
        _ => key.map(Cursor::Before),
    }
}

fn whole<Key>() -> Page<Key> {
    Page { limit: 100, order: Order::Descending, from: None }
}
