//! Lists: which page is asked for, and how a page is answered.
//!
//! `iterator` is the key of the last item of the page before, or `-` and the key of the first item
//! of the page behind it; that walks back. A page is always in the list's own order. Keys are text
//! that a client gives back as it got it; a name that begins with `-` gets a `~` in front, so that
//! it cannot be taken for a walk back.

use crate::error::{Refusal, Result};
use crate::query::Query;
use posthaste_core::limits::{PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX};
use posthaste_store::catalog::{Cursor, Order, Page, Slice};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Display;

/// One page of a list.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ListResponse_{T}_")]
pub(crate) struct ListOut<T> {
    pub data: Vec<T>,
    /// Gives the next page; `null` on an empty one.
    pub iterator: Option<String>,
    /// Gives the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prev_iterator: Option<String>,
    /// Nothing lies further in the direction that was walked.
    pub done: bool,
}

/// Reads `limit` and `iterator`.
pub(crate) fn page<Key, E: Display>(
    query: &Query,
    order: Order,
    parse: impl Fn(&str) -> Result<Key, E>,
) -> Result<Page<Key>> {
    let limit = query.number("limit")?.unwrap_or(PAGE_ITEMS_DEFAULT);
    // A page of nothing has no iterator: whoever asks on until `done` would never get there.
    if !(1..=PAGE_ITEMS_MAX).contains(&limit) {
        return Err(Refusal::query("limit", format!("must be 1 to {PAGE_ITEMS_MAX}")));
    }
    let from = query.parse("iterator", |text| match text.strip_prefix('-') {
        Some(key) => parse(key).map(Cursor::Before),
        None => parse(text.strip_prefix('~').unwrap_or(text)).map(Cursor::After),
    })?;
    Ok(Page { limit, order, from })
}

/// Reads `order`.
pub(crate) fn order(query: &Query, default: Order) -> Result<Order> {
    match query.text("order").as_deref() {
        None => Ok(default),
        Some("ascending") => Ok(Order::Ascending),
        Some("descending") => Ok(Order::Descending),
        Some(_) => Err(Refusal::bad_query("order", "`ascending` or `descending`")),
    }
}

impl<T> ListOut<T> {
    /// The page when it is known beforehand that nothing is there.
    pub fn finished() -> Self {
        Self { data: Vec::new(), iterator: None, prev_iterator: None, done: true }
    }

    pub fn new<Item, Key: Display>(
        slice: Slice<Item>,
        key: impl Fn(&Item) -> Key,
        show: impl FnMut(Item) -> T,
    ) -> Self {
        let page = Self::around(&slice, key);
        Self { data: slice.items.into_iter().map(show).collect(), ..page }
    }

    /// As `new`, where what is shown borrows from the items.
    pub fn borrowing<'a, Item, Key: Display>(
        slice: &'a Slice<Item>,
        key: impl Fn(&Item) -> Key,
        show: impl FnMut(&'a Item) -> T,
    ) -> Self {
        let page = Self::around(slice, key);
        Self { data: slice.items.iter().map(show).collect(), ..page }
    }

    fn around<Item, Key: Display>(slice: &Slice<Item>, key: impl Fn(&Item) -> Key) -> Self {
        let iterator = slice.items.last().map(|item| forward(&key(item)));
        let prev_iterator = slice.items.first().map(|item| format!("-{}", key(item)));
        Self { data: Vec::new(), iterator, prev_iterator, done: !slice.more }
    }
}

fn forward(key: &impl Display) -> String {
    let text = key.to_string();
    if text.starts_with('-') { format!("~{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_core::event::EventTypeName;
    use posthaste_core::id::MessageId;

    fn read(query: &str) -> Result<Page<EventTypeName>> {
        page(&Query::new(Some(query)), Order::Ascending, EventTypeName::new)
    }

    #[test]
    fn limits() {
        assert_eq!(read("").unwrap().limit, 50);
        assert_eq!(read("limit=1").unwrap().limit, 1);
        assert!(read("limit=0").is_err());
        assert_eq!(read("limit=250").unwrap().limit, 250);
        assert!(read("limit=251").is_err());
        assert!(read("limit=-1").is_err());
        assert!(read("limit=x").is_err());
    }

    #[test]
    fn what_an_answer_gives_is_what_a_request_takes() {
        let name = |text: &str| EventTypeName::new(text).unwrap();
        for text in ["a.b", "-minus", "--", "~"] {
            let Ok(key) = EventTypeName::new(text) else { continue };
            let slice = Slice { items: vec![key.clone()], more: true };
            let out = ListOut::new(slice, Clone::clone, |_| ());
            let next = read(&format!("iterator={}", out.iterator.unwrap())).unwrap();
            assert_eq!(next.from, Some(Cursor::After(key.clone())));
            let before = read(&format!("iterator={}", out.prev_iterator.unwrap())).unwrap();
            assert_eq!(before.from, Some(Cursor::Before(name(text))));
        }
    }

    #[test]
    fn a_malformed_iterator_is_refused() {
        for text in ["msg_x", "-msg_x", "app_0000000000000000000000", "-", "msg_é"] {
            let query = Query::new(Some(&format!("iterator={text}")));
            let read = page(&query, Order::Descending, str::parse::<MessageId>);
            assert!(read.is_err(), "{text}");
        }
    }
}
