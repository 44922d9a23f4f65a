//! The places of a listener's connections, and who gives his up when all are taken.
//!
//! A connection costs its client next to nothing, also one on which half a request's head was sent
//! and nothing more will come. So a place is for who uses it: when a client waits for one, the
//! connection goes that has been without a request for longest.
//!
//! Time is counted in rounds, which whoever waits lets pass: nothing here looks at a clock.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// A request is being answered.
const BUSY: u64 = u64::MAX;
/// The connection ended.
const GONE: u64 = u64::MAX - 1;
/// A connection keeps its place for at least one whole round after it was opened or answered.
const ROUNDS_KEPT: u64 = 2;

/// The places that were given out, in that order. Owned by who accepts; no lock.
#[derive(Debug, Default)]
pub(crate) struct Places {
    round: Arc<AtomicU64>,
    taken: Vec<Arc<Place>>,
}

/// The place of one connection.
#[derive(Debug)]
pub(crate) struct Place {
    round: Arc<AtomicU64>,
    /// The round in which it was opened, or its last request was answered.
    idle_since: AtomicU64,
    wanted: Notify,
}

impl Places {
    /// A place for a new connection.
    pub fn take(&mut self) -> Arc<Place> {
        if self.taken.len() == self.taken.capacity() {
            self.forget_gone();
        }
        let round = self.round.clone();
        let place = Place { round, idle_since: AtomicU64::new(BUSY), wanted: Notify::new() };
        let place = Arc::new(place);
        place.idle();
        self.taken.push(place.clone());
        place
    }

    /// Asks the connection that has been idle for longest to end; `false`: none has been for long
    /// enough.
    pub fn free_one(&mut self) -> bool {
        self.forget_gone();
        let idle_since = |index: usize| self.taken[index].idle_since.load(Ordering::Relaxed);
        let longest = (0..self.taken.len()).min_by_key(|index| idle_since(*index));
        let round = self.round.load(Ordering::Relaxed);
        let longest = longest.filter(|it| idle_since(*it).saturating_add(ROUNDS_KEPT) <= round);
        let Some(longest) = longest else { return false };
        // It stays in the list: should a request of its come meanwhile, it keeps its place, and may
        // be asked another time.
        self.taken[longest].wanted.notify_one();
        true
    }

    /// A round has passed.
    pub fn next_round(&self) {
        self.round.fetch_add(1, Ordering::Relaxed);
    }

    fn forget_gone(&mut self) {
        self.taken.retain(|place| place.idle_since.load(Ordering::Relaxed) != GONE);
    }
}

impl Place {
    /// A request is answered by `answer`.
    pub async fn serve<T>(&self, answer: impl Future<Output = T>) -> T {
        self.idle_since.store(BUSY, Ordering::Relaxed);
        let answered = answer.await;
        self.idle();
        answered
    }

    /// Returns when somebody else gets the place. One whose request has come meanwhile stays.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
        while self.idle_since.load(Ordering::Relaxed) == BUSY {
            self.wanted.notified().await;
        }
    }

    /// The connection ended.
    pub fn leave(&self) {
        self.idle_since.store(GONE, Ordering::Relaxed);
    }

    fn idle(&self) {
        self.idle_since.store(self.round.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn poll<T>(future: impl Future<Output = T>) -> Poll<T> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn the_longest_idle_goes_first_and_the_busy_never() {
        let mut places = Places::default();
        assert!(!places.free_one(), "nobody is there");
        let [busy, gone, answered, old, new] = [(); 5].map(|()| places.take());
        let never = busy.serve(std::future::pending::<()>());
        let mut never = pin!(never);
        assert!(never.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        gone.leave();
        places.next_round();
        assert!(!places.free_one(), "all have just come");
        assert!(poll(answered.serve(async {})).is_ready());
        assert!(poll(new.serve(async {})).is_ready());
        places.next_round();
        assert!(places.free_one());
        assert!(poll(old.wanted()).is_ready() && poll(answered.wanted()).is_pending());
        old.leave();
        assert!(!places.free_one(), "the others were just answered");
        places.next_round();
        assert!(places.free_one());
        let mut late = pin!(answered.serve(std::future::pending::<()>()));
        assert!(late.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(poll(answered.wanted()).is_pending(), "its request came meanwhile");
        answered.idle();
        assert!(places.free_one());
        assert!(poll(new.wanted()).is_ready());
        new.leave();
        places.next_round();
        assert!(!places.free_one(), "it has only just become idle again");
        places.next_round();
        assert!(places.free_one());
        assert!(poll(answered.wanted()).is_ready(), "and may be asked again");
        answered.leave();
        places.next_round();
        assert!(!places.free_one(), "the only one left is busy");
    }
}
