//! Which waiting deliveries of a lane go next.

use super::lanes::sql;
use super::writer::Tx;
use crate::Result;
use crate::rows::{self, Fields};
use posthaste_core::delivery::{Class, Trigger};
use posthaste_core::id::{EndpointId, MessageId};
use posthaste_core::time::Timestamp;
use rusqlite::params;

/// Every class with something due gets this part of a lane's room.
const CLASS_SHARE: usize = 8;

/// How much a lane may give, and of what.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub room: usize,
    /// The bound that `room` comes from is a ramp: more of it opens when a record comes.
    pub ramped: bool,
    /// Retries are taken before their time.
    pub early: bool,
    pub probe: bool,
}

/// A waiting delivery that was read.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub message_id: MessageId,
    pub class: Class,
    pub due_at: Timestamp,
    pub attempts: u32,
    pub plan_attempts: u32,
    pub trigger: Trigger,
    pub planned_at: Option<Timestamp>,
    pub lease_number: u32,
    pub accepted_at: Timestamp,
    pub last_status: Option<u16>,
}

impl Waiting {
    fn read(row: &mut Fields<'_>) -> Result<Self> {
        Ok(Self {
            message_id: row.id()?,
            class: rows::class(row)?,
            due_at: row.time()?,
            attempts: row.number()?,
            plan_attempts: row.number()?,
            trigger: rows::trigger(row)?,
            planned_at: row.opt_time()?,
            lease_number: row.number()?,
            accepted_at: row.time()?,
            last_status: row.opt_number()?,
        })
    }
}

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

/// Divides `room`: first each class its share, then what is left in the order of the classes.
fn share(classes: Vec<Vec<Waiting>>, room: usize) -> Vec<Waiting> {
    let share = (room / CLASS_SHARE).max(1);
    let mut left = room;
    let mut taken: Vec<usize> = classes
        .iter()
        .map(|due| {
            let own = due.len().min(share).min(left);
            left -= own;
            own
        })
        .collect();
    for (taken, due) in taken.iter_mut().zip(&classes) {
        let more = (due.len() - *taken).min(left);
        *taken += more;
        left -= more;
    }
    classes.into_iter().zip(taken).flat_map(|(due, taken)| due.into_iter().take(taken)).collect()
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
