//! Pages: from "after this one" and "before this one" to a range that is walked one way.

use crate::catalog::{Cursor, Order, Page, Slice};
use posthaste_core::limits::PAGE_ITEMS_MAX;

/// A range of keys, exclusive at both ends, and how it is walked.
#[derive(Clone, Debug)]
pub(crate) struct Walk<Key> {
    pub after: Option<Key>,
    pub before: Option<Key>,
    pub descending: bool,
    /// The walk goes against the list's order, so the page is turned round at the end.
    turned: bool,
    /// Items of the page.
    limit: usize,
}

impl<Key> Walk<Key> {
    pub fn new(page: Page<Key>) -> Self {
        let forward = page.order == Order::Ascending;
        let limit = usize::try_from(page.limit.min(PAGE_ITEMS_MAX)).unwrap_or(0);
        let (from, turned) = match page.from {
            None => (None, false),
            Some(Cursor::After(key)) => (Some(key), false),
            Some(Cursor::Before(key)) => (Some(key), true),
        };
        let descending = forward == turned;
        let (after, before) = if descending { (None, from) } else { (from, None) };
        Self { after, before, descending, turned, limit }
    }

    /// A list that has one order, newest first.
    pub fn newest_first(page: Page<Key>) -> Self {
        Self::new(Page { order: Order::Descending, ..page })
    }

    /// How many rows to read: one more than fits tells whether there is more.
    pub fn rows(&self) -> i64 {
        i64::try_from(self.limit + 1).unwrap_or(i64::MAX)
    }

    /// The page out of the rows that were read.
    pub fn slice<Item>(&self, mut items: Vec<Item>) -> Slice<Item> {
        let more = items.len() > self.limit;
        items.truncate(self.limit);
        self.turn(&mut items);
        Slice { items, more }
    }

    /// The page when several rows may have one key: none is parted from its like, so a page may
    /// be longer than its limit.
    pub fn slice_whole<Item, K: PartialEq>(
        &self,
        mut items: Vec<Item>,
        key: impl Fn(&Item) -> K,
    ) -> Slice<Item> {
        let cut = match items.get(self.limit.wrapping_sub(1)).map(&key) {
            Some(last) => items.iter().rposition(|item| key(item) == last).map_or(0, |at| at + 1),
            None => items.len().min(self.limit),
        };
        let more = items.len() > cut;
        items.truncate(cut);
        self.turn(&mut items);
        Slice { items, more }
    }

    fn turn<Item>(&self, items: &mut [Item]) {
        if self.turned {
            items.reverse();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers 1 to 9 as a back-end would read them.
    fn read(page: Page<u32>) -> (Vec<u32>, bool) {
        let walk = Walk::new(page);
        let mut all: Vec<u32> = (1..10)
            .filter(|key| walk.after.is_none_or(|after| *key > after))
            .filter(|key| walk.before.is_none_or(|before| *key < before))
            .collect();
        if walk.descending {
            all.reverse();
        }
        all.truncate(usize::try_from(walk.rows()).unwrap());
        let slice = walk.slice(all);
        (slice.items, slice.more)
    }

    #[test]
    fn every_direction_gives_the_lists_own_order() {
        use Cursor::{After, Before};
        use Order::{Ascending, Descending};
        let page = |order, from| read(Page { limit: 3, order, from });
        assert_eq!(page(Ascending, None), (vec![1, 2, 3], true));
        assert_eq!(page(Ascending, Some(After(7))), (vec![8, 9], false));
        assert_eq!(page(Ascending, Some(Before(7))), (vec![4, 5, 6], true));
        assert_eq!(page(Ascending, Some(Before(4))), (vec![1, 2, 3], false));
        assert_eq!(page(Descending, None), (vec![9, 8, 7], true));
        assert_eq!(page(Descending, Some(After(7))), (vec![6, 5, 4], true));
        assert_eq!(page(Descending, Some(Before(7))), (vec![9, 8], false));
    }
}
