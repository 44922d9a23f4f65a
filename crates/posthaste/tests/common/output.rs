//! What a command printed, and the code it ended with.

use super::Setup;
use std::process::Output;

/// Runs a command that ends by itself.
pub fn ended(setup: &Setup, words: &[&str]) -> Output {
    setup.run(words).current_dir(setup.folder()).output().unwrap()
}

/// The only line on standard error, of a command that ends with `code`.
#[track_caller]
pub fn complaint(output: &Output, code: i32) -> String {
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    let lines: Vec<_> = stderr.lines().collect();
    assert_eq!(lines.len(), 1, "one line, not: {stderr}");
    assert!(lines[0].starts_with("posthaste: "), "{stderr}");
    lines[0].to_owned()
}

/// Standard output, of a command that ends well.
pub fn printed(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}
