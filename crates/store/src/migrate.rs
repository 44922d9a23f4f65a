//! Which changes of the schema there are, and whether what is applied is what we know.
//!
//! The back-ends apply them; the rules are here.

use crate::Result;
use crate::error::{Error, Kind};

/// One change of the schema; never edited once released.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Migration {
    pub number: i64,
    pub sql: &'static str,
}

impl Migration {
    /// Tells an edited file from the one that was applied. FNV-1a with 64 bits: it guards against
    /// mistakes, not against forgery. Not the text itself, so that it can be shown.
    pub fn checksum(&self) -> String {
        let hash = self.sql.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("{hash:016x}")
    }
}

/// Those of `known` that are still to be applied, in order.
///
/// # Errors
/// `Unusable` when the database is ahead of this program, or was made by other files.
pub(crate) fn pending<'a>(
    known: &'a [Migration],
    applied: &[(i64, String)],
) -> Result<&'a [Migration]> {
    if let Some((number, _)) = applied.get(known.len()) {
        return Err(Error::new(
            Kind::Unusable,
            format!(
                "the database has schema {number}, this program knows up to {}: it was used by a \
                 newer version; run that version, or restore a copy from before the upgrade",
                known.len()
            ),
        ));
    }
    for (migration, (number, checksum)) in known.iter().zip(applied) {
        if migration.number != *number || migration.checksum() != *checksum {
            return Err(Error::new(
                Kind::Unusable,
                format!(
                    "schema {number} of the database differs from the one this program knows: it \
                     was made by another build; run that build, or start with a new data folder"
                ),
            ));
        }
    }
    Ok(&known[applied.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [Migration; 2] =
        [Migration { number: 1, sql: "one" }, Migration { number: 2, sql: "two" }];

    fn applied(count: usize) -> Vec<(i64, String)> {
        KNOWN[..count].iter().map(|known| (known.number, known.checksum())).collect()
    }

    #[test]
    fn what_is_applied_is_not_applied_again() {
        let numbers = |count| {
            let pending = pending(&KNOWN, &applied(count)).unwrap();
            pending.iter().map(|migration| migration.number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(0), [1, 2]);
        assert_eq!(numbers(1), [2]);
        assert!(numbers(2).is_empty());
    }

    #[test]
    fn a_newer_or_changed_schema_is_refused() {
        let mut newer = applied(2);
        newer.push((3, "x".to_owned()));
        assert_eq!(pending(&KNOWN, &newer).unwrap_err().kind(), Kind::Unusable);
        let mut changed = applied(1);
        changed[0].1 = "0".to_owned();
        assert_eq!(pending(&KNOWN, &changed).unwrap_err().kind(), Kind::Unusable);
    }
}
