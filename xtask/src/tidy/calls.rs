//! Calls that the house has banned, where they are allowed all the same, and exceptions that have
//! outlived their cause.

use super::rust::{Layers, find_words, item_end, line_of, test_items};
use super::{Finding, SourceFile, Tree};
use std::ops::Range;

struct Ban {
    rule: &'static str,
    needles: &'static [&'static str],
    /// The ban holds under these paths; an empty list means everywhere.
    within: &'static [&'static str],
    /// Whoever owns the thing, or has nothing to do with the reason.
    not_within: &'static [&'static str],
    /// A lint that a visible `#[expect(...)]` can name to lift the ban for one item.
    lint: Option<&'static str>,
    in_tests: bool,
    instead: &'static str,
}

const BANS: [Ban; 9] = [
    Ban {
        rule: "clock",
        needles: &["SystemTime::now", "Instant::now", "UNIX_EPOCH.elapsed"],
        within: &["crates/", "sim/"],
        not_within: &["crates/posthaste/"],
        lint: None,
        in_tests: false,
        instead: "take `now` as an argument; the only real clock is in crates/posthaste",
    },
    Ban {
        rule: "dice",
        needles: &["rand::", "thread_rng", "getrandom", "fastrand::", "SystemRandom"],
        within: &["crates/", "sim/"],
        not_within: &["crates/posthaste/"],
        lint: None,
        in_tests: false,
        instead: "take the roll as an argument; the only real dice are in crates/posthaste",
    },
    Ban {
        rule: "hash-order",
        needles: &["HashMap", "HashSet"],
        within: &["crates/core/"],
        not_within: &[],
        lint: None,
        in_tests: false,
        instead: "use BTreeMap or BTreeSet: a decision may not depend on a random order",
    },
    Ban {
        rule: "unbounded",
        needles: &["unbounded_channel", "UnboundedSender", "UnboundedReceiver"],
        within: &[],
        not_within: &[],
        lint: None,
        in_tests: true,
        instead: "use a channel with a bound from core::limits",
    },
    Ban {
        rule: "unwrap",
        needles: &[".unwrap()", ".unwrap_err()"],
        within: &[],
        not_within: &[],
        lint: Some("clippy::unwrap_used"),
        in_tests: false,
        instead: "return an error, or make the bad case impossible to write",
    },
    Ban {
        rule: "unwrap",
        needles: &[".expect(", ".expect_err("],
        within: &[],
        not_within: &[],
        lint: Some("clippy::expect_used"),
        in_tests: false,
        instead: "return an error, or make the bad case impossible to write",
    },
    Ban {
        rule: "allow",
        needles: &["#[allow(", "#![allow("],
        within: &[],
        not_within: &[],
        lint: None,
        in_tests: true,
        instead: "use #[expect(lint, reason = \"...\")], which expires with its cause",
    },
    Ban {
        rule: "print",
        needles: &["println!", "eprintln!", "print!", "eprint!", "dbg!"],
        within: &[],
        not_within: &["crates/posthaste/", "xtask/", "examples/"],
        lint: None,
        in_tests: false,
        instead: "log with tracing; only the command line prints",
    },
    Ban {
        rule: "sleep",
        needles: &["thread::sleep"],
        within: &["crates/"],
        not_within: &["crates/posthaste/"],
        lint: None,
        in_tests: false,
        instead: "wait for the event itself, with a timeout",
    },
];

struct Exception {
    rule: &'static str,
    /// The beginning of the paths that it covers.
    path: &'static str,
    reason: &'static str,
}

/// All exceptions. One that nothing needs any more is a finding itself.
const EXCEPTIONS: [Exception; 2] = [
    Exception {
        rule: "clock",
        path: "crates/engine/src/courier",
        reason: "measures an exchange with the monotonic clock; nothing is decided by it",
    },
    Exception {
        rule: "clock",
        path: "crates/store/src/monotonic.rs",
        reason: "paces commits and ages copies; no row depends on it",
    },
];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let scanned = Scanned::of(file);
        for ban in &BANS {
            findings.extend(banned(&scanned, ban));
        }
        findings.extend(std_channels(&scanned));
        findings.extend(sql_elsewhere(&scanned));
        findings.extend(todos(file, &scanned.layers.comments));
    }
    for file in tree.files.iter().filter(|file| file.has_extension(&["sql", "sh", "py", "js"])) {
        findings.extend(todos(file, &file.text));
    }
    lift_exceptions(findings)
}

struct Scanned<'a> {
    file: &'a SourceFile,
    layers: Layers,
    test_items: Vec<Range<usize>>,
}

impl<'a> Scanned<'a> {
    fn of(file: &'a SourceFile) -> Self {
        let layers = Layers::of(&file.text);
        let test_items = test_items(&layers.code);
        Self { file, layers, test_items }
    }

    fn is_test(&self, offset: usize) -> bool {
        self.file.is_test() || self.test_items.iter().any(|item| item.contains(&offset))
    }

    fn finding(&self, offset: usize, rule: &'static str, message: String) -> Finding {
        Finding::new(&self.file.path, line_of(&self.file.text, offset), rule, message)
    }
}

fn banned(scanned: &Scanned, ban: &Ban) -> Vec<Finding> {
    let under = |prefix: &&str| scanned.file.path.starts_with(*prefix);
    let within = ban.within.is_empty() || ban.within.iter().any(under);
    if !within || ban.not_within.iter().any(under) {
        return Vec::new();
    }
    let code = &scanned.layers.code;
    let expected = ban.lint.map(|lint| expected_items(code, lint)).unwrap_or_default();
    let mut findings = Vec::new();
    for needle in ban.needles {
        for offset in find_words(code, needle) {
            let tested = !ban.in_tests && scanned.is_test(offset);
            if !tested && !expected.iter().any(|item| item.contains(&offset)) {
                let message = format!("`{needle}`: {}", ban.instead);
                findings.push(scanned.finding(offset, ban.rule, message));
            }
        }
    }
    findings
}

/// The items under an `#[expect(...)]` that names the lint; the whole file for `#![expect(...)]`.
fn expected_items(code: &str, lint: &str) -> Vec<Range<usize>> {
    let names_lint = |start: usize| {
        let attribute = code.get(start..).and_then(|rest| rest.split(']').next());
        attribute.is_some_and(|attribute| attribute.contains(lint))
    };
    let outer = code.match_indices("#[expect(").map(|(start, _)| start);
    let inner = code.match_indices("#![expect(").map(|(start, _)| start);
    outer
        .filter(|start| names_lint(*start))
        .map(|start| start..item_end(code, start))
        .chain(inner.filter(|start| names_lint(*start)).map(|_| 0..code.len()))
        .collect()
}

/// The standard library's `mpsc::channel` takes no bound; tokio's namesake takes one.
fn std_channels(scanned: &Scanned) -> Vec<Finding> {
    let code = &scanned.layers.code;
    find_words(code, "mpsc::channel")
        .into_iter()
        .filter(|offset| {
            let rest = code.get(offset + "mpsc::channel".len()..).unwrap_or_default();
            rest.split_once('(').is_some_and(|(between, arguments)| {
                let called = between.is_empty() || between.starts_with("::<");
                called && arguments.trim_start().starts_with(')')
            })
        })
        .map(|offset| {
            let message = "`mpsc::channel()`: use sync_channel, which has a bound".to_owned();
            scanned.finding(offset, "unbounded", message)
        })
        .collect()
}

/// Literals that only a statement of SQL has.
fn sql_elsewhere(scanned: &Scanned) -> Vec<Finding> {
    const STATEMENTS: [&str; 4] = ["INSERT INTO ", "DELETE FROM ", "CREATE TABLE ", "PRAGMA "];
    let path = &scanned.file.path;
    if path.starts_with("crates/store/") || path.starts_with("xtask/") {
        return Vec::new();
    }
    let strings = &scanned.layers.strings;
    STATEMENTS
        .iter()
        .flat_map(|statement| find_words(strings, statement))
        .filter(|offset| !scanned.is_test(*offset))
        .map(|offset| {
            let message = "SQL lives in crates/store only".to_owned();
            scanned.finding(offset, "sql-place", message)
        })
        .collect()
}

/// A note to oneself has the number of an issue, `TODO(#12)`, or is not worth keeping.
fn todos(file: &SourceFile, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for word in ["TODO", "FIXME", "XXX"] {
        for offset in find_words(text, word) {
            let rest = text.get(offset + word.len()..).unwrap_or_default();
            let number = rest.strip_prefix("(#").and_then(|rest| rest.chars().next());
            if !number.is_some_and(|first| first.is_ascii_digit()) {
                let message = format!("`{word}` without an issue; write `{word}(#number)`");
                findings.push(Finding::new(&file.path, line_of(text, offset), "todo", message));
            }
        }
    }
    findings
}

fn lift_exceptions(findings: Vec<Finding>) -> Vec<Finding> {
    let mut used = [false; EXCEPTIONS.len()];
    let mut kept = Vec::new();
    for finding in findings {
        let exception = EXCEPTIONS.iter().position(|exception| {
            exception.rule == finding.rule && finding.path.starts_with(exception.path)
        });
        match exception.and_then(|index| used.get_mut(index)) {
            Some(used) => *used = true,
            None => kept.push(finding),
        }
    }
    for (exception, _) in EXCEPTIONS.iter().zip(used).filter(|(_, used)| !used) {
        let Exception { rule, path, reason } = exception;
        let message = format!("nothing needs the exception from `{rule}` any more ({reason})");
        kept.push(Finding::new(path, 1, "exceptions", message));
    }
    kept
}

#[cfg(test)]
#[path = "calls_tests.rs"]
mod tests;
