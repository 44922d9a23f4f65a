//! The connection that hears what other processes say, kept alive and made anew.
//!
//! It must lead to the server itself: a pooler that hands out connections by the transaction would
//! take the LISTEN away with the first. Where the only address is a pooler's, nobody listens.

use super::db::{Mode, failed, params};
use super::nudges::{DUE, ENQUEUED, Heard};
use super::open::Target;
use super::pool::{Connection, Pool, wait};
use crate::Result;
use crate::error::{Error, Kind, Reason};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Notification;

/// How long an answer of the listening connection may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Listener {
    pub target: Target,
    /// Somebody said that it leads to the server itself.
    pub is_direct: bool,
    /// The ordinary way to the server.
    pub pool: Arc<Pool>,
    /// The payload of what this process says itself.
    pub own: String,
    pub heard: Arc<Heard>,
    pub check_every: Duration,
}

/// Why a listener stopped.
enum Stop {
    /// It may be tried again.
    Lost(Error),
    /// The address leads to a pooler.
    Pooler,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Lost(error)
    }
}

pub(super) async fn run(listener: Listener) {
    let mut failures = 0;
    loop {
        let Err(stop) = listener.listen(&mut failures).await;
        match stop {
            Stop::Pooler => return tracing::info!("store.no_listen_through_a_pooler"),
            Stop::Lost(error) => {
                failures += 1;
                // Once is enough to know, and that all of it is away is told by others.
                if failures == 1 && listener.pool.availability.reason().is_none() {
                    tracing::warn!(%error, "store.listen_lost");
                }
                tokio::time::sleep(wait(failures)).await;
            }
        }
    }
}

impl Listener {
    /// Listens until that ends.
    async fn listen(&self, failures: &mut u32) -> Result<Infallible, Stop> {
        let (heard, own) = (Arc::clone(&self.heard), self.own.clone());
        let hear = move |said: &Notification| match said.channel() {
            DUE if said.payload() != own => heard.due.notify_one(),
            ENQUEUED => heard.enqueued.notify_one(),
            _ => {}
        };
        let connection = in_time(self.target.connect_and_hear(hear)).await?;
        let process = process(&connection).await?;
        if !self.is_direct {
            self.check_direct(&connection, process).await?;
        }
        let listen = format!("LISTEN {DUE}; LISTEN {ENQUEUED}");
        in_time(async { connection.client.batch_execute(&listen).await.map_err(failed) }).await?;
        *failures = 0;
        tracing::debug!("store.listening");
        // Something may have been said before we listened.
        self.heard.due.notify_one();
        self.heard.enqueued.notify_one();
        loop {
            tokio::time::sleep(self.check_every).await;
            if self::process(&connection).await? != process {
                return Err(Stop::Pooler);
            }
        }
    }

    /// Whoever reaches the server itself has a process of its own there, all the time. Behind a
    /// pooler, two clients get the same one after the other, or one client two.
    async fn check_direct(&self, connection: &Connection, own: i64) -> Result<(), Stop> {
        let tx = self.pool.begin(Mode::Read).await?;
        let other = tx.get(PROCESS, params![], |row| row.int()).await;
        let now = process(connection).await;
        tx.end().await;
        if other? == own || now? != own { Err(Stop::Pooler) } else { Ok(()) }
    }
}

const PROCESS: &str = "SELECT pg_backend_pid()::int8";

/// The server's process that answers.
async fn process(connection: &Connection) -> Result<i64> {
    let asked = async { connection.client.query_typed(PROCESS, &[]).await.map_err(failed) };
    let rows = in_time(asked).await?;
    let row = rows.first().ok_or_else(|| Error::new(Kind::Internal, "no process answered"))?;
    row.try_get(0).map_err(failed)
}

async fn in_time<T>(answer: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Error::unavailable(Reason::Silent, "the listening connection does not answer");
    tokio::time::timeout(ANSWER_TIMEOUT, answer).await.map_err(late)?
}
