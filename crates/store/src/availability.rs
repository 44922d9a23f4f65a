//! Whether the store can be used, as those who use it find: so that the log says once that it went
//! away, why, and when it is back, however many meet it.
//!
//! **Invariant:** while it is away, there is at most one line a minute, and one more when the
//! reason becomes clearer.

use crate::error::Reason;
use crate::monotonic::monotonic;
use crate::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// From one line about it to the next.
const TOLD_EVERY: Duration = Duration::from_secs(60);
/// Where some things work and others do not, it is over when nothing failed for so long. Longer
/// than the waits of those who try again and what they wait for a lock.
const QUIET_FOR: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
pub(crate) struct Availability {
    /// Spares those who succeed the lock.
    is_away: AtomicBool,
    away: Mutex<Option<Away>>,
}

#[derive(Debug)]
struct Away {
    reason: Reason,
    since: Instant,
    failed_at: Instant,
    told_at: Instant,
    failures: u64,
    held_back: u64,
}

/// A line of the log.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Away,
    StillAway { held_back: u64, away_for: Duration },
    Back { failures: u64, away_for: Duration },
}

impl Availability {
    /// Takes note of what came of some work.
    pub fn note<T>(&self, done: &Result<T>) {
        match done {
            Ok(_) if !self.is_away.load(Ordering::Relaxed) => {}
            Ok(_) => self.tell(None, self.worked(monotonic())),
            Err(error) => self.failed(error),
        }
    }

    /// Takes note of a failure, if it says that the store cannot be used.
    pub fn failed(&self, error: &Error) {
        if let Some(reason) = error.reason() {
            self.tell(Some(error), self.missed(reason, monotonic()));
        }
    }

    /// Why the store could not be used a moment ago.
    pub fn reason(&self) -> Option<Reason> {
        if !self.is_away.load(Ordering::Relaxed) {
            return None;
        }
        let now = monotonic();
        let away = self.lock();
        let away = away.as_ref()?;
        (now.saturating_duration_since(away.failed_at) < QUIET_FOR).then_some(away.reason)
    }

    fn missed(&self, reason: Reason, now: Instant) -> Option<Line> {
        let mut state = self.lock();
        let Some(away) = &mut *state else {
            let (failures, held_back) = (1, 0);
            *state = Some(Away {
                reason,
                since: now,
                failed_at: now,
                told_at: now,
                failures,
                held_back,
            });
            self.is_away.store(true, Ordering::Relaxed);
            return Some(Line::Away);
        };
        away.failed_at = now;
        away.failures += 1;
        // Who waits in vain for a connection does not know why the others keep theirs.
        let clearer = away.reason == Reason::Busy && reason != Reason::Busy;
        if clearer || reason != Reason::Busy {
            away.reason = reason;
        }
        if !clearer && now.saturating_duration_since(away.told_at) < TOLD_EVERY {
            away.held_back += 1;
            return None;
        }
        away.told_at = now;
        let held_back = std::mem::take(&mut away.held_back);
        let away_for = now.saturating_duration_since(away.since);
        Some(Line::StillAway { held_back, away_for })
    }

    fn worked(&self, now: Instant) -> Option<Line> {
        let mut state = self.lock();
        let away = state.as_ref()?;
        let quiet = now.saturating_duration_since(away.failed_at) >= QUIET_FOR;
        if !quiet && !away.reason.is_total() {
            return None;
        }
        let until = if away.reason.is_total() { now } else { away.failed_at };
        let away_for = until.saturating_duration_since(away.since);
        let line = Line::Back { failures: away.failures, away_for };
        *state = None;
        self.is_away.store(false, Ordering::Relaxed);
        Some(line)
    }

    fn tell(&self, error: Option<&Error>, line: Option<Line>) {
        let Some(line) = line else { return };
        let reason = error.and_then(Error::reason).map(Reason::as_str);
        let error = error.map(tracing::field::display);
        match line {
            Line::Away => tracing::warn!(reason, error, "store.unavailable"),
            Line::StillAway { held_back, away_for } => {
                let away_seconds = away_for.as_secs();
                tracing::warn!(reason, error, held_back, away_seconds, "store.still_unavailable");
            }
            Line::Back { failures, away_for } => {
                let away_seconds = away_for.as_secs_f64();
                tracing::info!(failures, away_seconds, "store.available");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Away>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_outage_is_a_line_a_minute() {
        let (store, start) = (Availability::default(), monotonic());
        assert_eq!(store.worked(start), None);
        assert_eq!(store.missed(Reason::Unreachable, start), Some(Line::Away));
        let lines: Vec<_> = (1..=150)
            .filter_map(|second| store.missed(Reason::Starting, start + secs(second)))
            .collect();
        let still = |held_back, away| Line::StillAway { held_back, away_for: secs(away) };
        assert_eq!(lines, [still(59, 60), still(59, 120)]);
        let back = Line::Back { failures: 151, away_for: secs(151) };
        assert_eq!(store.worked(start + secs(151)), Some(back));
        assert_eq!(store.worked(start + secs(152)), None);
        assert_eq!(store.missed(Reason::Silent, start + secs(153)), Some(Line::Away));
    }

    #[test]
    fn what_works_beside_a_lock_does_not_end_it() {
        let (store, start) = (Availability::default(), monotonic());
        assert_eq!(store.missed(Reason::Busy, start), Some(Line::Away));
        let clearer = Line::StillAway { held_back: 0, away_for: secs(3) };
        assert_eq!(store.missed(Reason::Locked, start + secs(3)), Some(clearer));
        assert_eq!(store.missed(Reason::Busy, start + secs(4)), None);
        assert_eq!(store.lock().as_ref().unwrap().reason, Reason::Locked);
        assert_eq!(store.worked(start + secs(5)), None);
        let back = Line::Back { failures: 3, away_for: secs(4) };
        assert_eq!(store.worked(start + secs(4) + QUIET_FOR), Some(back));
    }

    #[test]
    fn what_is_nobodys_outage_is_not_noted() {
        let store = Availability::default();
        store.note(&Err::<(), _>(Error::new(crate::Kind::NotFound, "nothing there")));
        assert_eq!(store.reason(), None);
        store.note(&Err::<(), _>(Error::unavailable(Reason::DiskFull, "full")));
        assert_eq!(store.reason(), Some(Reason::DiskFull));
        // Reads go on.
        store.note(&Ok(()));
        assert_eq!(store.reason(), Some(Reason::DiskFull));
        let store = Availability::default();
        store.note(&Err::<(), _>(Error::unavailable(Reason::Unreachable, "gone")));
        store.note(&Ok(()));
        assert_eq!(store.reason(), None);
    }
}
