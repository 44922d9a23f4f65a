//! How a command ends when it cannot do what it was asked: one line for a person, one number for
//! a script.

use std::fmt;

/// What went wrong did so at work: the store, the network, a check that failed.
pub const FAILED: u8 = 1;
/// The command line or the configuration is wrong; nothing was done.
pub const USAGE: u8 = 2;
/// The server could not be reached.
pub const UNREACHABLE: u8 = 3;
/// The server was reached and said no.
pub const REFUSED: u8 = 4;
/// A second signal cut the shutdown short.
pub const INTERRUPTED: u8 = 130;

/// **Invariant:** `line` is one line, and holds no secret.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub line: String,
}

impl Failure {
    pub fn new(line: impl Into<String>) -> Self {
        Self::with(FAILED, line)
    }

    pub fn usage(line: impl Into<String>) -> Self {
        Self::with(USAGE, line)
    }

    pub fn with(code: u8, line: impl Into<String>) -> Self {
        Self { code, line: one_line(&line.into()) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

/// What other crates say may span lines or hold what a terminal would obey.
fn one_line(text: &str) -> String {
    let words = text.split(|character: char| character.is_control() || character == ' ');
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        assert_eq!(Failure::new("a\n  b\x1b[31m").line, "a b [31m");
    }
}
