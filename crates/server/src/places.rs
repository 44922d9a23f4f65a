//! The places of a listener's connections, and who gives his up when all are taken.
//!
//! A connection costs its client next to nothing, also one on which half a request's head was sent
//! and nothing more will come. So a place is for who uses it: when a client waits for one, the
//! connection goes that has been without a request for longest.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// A request is being answered.
const BUSY: u64 = u64::MAX;
/// The connection ended.
const GONE: u64 = u64::MAX - 1;

/// The places that were given out. Owned by who accepts; no lock.
#[derive(Debug)]
pub(crate) struct Places {
    since: Instant,
    taken: Vec<Arc<Place>>,
    /// A connection keeps its place for at least so long after it was opened or answered.
    kept_for: Duration,
}

/// The place of one connection.
#[derive(Debug)]
pub(crate) struct Place {
    since: Instant,
    /// In microseconds after `since`: when it was opened, or its last request was answered.
    idle_since: AtomicU64,
    wanted: Notify,
}

impl Places {
    pub fn new(kept_for: Duration) -> Self {
        Self { since: now(), taken: Vec::new(), kept_for }
    }

    /// A place for a new connection.
    pub fn take(&mut self) -> Arc<Place> {
        if self.taken.len() == self.taken.capacity() {
            self.taken.retain(|place| place.idle_since.load(Ordering::Relaxed) != GONE);
        }
        let place =
            Place { since: self.since, idle_since: AtomicU64::new(0), wanted: Notify::new() };
        let place = Arc::new(place);
        place.idle();
        self.taken.push(place.clone());
        place
    }

    /// Asks the connection that has been idle for longest to end; `false`: none is idle for long
    /// enough.
    pub fn free_one(&mut self) -> bool {
        self.taken.retain(|place| place.idle_since.load(Ordering::Relaxed) != GONE);
        let idle_since = |place: &Arc<Place>| place.idle_since.load(Ordering::Relaxed);
        let longest = (0..self.taken.len()).min_by_key(|index| idle_since(&self.taken[*index]));
        let Some(longest) = longest else { return false };
        let now = now().duration_since(self.since);
        let kept_until = Duration::from_micros(idle_since(&self.taken[longest])) + self.kept_for;
        if kept_until > now {
            return false;
        }
        self.taken.swap_remove(longest).wanted.notify_one();
        true
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
        let micros =
            u64::try_from(now().duration_since(self.since).as_micros()).unwrap_or(GONE - 1);
        self.idle_since.store(micros, Ordering::Relaxed);
    }
}

#[expect(clippy::disallowed_methods, reason = "how long sockets are idle, as timers measure it")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn the_longest_idle_goes_first_and_the_busy_never() {
        let mut places = Places::new(Duration::from_secs(2));
        places.since = now().checked_sub(Duration::from_secs(10)).unwrap();
        assert!(!places.free_one(), "nobody is there");
        let [busy, gone, old, older, new] = [(); 5].map(|()| places.take());
        busy.idle_since.store(BUSY, Ordering::Relaxed);
        gone.leave();
        assert!(!places.free_one(), "all have just come");
        old.idle_since.store(2_000_000, Ordering::Relaxed);
        older.idle_since.store(1_000_000, Ordering::Relaxed);
        let is_wanted = |place: &Place| {
            let mut context = Context::from_waker(Waker::noop());
            pin!(place.wanted()).poll(&mut context).is_ready()
        };
        assert!(places.free_one());
        assert!(is_wanted(&older) && !is_wanted(&old));
        assert!(places.free_one());
        assert!(is_wanted(&old));
        assert!(!places.free_one(), "what is left is new or busy");
        assert!(!is_wanted(&new) && !is_wanted(&busy));
    }
}
