//! Copies the write-ahead log back into the database beside the writer, so that no commit waits for
//! it.
//!
//! The long part runs here, while commits go on; what they add meanwhile is short, and the writer
//! copies it itself between two commits (`Writer`), after which SQLite begins the log anew. Without
//! that second part a log under steady load would never end.

use super::db::failed;
use super::no_thread;
use crate::Result;
use rusqlite::Connection;
use rusqlite::hooks::Wal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

/// The log is copied back when it has grown by so many pages (16 MB).
const LOG_PAGES_MAX: usize = 4_000;

/// The writer's side: how much the log has grown, and who copies it.
pub(super) struct Log {
    /// How long it is, told by SQLite at each commit.
    pages: Arc<AtomicUsize>,
    /// How long it was when it was last copied; 0 when it has begun anew since.
    copied: usize,
    background: Background,
}

struct Background {
    /// Gone when the thread is to end.
    ask: Option<SyncSender<()>>,
    is_copied: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Log {
    /// `connection` belongs to the thread from now on.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(connection: Connection, writing: &mut Connection) -> Result<Self> {
        let pages = Arc::new(AtomicUsize::new(0));
        let told = Arc::clone(&pages);
        let tell = move |_: &mut Wal, pages: i32| {
            told.store(usize::try_from(pages).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        };
        writing.wal_hook(Some(tell)).map_err(failed)?;
        let (ask, asked) = sync_channel::<()>(1);
        let is_copied = Arc::new(AtomicBool::new(false));
        let copied = Arc::clone(&is_copied);
        let copy_when_asked = move || {
            while asked.recv().is_ok() {
                copy(&connection);
                copied.store(true, Ordering::Release);
            }
        };
        let thread = std::thread::Builder::new()
            .name("store-checkpoint".to_owned())
            .spawn(copy_when_asked)
            .map_err(no_thread)?;
        let background = Background { ask: Some(ask), is_copied, thread: Some(thread) };
        Ok(Self { pages, copied: 0, background })
    }

    /// After each commit: asks for a copy when the log has grown enough, and finishes one that was
    /// made.
    pub fn committed(&mut self, writing: &Connection) {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages < self.copied {
            self.copied = 0;
        }
        if self.background.is_copied.swap(false, Ordering::Acquire) {
            self.finish(pages, writing);
        } else if pages - self.copied >= LOG_PAGES_MAX
            && let Some(ask) = &self.background.ask
            && let Err(TrySendError::Disconnected(())) = ask.try_send(())
        {
            // The thread is gone; a log without end would be worse than a stall.
            self.finish(pages, writing);
        }
    }

    /// The next commit begins the log anew, unless somebody still reads from it.
    fn finish(&mut self, pages: usize, writing: &Connection) {
        copy(writing);
        self.copied = pages;
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.ask = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing left to copy.
            let _ = thread.join();
        }
    }
}

/// Copies what it can without waiting for anybody. A failure costs nothing but a longer log, and
/// the next commit shows what is wrong with the disk.
fn copy(connection: &Connection) {
    let copied = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    if let Err(error) = copied {
        tracing::debug!(%error, "store.checkpoint_failed");
    }
}
