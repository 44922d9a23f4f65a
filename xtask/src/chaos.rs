//! `cargo xtask chaos`: kill -9 at random moments under load, and no message may be lost.
//!
//! The tests are `chaos.rs`, `chaos_postgres.rs` and `cluster.rs` of `crates/posthaste/tests`; here
//! the first two only get more rounds.

use crate::process::{announce, cargo, run as run_program};
use crate::services;
use crate::{Failure, Workspace};

/// How many kills a run has unless told otherwise.
pub const ROUNDS: u32 = 20;

/// The variable that tells the test how often to kill.
pub const ROUNDS_VARIABLE: &str = "POSTHASTE_CHAOS_ROUNDS";

pub fn run(workspace: &Workspace, rounds: u32) -> Result<(), Failure> {
    let provided = services::provide(workspace, services::all())?;
    announce(&format!("chaos, {rounds} rounds"));
    run_program(
        cargo(workspace)
            .args(["test", "--package", "posthaste"])
            .args(["--test", "chaos", "--test", "chaos_postgres", "--test", "cluster"])
            .args(["--", "--include-ignored", "--nocapture"])
            .envs(provided.environment())
            .env(ROUNDS_VARIABLE, rounds.to_string()),
    )
}

pub fn parse_rounds(text: &str) -> Result<u32, Failure> {
    match text.parse() {
        Ok(rounds) if rounds > 0 => Ok(rounds),
        _ => Err(Failure::new(format!("--rounds must be a number above 0, not `{text}`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_rounds;

    #[test]
    fn rounds_are_a_positive_number() {
        assert_eq!(parse_rounds("3").unwrap(), 3);
        for bad in ["0", "-1", "many", ""] {
            assert!(parse_rounds(bad).is_err(), "{bad}");
        }
    }
}
