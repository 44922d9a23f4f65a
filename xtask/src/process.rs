//! Starts other programs, with an environment that does not depend on how xtask was started.

use crate::{Failure, Workspace};
use std::process::{Command, Stdio};

/// Cargo sets these for the program it runs. Build scripts watch some of them, so handing them on
/// would rebuild those crates each time that `cargo build` and `cargo xtask` take turns.
const OWN_ENVIRONMENT: [&str; 4] =
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_PRIMARY_"];

/// The cargo that runs us, in the root of the workspace.
pub fn cargo(workspace: &Workspace) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(workspace.root());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if OWN_ENVIRONMENT.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// Whether `cargo <subcommand>` exists on this machine.
pub fn has_cargo(workspace: &Workspace, subcommand: &str) -> bool {
    succeeds(cargo(workspace).args([subcommand, "--version"]))
}

/// Runs to the end with the terminal's output; the failure carries the program's exit code.
pub fn run(command: &mut Command) -> Result<(), Failure> {
    let status = command.status().map_err(|error| {
        Failure::new(format!("cannot start {}: {error}", command.get_program().display()))
    })?;
    if status.success() {
        return Ok(());
    }
    // No code means that a signal ended the program.
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Err(Failure { code, message: None })
}

/// Runs in silence; false also when the program does not exist.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// What the program printed, if it ended well.
pub fn output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Announces a step, on the stream that cargo itself reports on.
pub fn announce(step: &str) {
    eprintln!("==> {step}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_of_a_program_becomes_ours() {
        let failure = run(Command::new("sh").args(["-c", "exit 7"])).unwrap_err();
        assert_eq!(failure.code, 7);
        assert!(failure.message.is_none());
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let failure = run(&mut Command::new("posthaste-no-such-program")).unwrap_err();
        assert!(failure.message.unwrap().contains("posthaste-no-such-program"));
        assert!(!succeeds(&mut Command::new("posthaste-no-such-program")));
    }

    #[test]
    fn cargo_does_not_inherit_the_variables_of_the_package_that_runs() {
        let command = cargo(&Workspace::locate());
        let removed: Vec<_> = command
            .get_envs()
            .filter(|(_, value)| value.is_none())
            .map(|(name, _)| name.to_string_lossy().into_owned())
            .collect();
        assert!(removed.contains(&"CARGO_MANIFEST_DIR".to_owned()), "{removed:?}");
    }
}
