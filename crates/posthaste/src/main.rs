//! Wires: configuration, command line, start and stop. The only real clock and dice.

mod bench;
mod cli;
mod client;
mod config;
mod demo;
mod env;
mod failure;
mod logging;
mod secrets;
mod serve;
mod store;
mod token;
mod welcome;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("posthaste: {failure}");
            ExitCode::from(failure.code)
        }
    }
}
