//! Which waiting deliveries of a lane go next, as far as both back-ends decide it alike.

use crate::Result;
use crate::rows::{self, Fields};
use posthaste_core::delivery::{Class, Trigger};
use posthaste_core::id::MessageId;
use posthaste_core::time::Timestamp;

/// Every class with something due gets this part of a lane's room.
const CLASS_SHARE: usize = 8;

/// How much a lane may give, and of what.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    pub room: usize,
    /// The bound that `room` comes from is a ramp: more of it opens when a record comes.
    pub ramped: bool,
    /// Retries are taken before their time.
    pub early: bool,
    pub probe: bool,
}

/// A waiting delivery that was read.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
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
    pub fn read(row: &mut Fields<'_>) -> Result<Self> {
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

/// Divides `room`: first each class its share, then what is left in the order of the classes.
pub(crate) fn share(classes: Vec<Vec<Waiting>>, room: usize) -> Vec<Waiting> {
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
