//! Installs Debian packages where we may, and otherwise gives the line to do it with.

use crate::process::{announce, output, run, succeeds};
use std::process::Command;

/// The line that a person can paste.
pub fn line(packages: &[&str]) -> String {
    format!("sudo apt-get update && sudo apt-get install -y {}", packages.join(" "))
}

/// Installs the packages if we are root on a machine with apt-get. The error is the line to
/// install them with.
pub fn debian(packages: &[&str]) -> Result<(), String> {
    let root = output(Command::new("id").arg("-u")).is_some_and(|id| id == "0");
    if !root || !succeeds(Command::new("apt-get").arg("--version")) {
        return Err(format!("install it: {}", line(packages)));
    }
    announce(&format!("apt-get install {}", packages.join(" ")));
    // A fresh image has no package lists, but asking for them costs time where they exist.
    if run(&mut install(packages)).is_ok() {
        return Ok(());
    }
    run(apt_get().arg("update"))
        .and_then(|()| run(&mut install(packages)))
        .map_err(|_| format!("apt-get failed, see above; install it: {}", line(packages)))
}

fn install(packages: &[&str]) -> Command {
    let mut command = apt_get();
    command.args(["install", "-y", "--no-install-recommends"]).args(packages);
    command
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.arg("-q").env("DEBIAN_FRONTEND", "noninteractive");
    command
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_line_names_every_package() {
        let line = super::line(&["python3", "python3-venv"]);
        assert!(line.ends_with("apt-get install -y python3 python3-venv"), "{line}");
    }
}
