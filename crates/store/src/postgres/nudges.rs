//! Word between processes that something may be due, by NOTIFY.
//!
//! **Invariant:** nothing depends on it: who sleeps looks by itself every second.
//!
//! **Invariant:** a process sends at most one NOTIFY for `SPACING`, whatever happens in it. Commits
//! that notify wait for each other in the server, so they must be few.

use super::PostgresOptions;
use super::listener::{self, Listener};
use super::open::Target;
use super::pool::Pool;
use crate::Result;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Something is due.
pub(super) const DUE: &str = "posthaste_due";
/// An application enqueued something: said by `posthaste.enqueue`.
pub(super) const ENQUEUED: &str = "posthaste_enqueued";
/// From one NOTIFY of a process to its next. What happens in between goes with that one.
const SPACING: Duration = Duration::from_millis(50);

/// Sends from the start, listens from the first time that somebody wants to hear.
pub(super) struct Nudges {
    wanted: Arc<Notify>,
    heard: Arc<Heard>,
    tasks: Mutex<Tasks>,
}

/// What others said.
#[derive(Default)]
pub(super) struct Heard {
    pub due: Notify,
    pub enqueued: Notify,
}

struct Tasks {
    sending: JoinHandle<()>,
    listening: Option<JoinHandle<()>>,
    /// What is still needed to listen.
    listener: Option<Listener>,
}

impl Nudges {
    pub fn start(pool: &Arc<Pool>, direct: Target, options: &PostgresOptions) -> Self {
        let wanted = Arc::new(Notify::new());
        let heard = Arc::new(Heard::default());
        // Tells our own words from those of others.
        let name = format!("{:016x}", RandomState::new().hash_one(0));
        let listener = Listener {
            target: direct,
            is_direct: options.direct_url.is_some(),
            pool: Arc::clone(pool),
            own: name.clone(),
            heard: Arc::clone(&heard),
            check_every: options.listen_check_every,
        };
        let sending = tokio::spawn(send(Arc::clone(pool), Arc::clone(&wanted), name));
        let tasks = Tasks { sending, listening: None, listener: Some(listener) };
        Self { wanted, heard, tasks: Mutex::new(tasks) }
    }

    /// Tells the others, soon.
    pub fn send(&self) {
        self.wanted.notify_one();
    }

    /// Returns when others said that something is due.
    pub async fn heard(&self) {
        self.listen();
        self.heard.due.notified().await;
    }

    /// Returns when an application may have enqueued something.
    pub async fn enqueued(&self) {
        self.listen();
        self.heard.enqueued.notified().await;
    }

    fn listen(&self) {
        let mut tasks = self.tasks();
        if let Some(listener) = tasks.listener.take() {
            tasks.listening = Some(tokio::spawn(listener::run(listener)));
        }
    }

    /// Says and hears nothing more.
    pub fn close(&self) {
        let mut tasks = self.tasks();
        tasks.listener = None;
        tasks.sending.abort();
        if let Some(listening) = &tasks.listening {
            listening.abort();
        }
    }

    fn tasks(&self) -> std::sync::MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Nudges {
    fn drop(&mut self) {
        self.close();
    }
}

async fn send(pool: Arc<Pool>, wanted: Arc<Notify>, name: String) {
    // Nothing that could be lost in a crash is worth waiting for the disk.
    let words = format!("SET LOCAL synchronous_commit = off; NOTIFY {DUE}, '{name}'");
    loop {
        wanted.notified().await;
        if let Err(error) = say(&pool, &words).await {
            // The others look by themselves.
            tracing::debug!(%error, "a nudge was lost");
        }
        tokio::time::sleep(SPACING).await;
    }
}

async fn say(pool: &Arc<Pool>, words: &str) -> Result<()> {
    let tx = pool.begin(super::db::Mode::Write).await?;
    let said = async { tokio::try_join!(biased; tx.batch(words), tx.commit()).map(drop) };
    let said = said.await;
    tx.end().await;
    said
}
