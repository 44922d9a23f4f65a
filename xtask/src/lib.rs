//! Tends the repository: provides what tests need, runs them, and checks the rules of the house.
//!
//! It depends on nothing but the standard library, so that it builds in seconds on a fresh
//! machine. Everything here may print, and may read the clock: none of it is shipped.

pub mod chaos;
pub mod lint;
pub mod process;
pub mod services;
pub mod test;
pub mod tidy;

use std::path::{Path, PathBuf};

/// The checkout that the commands work on.
#[derive(Clone, Debug)]
pub struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// The checkout that this program was built from. Cargo names it at run time too, which stays
    /// right when a checkout moves.
    pub fn locate() -> Self {
        let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest_dir.parent().map_or(manifest_dir.clone(), Path::to_path_buf);
        Self { root }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where xtask keeps what it makes; ignored by git and gone after `cargo clean`.
    pub fn scratch(&self) -> PathBuf {
        self.root.join("target/xtask")
    }
}

/// Why a command ends with an exit code other than 0.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    /// Absent when the failed program has already said everything.
    pub message: Option<String>,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: 1, message: Some(message.into()) }
    }
}
