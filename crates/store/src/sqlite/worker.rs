//! Who lives on this machine: a process holds the lock file of each of its workers.
//!
//! The system lets go of the lock when the process dies, however it dies, so leases of a killed
//! process come back at once, without waiting for its heartbeat to be missed.

use posthaste_core::id::WorkerId;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The lock files of one database.
pub(super) struct Workers {
    database: PathBuf,
    /// Held by this handle; a lock goes with its file.
    held: Mutex<HashMap<WorkerId, File>>,
}

impl Workers {
    pub fn new(database: &Path) -> Self {
        Self { database: database.to_owned(), held: Mutex::default() }
    }

    /// Takes the worker's lock, unless it is held. `false`: the file system has no locks, so only
    /// the heartbeat tells whether the worker lives.
    pub fn hold(&self, worker: WorkerId) -> bool {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.contains_key(&worker) {
            return true;
        }
        let Ok(file) = open(&self.path(worker)) else { return false };
        if file.try_lock().is_err() {
            return false;
        }
        held.insert(worker, file);
        true
    }

    /// Whether the process of a worker that held its lock is gone for certain. Of one whose file is
    /// not there, because somebody tidied it away, only the heartbeat tells.
    pub fn is_dead(&self, worker: WorkerId) -> bool {
        match OpenOptions::new().read(true).write(true).open(self.path(worker)) {
            // Taken and let go at once: the worker's row goes next.
            Ok(file) => match file.try_lock() {
                Ok(()) => true,
                Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
            },
            Err(_) => false,
        }
    }

    /// Lets go of a worker that left or is dead, and removes its file.
    pub fn forget(&self, worker: WorkerId) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.remove(&worker);
        // A file that stays behind does no harm: it is not locked.
        let _ = fs::remove_file(self.path(worker));
    }

    fn path(&self, worker: WorkerId) -> PathBuf {
        let mut name = OsString::from(&self.database);
        name.push(format!("-worker-{worker}.lock"));
        name.into()
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}
