//! `cargo xtask lint`: what a reviewer should not have to say.
//!
//! It stands apart from `cargo xtask test` because clippy compiles everything a second time, and
//! because a newer toolchain has new lints, which must not fail a newcomer's first test run.

use crate::process::{announce, cargo, has_cargo, run as run_program};
use crate::{Failure, Workspace, tidy};

/// Lints that hold for what we ship but not for its tests.
const NOT_IN_TESTS: [&str; 4] = ["disallowed_methods", "unwrap_used", "expect_used", "panic"];

pub fn run(workspace: &Workspace) -> Result<(), Failure> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if !has_cargo(workspace, subcommand) {
            let line = format!("rustup component add {component}");
            return Err(Failure::new(format!("cargo {subcommand} is missing; {line}")));
        }
    }
    tidy::run(workspace)?;
    format_check(workspace)?;
    announce("clippy, what we ship");
    run_program(cargo(workspace).args([
        "clippy",
        "--workspace",
        "--lib",
        "--bins",
        "--",
        "--deny",
        "warnings",
    ]))?;
    announce("clippy, tests");
    let mut tests = cargo(workspace);
    tests.args(["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]);
    for lint in NOT_IN_TESTS {
        tests.args(["--allow", &format!("clippy::{lint}")]);
    }
    run_program(&mut tests)
}

/// Refuses what `cargo fmt` would change.
pub fn format_check(workspace: &Workspace) -> Result<(), Failure> {
    announce("format");
    run_program(cargo(workspace).args(["fmt", "--all", "--check"])).map_err(|failure| {
        let message = "the files above are not formatted; run `cargo fmt --all`";
        Failure { message: Some(message.to_owned()), ..failure }
    })
}
