//! `cargo xtask test`: everything a change has to pass, on a machine that has only Rust.
//!
//! The order is cheap first, and the runner last, so that its summary is the last line printed and
//! its exit code is ours. Doc tests run before it, because nextest does not know them.

use crate::process::{announce, cargo, has_cargo, run as run_program};
use crate::services::{self, Provided};
use crate::{Failure, Workspace, lint, tidy};

/// `arguments` go to the runner. With any, only the tests they select run, without doc tests.
pub fn run(workspace: &Workspace, arguments: &[&str]) -> Result<(), Failure> {
    tidy::run(workspace)?;
    if has_cargo(workspace, "fmt") {
        lint::format_check(workspace)?;
    } else {
        announce("format: not checked, rustfmt is missing (rustup component add rustfmt)");
    }
    // Lives until the runner has ended, well or not: dropping it stops what it started.
    let provided = services::provide(workspace, services::all())?;
    if arguments.is_empty() {
        announce("doc tests");
        run_with(&provided, cargo(workspace).args(["test", "--workspace", "--doc", "--quiet"]))?;
    }
    announce("tests");
    let mut runner = cargo(workspace);
    if has_cargo(workspace, "nextest") {
        runner.args(["nextest", "run", "--workspace", "--no-fail-fast"]).args(arguments);
    } else {
        runner
            .args(["test", "--workspace", "--no-fail-fast"])
            .args(["--lib", "--bins", "--tests", "--examples"])
            .arg("--")
            .args(arguments);
    }
    run_with(&provided, &mut runner)
}

fn run_with(provided: &Provided, command: &mut std::process::Command) -> Result<(), Failure> {
    run_program(command.envs(provided.environment()))
}
