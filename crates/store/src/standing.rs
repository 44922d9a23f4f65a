//! How everything stands, and how one endpoint does, out of rows: the same for all drivers.

use crate::Result;
use crate::history::Status;
use crate::rows::Fields;
use posthaste_core::delivery::DeliveryKey;
use posthaste_core::latency::Sketch;
use posthaste_core::limits::HEARTBEAT_LOST_AFTER;
use posthaste_core::time::Timestamp;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// Notices given at once.
pub(crate) const NOTICES_MAX: u32 = 1_000;

/// The first minute that lies within the last hour.
pub(crate) fn first_minute(now: Timestamp) -> i64 {
    now.before(HOUR).as_secs().div_euclid(60) + 1
}

/// When that minute began, as a column.
pub(crate) fn first_minute_began(now: Timestamp) -> i64 {
    Timestamp::from_secs(first_minute(now) * 60).as_micros()
}

/// From when on windows of an endpoint's latency count, as a column.
pub(crate) fn windows_since(now: Timestamp) -> i64 {
    now.before(DAY).as_micros()
}

/// Whoever was heard of since then lives, as a column.
pub(crate) fn alive_since(now: Timestamp) -> i64 {
    now.before(HEARTBEAT_LOST_AFTER).as_micros()
}

/// start, sketch
pub(crate) fn window(row: &mut Fields<'_>) -> Result<(Timestamp, Sketch)> {
    Ok((row.time()?, sketch(row)?))
}

/// A sketch of another version is as good as none.
pub(crate) fn sketch(row: &mut Fields<'_>) -> Result<Sketch> {
    Ok(Sketch::from_bytes(row.blob()?).unwrap_or_default())
}

/// One window for each start, out of those of several processes, ordered by start.
pub(crate) fn merged(rows: Vec<(Timestamp, Sketch)>) -> Vec<(Timestamp, Sketch)> {
    let mut windows: Vec<(Timestamp, Sketch)> = Vec::new();
    for (start, sketch) in rows {
        match windows.last_mut() {
            Some((last, merged)) if *last == start => merged.merge(&sketch),
            _ => windows.push((start, sketch)),
        }
    }
    windows
}

/// endpoint_id, message_id, accepted_at
pub(crate) fn oldest(row: &mut Fields<'_>) -> Result<(DeliveryKey, Timestamp)> {
    let key = DeliveryKey { endpoint_id: row.id()?, message_id: row.id()? };
    Ok((key, row.time()?))
}

impl Status {
    /// pending, awaiting retry, in flight, held, reopened, first due time. Gives how many were
    /// reopened.
    pub(crate) fn read_open(&mut self, now: Timestamp, row: &mut Fields<'_>) -> Result<u64> {
        self.pending = row.number()?;
        self.awaiting_retry = row.number()?;
        self.in_flight = row.number()?;
        self.held = row.number()?;
        let reopened = row.number()?;
        self.oldest_due_at = row.opt_time()?.filter(|due_at| *due_at <= now);
        Ok(reopened)
    }

    /// delivered, failed, failed attempts, timed, sum of the times
    pub(crate) fn read_tally(&mut self, row: &mut Fields<'_>) -> Result<()> {
        self.delivered_last_hour = row.number()?;
        self.failed_last_hour = row.number()?;
        self.failed_attempts_last_hour = row.number()?;
        let (timed, sum): (u64, u64) = (row.number()?, row.number()?);
        self.delivery_time_average = sum.checked_div(timed).map(Duration::from_micros);
        Ok(())
    }

    /// breakers that are not closed, endpoints that are disabled
    pub(crate) fn read_lanes(&mut self, row: &mut Fields<'_>) -> Result<()> {
        self.breakers_open = row.number()?;
        self.endpoints_disabled = row.number()?;
        Ok(())
    }
}
