//! Partitions of the history by time, made ahead of it.
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
const WEEK: Duration = Duration::from_secs(7 * 24 * 3_600);
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

/// Starts of the weeks that need partitions; the last one too, for messages that are under way.
fn weeks(now: Timestamp) -> impl Iterator<Item = Timestamp> {
    let seconds = i64::try_from(WEEK.as_secs()).unwrap_or(i64::MAX);
    let this = Timestamp::from_secs(now.as_secs().div_euclid(seconds) * seconds);
    (0..=WEEKS_AHEAD + 1).map(move |week| this.before(WEEK).after(WEEK * week))
}

fn name(table: &str, week: Timestamp) -> String {
    format!("{table}_w{}", week.as_secs() / 604_800)
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
        let range = params![
            Uuid::from(MessageId::lower_bound(week)),
            Uuid::from(MessageId::lower_bound(week.after(WEEK))),
        ];
        if tx.get(&taken, range, |row| row.flag()).await? {
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
