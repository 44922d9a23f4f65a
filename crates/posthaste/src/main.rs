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

use mimalloc::MiMalloc;
use std::process::ExitCode;

/// Messages are allocated on one thread and freed on another all the time, which the C library's
/// allocator pays for with locks.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("posthaste: {failure}");
            ExitCode::from(failure.code)
        }
    }
}
