//! Looks for what will go wrong: transaction ids that run out, old snapshots, clocks apart.
//!
//! Who sees no other user's sessions (it takes the role `pg_read_all_stats`) finds only its own.

use super::db::{Tx, params};
use super::upkeep::sql;
use crate::Result;
use crate::diagnosis::{
    Diagnosis, Holder, clock_ahead_us, transaction_ids_used, warn_of_clock, warn_of_ids,
    warn_of_snapshot,
};
use crate::monotonic::monotonic;
use posthaste_core::time::Timestamp;
use std::time::{Duration, Instant};

/// `now` was read at `asked`.
pub(super) async fn diagnose(
    tx: &Tx,
    now: Timestamp,
    asked: Instant,
    snapshot_age_max: Duration,
) -> Result<Diagnosis> {
    let before = monotonic().saturating_duration_since(asked);
    let theirs = tx.get(sql::CLOCK, params![], |row| row.time()).await?;
    let took = monotonic().saturating_duration_since(asked);
    let clock_ahead = clock_ahead_us(now.after(before), took.saturating_sub(before), theirs);
    let ages = tx.get(sql::TRANSACTION_IDS, params![], |row| Ok([row.number()?, row.number()?]));
    let used = transaction_ids_used(ages.await?);
    let holder = tx.one(sql::SNAPSHOT_OLDEST, params![], holder).await?;
    let warnings = [
        warn_of_ids(used, holder.as_ref()),
        warn_of_snapshot(holder.as_ref(), snapshot_age_max),
        warn_of_clock(clock_ahead),
    ];
    Ok(Diagnosis {
        warnings: warnings.into_iter().flatten().collect(),
        transaction_ids_used: Some(used),
        oldest_snapshot: Some(holder.and_then(|holder| holder.open_for).unwrap_or_default()),
        clock_ahead_us: Some(clock_ahead),
    })
}

fn holder(row: &mut crate::rows::Fields<'_>) -> Result<Holder> {
    Ok(Holder {
        kind: row.text()?.to_owned(),
        name: row.text()?.to_owned(),
        transactions: row.number()?,
        open_for: row.opt_number()?.map(Duration::from_secs),
    })
}
