//! Statements that a connection's server knows by name, so that it need not parse and plan them
//! each time; that is a quarter of its work.
//!
//! **Invariant:** asking for a name never waits. Statements of a transaction are sent in the order
//! in which their futures are polled, its commit among them, so one that has no name yet goes
//! without, and gets one after the transaction.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Statement};

/// A statement gets a name when it is used for this time.
const USES_MIN: u32 = 3;
/// Different texts that are looked at; the groups have fewer.
const TEXTS_MAX: usize = 512;

#[derive(Default)]
pub(super) struct Statements {
    texts: Mutex<HashMap<String, Use>>,
}

enum Use {
    Times(u32),
    /// To be named with these types of its parameters.
    Wanted(Vec<Type>),
    Named(Statement),
}

impl Statements {
    /// The statement that the server knows, if it knows this one.
    pub fn named(&self, sql: &str, types: impl Iterator<Item = Type>) -> Option<Statement> {
        let mut texts = self.lock();
        let is_full = texts.len() >= TEXTS_MAX;
        match texts.get_mut(sql) {
            Some(Use::Named(statement)) => return Some(statement.clone()),
            Some(Use::Wanted(_)) => {}
            Some(Use::Times(times)) if *times + 1 < USES_MIN => *times += 1,
            Some(entry) => *entry = Use::Wanted(types.collect()),
            None if !is_full => {
                texts.insert(sql.to_owned(), Use::Times(1));
            }
            None => {}
        }
        None
    }

    /// Gives names to those that are used often. `false`: the connection is not to be kept.
    pub async fn name_wanted(&self, client: &Client) -> bool {
        while let Some((sql, types)) = self.take_wanted() {
            match client.prepare_typed(&sql, &types).await {
                Ok(statement) => self.lock().insert(sql, Use::Named(statement)),
                Err(_) => return false,
            };
        }
        true
    }

    fn take_wanted(&self) -> Option<(String, Vec<Type>)> {
        self.lock().iter().find_map(|(sql, entry)| match entry {
            Use::Wanted(types) => Some((sql.clone(), types.clone())),
            Use::Times(_) | Use::Named(_) => None,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Use>> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
