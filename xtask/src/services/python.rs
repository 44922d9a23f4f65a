//! A Python with the official client libraries, for the tests that talk to us as customers do.
//!
//! It lives in a virtual environment of its own, so nothing is installed on the machine, and it
//! is made again only when the requirements or the machine's Python change.

use super::{Service, Variables, install};
use crate::Workspace;
use crate::process::{announce, output, run, succeeds};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const REQUIREMENTS: &str = "tests/python/requirements.txt";

/// Names the interpreter for the tests.
const VARIABLE: &str = "POSTHASTE_TEST_PYTHON";

pub struct Python;

impl Service for Python {
    fn name(&self) -> &'static str {
        "python"
    }

    fn provide(&mut self, workspace: &Workspace) -> Result<Variables, String> {
        let version = interpreter_version()?;
        let requirements_path = workspace.root().join(REQUIREMENTS);
        let requirements = fs::read_to_string(&requirements_path)
            .map_err(|error| format!("cannot read {REQUIREMENTS}: {error}"))?;
        let environment = Environment { folder: workspace.scratch().join("venv") };
        let stamp = format!("{version}\n{requirements}");
        if !environment.is_current(&stamp) {
            environment.create()?;
            environment.install(&requirements_path)?;
            environment.write_stamp(&stamp)?;
        }
        Ok(vec![(VARIABLE, environment.python().into())])
    }
}

fn interpreter_version() -> Result<String, String> {
    let version = || output(Command::new("python3").arg("--version"));
    if let Some(version) = version() {
        return Ok(version);
    }
    let packages = ["python3", "python3-venv"];
    install::debian(&packages)?;
    version().ok_or_else(|| format!("python3 does not run; {}", install::line(&packages)))
}

struct Environment {
    folder: PathBuf,
}

impl Environment {
    fn python(&self) -> PathBuf {
        self.folder.join("bin/python")
    }

    /// The stamp is written last, so it stands only in an environment that is whole.
    fn is_current(&self, stamp: &str) -> bool {
        fs::read_to_string(self.stamp_path()).is_ok_and(|found| found == stamp)
            && succeeds(Command::new(self.python()).arg("--version"))
    }

    fn create(&self) -> Result<(), String> {
        announce("make a virtual environment for Python");
        let packages = ["python3-venv"];
        if self.try_create() {
            return Ok(());
        }
        // Debian ships the interpreter without the part of venv that brings pip.
        install::debian(&packages)?;
        if self.try_create() {
            return Ok(());
        }
        let folder = self.folder.display();
        Err(format!("`python3 -m venv {folder}` fails; {}", install::line(&packages)))
    }

    fn try_create(&self) -> bool {
        succeeds(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&self.folder))
    }

    fn install(&self, requirements: &Path) -> Result<(), String> {
        announce(&format!("install {REQUIREMENTS}"));
        let mut pip = Command::new(self.python());
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .arg("--requirement")
            .arg(requirements);
        run(&mut pip).map_err(|_| {
            format!(
                "pip cannot install {REQUIREMENTS}, see above; it needs a package index (set \
                 PIP_INDEX_URL to use a mirror), then: {} -m pip install -r {REQUIREMENTS}",
                self.python().display()
            )
        })
    }

    fn write_stamp(&self, stamp: &str) -> Result<(), String> {
        let path = self.stamp_path();
        fs::write(&path, stamp).map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    fn stamp_path(&self) -> PathBuf {
        self.folder.join("posthaste-requirements")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_current_only_with_its_stamp_and_an_interpreter() {
        let folder = std::env::temp_dir().join(format!("posthaste-venv-{}", std::process::id()));
        let environment = Environment { folder: folder.clone() };
        assert!(!environment.is_current("one"));
        fs::create_dir_all(folder.join("bin")).unwrap();
        environment.write_stamp("one").unwrap();
        assert!(!environment.is_current("one"), "there is no interpreter");
        std::os::unix::fs::symlink("/bin/true", environment.python()).unwrap();
        assert!(environment.is_current("one"));
        assert!(!environment.is_current("two"), "the requirements have changed");
        fs::remove_dir_all(folder).unwrap();
    }
}
