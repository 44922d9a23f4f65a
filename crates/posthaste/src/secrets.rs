//! The data folder and the secret that the first start makes in it.

use crate::config::JwtSecret;
use crate::failure::Failure;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use posthaste_core::time::Dice;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const FILE: &str = "secrets.toml";
const KEY_BYTES: usize = 32;
const OWNER_ONLY: u32 = 0o600;

/// The secret, and whether this start made it.
pub struct Found {
    pub secret: JwtSecret,
    pub fresh: bool,
}

/// Creates the data folder, for its owner only, unless it is there.
///
/// # Errors
/// The folder cannot be made or written to.
pub fn prepare_folder(folder: &Path) -> Result<(), Failure> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| unusable("create", folder, &error))?;
    // Permissions alone do not tell: a folder may lie on a medium that is full or read-only.
    let probe = folder.join(format!(".writable-{}", std::process::id()));
    let written = OpenOptions::new().write(true).create(true).truncate(true).open(&probe);
    written.map_err(|error| unusable("write to", folder, &error))?;
    fs::remove_file(&probe).map_err(|error| unusable("write to", folder, &error))
}

/// The data folder's secret; `None` when the folder has none.
///
/// # Errors
/// The file cannot be read or holds no usable secret.
pub fn find(folder: &Path) -> Result<Option<JwtSecret>, Failure> {
    let path = folder.join(FILE);
    let shown = path.display();
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::new(format!("cannot read {shown}: {error}"))),
    };
    let secret = toml::from_str::<toml::Table>(&text)
        .ok()
        .and_then(|table| Some(table.get("jwt_secret")?.as_str()?.to_owned()))
        .ok_or_else(|| "it has no `jwt_secret`".to_owned())
        .and_then(|text| JwtSecret::new(&text));
    secret.map(Some).map_err(|hint| {
        Failure::new(format!(
            "cannot use {shown}: {hint}; restore it, or remove it to have a new one made (all \
             tokens will have to be made again)"
        ))
    })
}

/// The data folder's secret, made now if there is none.
///
/// # Errors
/// Those of `find`, and a folder that cannot be written to.
pub fn find_or_make(folder: &Path, dice: &dyn Dice) -> Result<Found, Failure> {
    if let Some(secret) = find(folder)? {
        return Ok(Found { secret, fresh: false });
    }
    let fresh = make(folder, dice).map_err(|error| unusable("write to", folder, &error))?;
    match find(folder)? {
        Some(secret) => Ok(Found { secret, fresh }),
        None => Err(Failure::new(format!("{} vanished", folder.join(FILE).display()))),
    }
}

/// Whether others than its owner may read the file of secrets.
pub fn readable_by_others(folder: &Path) -> Option<PathBuf> {
    let path = folder.join(FILE);
    let mode = fs::metadata(&path).ok()?.permissions().mode();
    (mode & 0o077 != 0).then_some(path)
}

/// Writes a new secret. `false`: another process was faster.
///
/// The file appears under its name only when it is whole, so that nobody reads half a secret.
fn make(folder: &Path, dice: &dyn Dice) -> std::io::Result<bool> {
    let mut key = [0; KEY_BYTES];
    dice.fill(&mut key);
    let draft = folder.join(format!(".{FILE}-{}", std::process::id()));
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(OWNER_ONLY).open(&draft)?;
    writeln!(file, "# Made at the first start. Keep it: whoever has it can sign tokens.")?;
    writeln!(file, "jwt_secret = \"{}\"", URL_SAFE_NO_PAD.encode(key))?;
    file.sync_all()?;
    let linked = fs::hard_link(&draft, folder.join(FILE));
    fs::remove_file(&draft)?;
    match linked {
        Ok(()) => fs::File::open(folder)?.sync_all().map(|()| true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

fn unusable(what: &str, folder: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!(
        "cannot {what} the data folder {}: {error}; give this user write access, or choose another \
         folder with --data-dir",
        folder.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::SystemDice;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("posthaste-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            prepare_folder(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_first_start_makes_what_the_second_finds() {
        let folder = Folder::new("secrets");
        assert!(find(&folder.0).unwrap().is_none());
        let first = find_or_make(&folder.0, &SystemDice::new()).unwrap();
        let second = find_or_make(&folder.0, &SystemDice::new()).unwrap();
        assert!(first.fresh && !second.fresh);
        assert!(first.secret == second.secret);
        assert!(first.secret.expose().len() >= 32);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder.0), 0o700);
        assert_eq!(mode(&folder.0.join(FILE)), 0o600);
        assert_eq!(readable_by_others(&folder.0), None);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "drafts are gone");
    }

    #[test]
    fn f011_a_file_without_a_usable_secret_is_refused() {
        let folder = Folder::new("blank");
        for text in ["jwt_secret = \"\"", "jwt_secret = \"  \"", "jwt_secret = 5", "", "x"] {
            fs::write(folder.0.join(FILE), text).unwrap();
            let failure = find(&folder.0).unwrap_err();
            assert!(failure.line.contains(FILE), "{failure}");
        }
    }
}
