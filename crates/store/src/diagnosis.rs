//! What will go wrong with the database unless somebody sees to it, while it still works.

use posthaste_core::time::Timestamp;
use std::time::Duration;

/// How the database is, beside whether it works. What does not apply is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diagnosis {
    pub warnings: Vec<Warning>,
    /// How much of its transaction ids is used up, from 0 to 1. At 1 it stops.
    pub transaction_ids_used: Option<f64>,
    /// For how long the oldest transaction has kept dead rows from being cleared away.
    pub oldest_snapshot: Option<Duration>,
    /// How far its clock is ahead of ours, in microseconds; 0 where that cannot be told from the
    /// time that asking takes.
    pub clock_ahead_us: Option<i64>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// For programs: `transaction_ids`, `old_snapshot` or `clock_skew`.
    pub code: &'static str,
    /// For people who may see the database's insides: what it is, who is at fault, the way out.
    pub text: String,
}

/// Warns when so much of the transaction ids is used up. PostgreSQL itself begins to hurry at about
/// 3/4 (`vacuum_failsafe_age`), and takes no more writes at nearly 1.
pub(crate) const TRANSACTION_IDS_USED_MAX: f64 = 0.75;
/// Ids of which one half lies behind and the other ahead.
const TRANSACTION_IDS: f64 = 2_147_483_648.0;
/// Warns of snapshots that have no age in time, such as those of replication slots, when so many
/// transactions began since.
pub(crate) const SNAPSHOT_TRANSACTIONS_MAX: u64 = 1_000_000;
/// Warns when clocks are further apart: heartbeats are counted in seconds.
pub(crate) const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(2);

/// Who keeps dead rows from being cleared away, longest of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// `backend`, `standby`, `prepared transaction` or `replication slot`.
    pub kind: String,
    /// Process id, or name.
    pub name: String,
    /// Transactions that began since.
    pub transactions: u64,
    pub open_for: Option<Duration>,
}

impl Holder {
    fn way_out(&self) -> String {
        let name = &self.name;
        match self.kind.as_str() {
            "prepared transaction" => format!("end it with ROLLBACK PREPARED '{name}'"),
            "replication slot" => {
                format!("let its consumer catch up, or pg_drop_replication_slot('{name}')")
            }
            "standby" => "end the query that is open on the standby".to_owned(),
            _ => format!("end it with pg_terminate_backend({name})"),
        }
    }
}

/// Ages of the oldest transaction id and of the oldest multixact id.
pub(crate) fn transaction_ids_used(ages: [u64; 2]) -> f64 {
    ages.into_iter().max().unwrap_or(0) as f64 / TRANSACTION_IDS
}

pub(crate) fn warn_of_ids(used: f64, holder: Option<&Holder>) -> Option<Warning> {
    if used < TRANSACTION_IDS_USED_MAX {
        return None;
    }
    let holder = holder.map_or(String::new(), |holder| {
        let Holder { kind, name, .. } = holder;
        format!("; the oldest snapshot is that of {kind} {name}: {}", holder.way_out())
    });
    let percent = (used * 100.0).floor();
    let text = format!(
        "{percent} % of the database's transaction ids are used up, and at 100 % it stops; run \
         VACUUM (FREEZE) in it and see that autovacuum works{holder}"
    );
    Some(Warning { code: "transaction_ids", text })
}

pub(crate) fn warn_of_snapshot(holder: Option<&Holder>, open_max: Duration) -> Option<Warning> {
    let holder = holder?;
    let is_old = match holder.open_for {
        Some(open_for) => open_for > open_max,
        None => holder.transactions > SNAPSHOT_TRANSACTIONS_MAX,
    };
    let Holder { kind, name, transactions, open_for } = holder;
    let age = match open_for {
        Some(open_for) => format!("for {} s", open_for.as_secs()),
        None => format!("for {transactions} transactions"),
    };
    let text = format!(
        "{kind} {name} has kept dead rows from being cleared away {age}, which slows claims; {}",
        holder.way_out()
    );
    is_old.then_some(Warning { code: "old_snapshot", text })
}

/// How far the other clock is ahead, in microseconds: it read `theirs` at some time between `asked`
/// and `took` later.
pub(crate) fn clock_ahead_us(asked: Timestamp, took: Duration, theirs: Timestamp) -> i64 {
    let answered = asked.after(took);
    if theirs < asked {
        theirs.as_micros() - asked.as_micros()
    } else if theirs > answered {
        theirs.as_micros() - answered.as_micros()
    } else {
        0
    }
}

pub(crate) fn warn_of_clock(ahead_us: i64) -> Option<Warning> {
    let apart = Duration::from_micros(ahead_us.unsigned_abs());
    let side = if ahead_us > 0 { "behind" } else { "ahead of" };
    let text = format!(
        "the clock of this machine is {:.1} s {side} the database's; retries and leases come that \
         much too late or too early: see to its time service (NTP)",
        apart.as_secs_f64()
    );
    (apart > CLOCK_AHEAD_MAX).then_some(Warning { code: "clock_skew", text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_warned_of_at_three_quarters() {
        assert_eq!(warn_of_ids(transaction_ids_used([1_610_612_735, 0]), None), None);
        let holder = Holder {
            kind: "prepared transaction".to_owned(),
            name: "batch".to_owned(),
            transactions: 9,
            open_for: None,
        };
        for ages in [[1_610_612_736, 0], [0, 1_700_000_000]] {
            let warning = warn_of_ids(transaction_ids_used(ages), Some(&holder)).unwrap();
            for part in ["VACUUM", "prepared transaction batch", "ROLLBACK PREPARED 'batch'"] {
                assert!(warning.text.contains(part), "{}", warning.text);
            }
        }
    }

    #[test]
    fn snapshots_without_an_age_are_measured_in_transactions() {
        let holder = |transactions, open_for| Holder {
            kind: "replication slot".to_owned(),
            name: "report".to_owned(),
            transactions,
            open_for,
        };
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let old = |holder: Holder| warn_of_snapshot(Some(&holder), minutes(5)).is_some();
        assert!(!old(holder(1_000_000, None)) && old(holder(1_000_001, None)));
        assert!(!old(holder(u64::MAX, Some(minutes(5)))) && old(holder(0, Some(minutes(6)))));
        assert_eq!(warn_of_snapshot(None, Duration::ZERO), None);
    }

    #[test]
    fn what_asking_takes_is_no_skew() {
        let at = Timestamp::from_secs;
        let five = Duration::from_secs(5);
        for (theirs, ahead) in [(100, 0), (105, 0), (108, 3), (97, -3)] {
            let us = clock_ahead_us(at(100), five, at(theirs));
            assert_eq!(us, ahead * 1_000_000, "{theirs}");
            assert_eq!(warn_of_clock(us).is_some(), ahead != 0);
        }
        assert!(warn_of_clock(-3_000_000).unwrap().text.contains("3.0 s ahead of"));
        assert_eq!(warn_of_clock(2_000_000), None);
    }
}
