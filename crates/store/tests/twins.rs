//! Twins: whatever is done to a store on SQLite and to one on PostgreSQL, both answer the same, and
//! hold the same after each step.
//!
//! Sequences of operations are random, and one that parts the two is cut down to its shortest form
//! before it is shown. What may differ is made equal or left out, each with its reason: in
//! `common/dump.rs` what is not compared, in `Pair::untie` why nothing is due at the same time.
//! `Upkeep::forget` is not among the operations: SQLite deletes messages one by one, PostgreSQL
//! drops whole weeks of them and may leave some for later.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test code")]

mod common;

#[path = "twins/apply.rs"]
mod apply;
#[path = "twins/operation.rs"]
mod operation;
#[path = "twins/pair.rs"]
mod pair;
#[path = "twins/reads.rs"]
mod reads;

use operation::{Operation, sequence};
use pair::{Checked, Pair};
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use std::fmt::Write;

/// Sequences of a run; a step takes about 20 ms.
const CASES: u32 = 40;
/// Shorter forms that are tried of one that fails.
const SHRINKS_MAX: u32 = 400;
/// Runs more of them: how many.
const CASES_VARIABLE: &str = "POSTHASTE_TWINS_CASES";

#[test]
fn both_stores_do_the_same() {
    let cases = std::env::var(CASES_VARIABLE).ok().and_then(|text| text.parse().ok());
    let config = Config {
        cases: cases.unwrap_or(CASES),
        max_shrink_iters: SHRINKS_MAX,
        failure_persistence: None,
        ..Config::default()
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.unwrap();
    let done = TestRunner::new(config).run(&sequence(), |operations| {
        runtime.block_on(run(&operations)).map_err(TestCaseError::fail)
    });
    match done {
        Ok(()) => {}
        Err(TestError::Fail(reason, operations)) => panic!("{}", shown(&reason, &operations)),
        Err(error) => panic!("{error}"),
    }
}

async fn run(operations: &[Operation]) -> Checked {
    let mut pair = Pair::new().await;
    for (number, operation) in operations.iter().enumerate() {
        let done = pair.run(operation).await;
        done.map_err(|what| format!("after step {number}, {operation:?}: {what}"))?;
    }
    pair.read_all().await.map_err(|what| format!("at the end: {what}"))
}

fn shown(reason: &impl std::fmt::Display, operations: &[Operation]) -> String {
    let mut text = format!("the twins part {reason}\nin the sequence\n");
    for (number, operation) in operations.iter().enumerate() {
        let _ = writeln!(text, "{number:4} {operation:?}");
    }
    text
}
