//! The official client libraries against the real binary, as our users' programs use them.

mod common;

use common::Setup;
use std::process::Command;

/// The interpreter with the libraries of `tests/python/requirements.txt`.
const PYTHON: &str = "POSTHASTE_TEST_PYTHON";

#[test]
fn the_python_client_does_all_of_tier_1() {
    let python = std::env::var_os(PYTHON).unwrap_or_else(|| {
        panic!("{PYTHON} is not set; run the tests with `cargo xtask test`, which makes it")
    });
    // Whole messages fail on purpose here; a breaker that opens would only make the test wait.
    let posthaste = Setup::new().with("POSTHASTE_BREAKER__FAILURE_THRESHOLD", "1000").start();
    let ran = Command::new(python)
        // The client leaves its sockets to the garbage collector, which would tell of each.
        .args(["-W", "ignore::ResourceWarning", "-m", "unittest", "--verbose"])
        .args(["test_access", "test_catalog", "test_deliveries", "test_pages"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/python"))
        .env("POSTHASTE_TEST_URL", posthaste.url())
        .env("POSTHASTE_TEST_TOKEN", common::token())
        // Nothing is left beside the sources.
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let printed = [&ran.stdout[..], &ran.stderr[..]].concat();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&printed));
}
