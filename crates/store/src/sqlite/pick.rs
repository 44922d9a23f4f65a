//! Which waiting deliveries of a lane go next.

use super::lanes::sql;
use super::writer::Tx;
use crate::Result;
use crate::pick::{Terms, Waiting, share};
use posthaste_core::delivery::Class;
use posthaste_core::id::EndpointId;
use posthaste_core::time::Timestamp;
use rusqlite::params;

/// What goes next of a lane: the classes in their order, each with its share, the oldest first.
pub(super) fn pick(
    tx: &Tx<'_>,
    lane: EndpointId,
    terms: Terms,
    now: Timestamp,
) -> Result<Vec<Waiting>> {
    let mut classes = Vec::with_capacity(Class::ALL.len());
    for class in Class::ALL {
        // Replays keep the pace they were asked to have, unless one must serve as the probe.
        let early = terms.early && (class != Class::Replay || terms.probe);
        let until = if early && !terms.probe { Timestamp::MAX } else { now };
        let due = waiting(tx, lane, class, until, terms.room)?;
        classes.push(due);
    }
    if terms.probe && classes.iter().all(Vec::is_empty) {
        for class in Class::ALL {
            classes.push(waiting(tx, lane, class, Timestamp::MAX, 1)?);
        }
        let earliest = classes.into_iter().flatten().min_by_key(|waiting| waiting.due_at);
        return Ok(earliest.into_iter().collect());
    }
    Ok(share(classes, terms.room))
}

fn waiting(
    tx: &Tx<'_>,
    lane: EndpointId,
    class: Class,
    until: Timestamp,
    limit: usize,
) -> Result<Vec<Waiting>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let key = params![lane.as_bytes(), class as i64, until.as_micros(), limit];
    tx.db.all(sql::WAITING_OF_CLASS, key, Waiting::read)
}

/// When the lane's next delivery is due.
pub(super) fn earliest(tx: &Tx<'_>, lane: EndpointId) -> Result<Option<Timestamp>> {
    let mut earliest: Option<Timestamp> = None;
    for class in Class::ALL {
        let key = params![lane.as_bytes(), class as i64];
        let next = tx.db.one(sql::WAITING_NEXT, key, |row| row.time())?;
        earliest = earliest.into_iter().chain(next).min();
    }
    Ok(earliest)
}
