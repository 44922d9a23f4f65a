//! Partitions of the history by time, made ahead of it and dropped after their time.
//!
//! Ids are ordered by time, so a range of ids is a range of times. What lies in no partition goes
//! into the default one; a week whose rows are there already gets no partition any more.

use super::Core;
use super::db::{Tx, Uuid, params};
use crate::Result;
use posthaste_core::id::MessageId;
use posthaste_core::time::Timestamp;
use std::time::Duration;

const TABLES: [&str; 3] = ["message", "ended", "attempt"];
const WEEK_SECS: i64 = 7 * 24 * 3_600;
const WEEK: Duration = Duration::from_secs(WEEK_SECS.unsigned_abs());
/// Messages looked at in one transaction.
const EVENT_ROWS: u32 = 5_000;
/// Rows of no week that are forgotten in one transaction.
const STRAY_ROWS: u32 = 1_000;
/// Weeks made ahead of the one that is running.
const WEEKS_AHEAD: u32 = 5;
/// Processes make partitions one after the other.
const PARTITION_LOCK: i64 = 0x7068_7375;

/// Makes those that are missing for this week and the next ones. Does nothing when they are there,
/// or when somebody else is at it.
pub(super) async fn make_partitions(core: &Core, now: Timestamp) -> Result<()> {
    for week in weeks(now) {
        // One at a time: a lock on the history is held for a moment only.
        transact!(core, Write, |tx| {
            if missing(tx, week).await?.is_empty() {
                return Ok(());
            }
            tx.batch("SET LOCAL lock_timeout = '2s'").await?;
            let lock = "SELECT pg_try_advisory_xact_lock($1)";
            if tx.get(lock, params![PARTITION_LOCK], |row| row.flag()).await? {
                make_week(tx, week).await?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// The same within the transaction of a migration.
pub(super) async fn make_first_partitions(tx: &Tx, now: Timestamp) -> Result<()> {
    for week in weeks(now) {
        make_week(tx, week).await?;
    }
    Ok(())
}

/// Those of the weeks in which these times lie.
pub(super) async fn make_partitions_of(tx: &Tx, times: &[Timestamp]) -> Result<()> {
    tx.one("SELECT pg_advisory_xact_lock($1)", params![PARTITION_LOCK], |_| Ok(())).await?;
    for at in times {
        make_week(tx, start_of_week(*at)).await?;
    }
    Ok(())
}

/// Drops the weeks that ended before `accepted_before`, of whose messages none has a payload and
/// none is open. Returns how many messages went.
pub(super) async fn drop_partitions(core: &Core, accepted_before: Timestamp) -> Result<u64> {
    let sql = "SELECT substr(relname, 10)::bigint FROM pg_class
        WHERE relnamespace = 'posthaste'::regnamespace AND relname ~ '^message_w[0-9]+$'
        ORDER BY 1";
    let weeks = transact!(core, Read, |tx| tx.all(sql, params![], |row| row.int()).await)?;
    let mut dropped = 0;
    for week in weeks {
        let week = Timestamp::from_secs(week * WEEK_SECS);
        let is_old = week.after(WEEK) <= accepted_before;
        if is_old && transact!(core, Read, |tx| is_over(tx, week).await)? {
            let messages = free_event_ids(core, week).await?;
            if drop_week(core, week).await? {
                dropped += messages;
            }
        }
    }
    Ok(dropped)
}

/// Whether nothing of the week will be sent any more.
async fn is_over(tx: &Tx, week: Timestamp) -> Result<bool> {
    let name = name("message", week);
    let sql = format!(
        "SELECT NOT EXISTS (SELECT 1 FROM posthaste.{name} WHERE payload IS NOT NULL)
             AND NOT EXISTS (
                 SELECT 1 FROM posthaste.delivery WHERE message_id >= $1 AND message_id < $2
             )"
    );
    let [from, to] = bounds(week);
    tx.get(&sql, params![from, to], |row| row.flag()).await
}

/// Lets the week's event ids be used again, in steps that look at a bounded number of messages
/// each. Returns how many messages there are.
async fn free_event_ids(core: &Core, week: Timestamp) -> Result<u64> {
    let sql = format!(
        "WITH page AS MATERIALIZED (
             SELECT application_id, event_id, id FROM posthaste.{}
             WHERE id > $1
             ORDER BY id
             LIMIT {EVENT_ROWS}
         ), gone AS (
             DELETE FROM posthaste.event USING page
             WHERE event.application_id = page.application_id AND event.event_id = page.event_id
                 AND event.message_id = page.id
         )
         SELECT id, count(*) OVER () FROM page ORDER BY id DESC LIMIT 1",
        name("message", week)
    );
    let (mut after, mut messages) = (Uuid::NIL, 0);
    loop {
        let page = transact!(core, Indexed, |tx| {
            tx.one(&sql, params![after], |row| Ok((row.id::<MessageId>()?, row.number::<u64>()?)))
                .await
        })?;
        let Some((last, count)) = page else { return Ok(messages) };
        after = Uuid::from(last);
        messages += count;
    }
}

/// One table at a time and the messages last, so that no two locks are held that others take in
/// another order, and a week that was begun is found again. `false`: not now.
async fn drop_week(core: &Core, week: Timestamp) -> Result<bool> {
    for table in TABLES.iter().rev() {
        let dropped = transact!(core, Write, |tx| {
            // Whoever waits for the lock keeps everybody else waiting behind it.
            tx.batch("SET LOCAL lock_timeout = '2s'").await?;
            let lock = "SELECT pg_try_advisory_xact_lock($1)";
            if !tx.get(lock, params![PARTITION_LOCK], |row| row.flag()).await?
                || missing(tx, week).await?.contains(&"message")
                // A dead letter may have been sent for again since it was looked at.
                || !is_over(tx, week).await?
            {
                return Ok(false);
            }
            tx.batch(&format!("DROP TABLE IF EXISTS posthaste.{}", name(table, week))).await?;
            Ok(true)
        })?;
        if !dropped {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Forgets what is as old and lies in no week, in bounded steps: messages without payload of which
/// nothing is open, with what belongs to them, and what is left of messages that are gone. Returns
/// how many messages went.
pub(super) async fn forget_strays(core: &Core, accepted_before: Timestamp) -> Result<u64> {
    let before = Uuid::from(MessageId::lower_bound(accepted_before));
    let mut forgotten = 0;
    loop {
        let messages = transact!(core, Write, |tx| {
            let sql = format!(
                "WITH page AS MATERIALIZED (
                     SELECT id, application_id, event_id FROM posthaste.message_default AS message
                     WHERE id < $1 AND payload IS NULL AND NOT EXISTS (
                         SELECT 1 FROM posthaste.endpoint
                         JOIN posthaste.delivery ON delivery.endpoint_id = endpoint.id
                         WHERE endpoint.application_id = message.application_id
                             AND delivery.message_id = message.id
                     )
                     ORDER BY id
                     LIMIT {STRAY_ROWS}
                     FOR UPDATE SKIP LOCKED
                 ), event AS (
                     DELETE FROM posthaste.event USING page
                     WHERE event.application_id = page.application_id
                         AND event.event_id = page.event_id AND event.message_id = page.id
                 )
                 DELETE FROM posthaste.message_default USING page
                 WHERE message_default.id = page.id"
            );
            tx.run(&sql, params![before]).await
        })?;
        forgotten += messages;
        if messages < u64::from(STRAY_ROWS) {
            break;
        }
    }
    for table in ["attempt", "ended"] {
        let sql = format!(
            "DELETE FROM posthaste.{table}_default WHERE ctid = ANY (ARRAY(
                 SELECT ctid FROM posthaste.{table}_default AS stray
                 WHERE message_id < $1 AND NOT EXISTS (
                     SELECT 1 FROM posthaste.message WHERE id = stray.message_id
                 )
                 LIMIT {STRAY_ROWS}
                 FOR UPDATE SKIP LOCKED
             ))"
        );
        let step = async || transact!(core, Write, |tx| tx.run(&sql, params![before]).await);
        while step().await? == u64::from(STRAY_ROWS) {}
    }
    Ok(forgotten)
}

/// Starts of the weeks that need partitions; the last one too, for messages that are under way.
fn weeks(now: Timestamp) -> impl Iterator<Item = Timestamp> {
    let this = start_of_week(now);
    (0..=WEEKS_AHEAD + 1).map(move |week| this.before(WEEK).after(WEEK * week))
}

fn start_of_week(at: Timestamp) -> Timestamp {
    Timestamp::from_secs(at.as_secs().div_euclid(WEEK_SECS) * WEEK_SECS)
}

/// The first id of a week, and of the next.
fn bounds(week: Timestamp) -> [Uuid; 2] {
    [week, week.after(WEEK)].map(|at| Uuid::from(MessageId::lower_bound(at)))
}

fn name(table: &str, week: Timestamp) -> String {
    format!("{table}_w{}", week.as_secs() / WEEK_SECS)
}

async fn missing(tx: &Tx, week: Timestamp) -> Result<Vec<&'static str>> {
    let mut missing = Vec::new();
    for table in TABLES {
        let name = format!("posthaste.{}", name(table, week));
        let sql = "SELECT to_regclass($1) IS NULL";
        if tx.get(sql, params![name], |row| row.flag()).await? {
            missing.push(table);
        }
    }
    Ok(missing)
}

async fn make_week(tx: &Tx, week: Timestamp) -> Result<()> {
    let bound = |at| uuid_text(MessageId::lower_bound(at));
    let (from, to) = (bound(week), bound(week.after(WEEK)));
    for table in missing(tx, week).await? {
        let key = match table {
            "message" => "id",
            _ => "message_id",
        };
        let taken = format!(
            "SELECT EXISTS (SELECT 1 FROM posthaste.{table}_default
             WHERE {key} >= $1 AND {key} < $2)"
        );
        let [from_id, to_id] = bounds(week);
        if tx.get(&taken, params![from_id, to_id], |row| row.flag()).await? {
            continue;
        }
        let name = name(table, week);
        tx.batch(&format!(
            "CREATE TABLE IF NOT EXISTS posthaste.{name} PARTITION OF posthaste.{table}
             FOR VALUES FROM ('{from}') TO ('{to}')"
        ))
        .await?;
    }
    Ok(())
}

fn uuid_text(id: MessageId) -> String {
    id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}
