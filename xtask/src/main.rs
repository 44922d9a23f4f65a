//! `cargo xtask`: the one entry to everything that tends this repository.

use std::process::ExitCode;
use xtask::{Workspace, chaos, lint, test, tidy};

const HELP: &str = "\
cargo xtask <command>

  test [-- <arguments>]  Provides what the tests need, checks tidiness and runs all tests.
                         Arguments go to the test runner; with them only matching tests run:
                           cargo xtask test -- breaker
  tidy                   Checks the rules of docs/STYLE.md that a compiler does not know.
  lint                   tidy, rustfmt and clippy, warnings refused. Run it before a commit.
  chaos [--rounds <n>]   Kills the server at random moments and looks for lost messages
                         (20 rounds unless told otherwise).
  help                   This page.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let workspace = Workspace::locate();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["test"] => test::run(&workspace, &[]),
        ["test", "--", rest @ ..] => test::run(&workspace, rest),
        ["tidy"] => tidy::run(&workspace),
        ["lint"] => lint::run(&workspace),
        ["chaos"] => chaos::run(&workspace, chaos::ROUNDS),
        ["chaos", "--rounds", rounds] => {
            chaos::parse_rounds(rounds).and_then(|rounds| chaos::run(&workspace, rounds))
        }
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("xtask: unknown command `{}`\n\n{HELP}", words.join(" "));
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(message) = &failure.message {
                eprintln!("xtask: {message}");
            }
            ExitCode::from(failure.code)
        }
    }
}
