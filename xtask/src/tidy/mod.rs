//! `cargo xtask tidy`: the rules of `docs/STYLE.md` and `docs/ARCHITECTURE.md` that no compiler
//! checks, as a test.
//!
//! Each rule reads the whole tree and gives its findings; each has a test with a made-up offence
//! that proves that it can fail. Text is read as text: a rule may be fooled by someone who wants
//! to fool it, but not by comments and string literals.

mod calls;
mod docs;
mod layers;
mod manifest;
mod rust;
mod size;
mod sql;
mod words;

use crate::process::{announce, output};
use crate::{Failure, Workspace};
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

/// One breach of one rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    pub path: String,
    /// Counted from 1.
    pub line: usize,
    pub rule: &'static str,
    pub message: String,
}

impl Finding {
    fn new(path: &str, line: usize, rule: &'static str, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.message)
    }
}

/// A text file; `path` is relative to the root, with `/` between its parts.
pub struct SourceFile {
    path: String,
    text: String,
}

impl SourceFile {
    fn has_extension(&self, extensions: &[&str]) -> bool {
        let extension = Path::new(&self.path).extension();
        extension.is_some_and(|found| extensions.iter().any(|extension| found == *extension))
    }

    /// Whether none of it is shipped: tests, measurements and examples. The conformance suites and
    /// the test kit are libraries, but what they do is assert.
    fn is_test(&self) -> bool {
        let stem = Path::new(&self.path).file_stem().and_then(|stem| stem.to_str());
        let stem = stem.unwrap_or_default();
        stem == "tests"
            || stem.ends_with("_tests")
            || self.path.starts_with("crates/testkit/")
            || self
                .path
                .split('/')
                .rev()
                .skip(1)
                .any(|folder| matches!(folder, "tests" | "benches" | "examples" | "conformance"))
            || stem == "conformance"
    }
}

/// All text files of the repository.
pub struct Tree {
    files: Vec<SourceFile>,
}

impl Tree {
    /// Reads what git tracks and what it would track; other people's droppings are not ours.
    pub fn read(root: &Path) -> Result<Self, Failure> {
        let listing = output(Command::new("git").arg("-C").arg(root).args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
        ]));
        let paths = match listing {
            Some(listing) => listing.lines().map(str::to_owned).collect(),
            None => walk(root, root),
        };
        let mut files: Vec<_> = paths
            .into_iter()
            // A file that is binary, or was just removed, has no text to check.
            .filter_map(|path| {
                fs::read_to_string(root.join(&path)).ok().map(|text| SourceFile { path, text })
            })
            .collect();
        if files.is_empty() {
            return Err(Failure::new(format!("no files under {}", root.display())));
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files.dedup_by(|a, b| a.path == b.path);
        Ok(Self { files })
    }

    fn get(&self, path: &str) -> Option<&SourceFile> {
        self.files.iter().find(|file| file.path == path)
    }

    fn rust(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter(|file| file.has_extension(&["rs"]))
    }

    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| SourceFile {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        };
        Self { files: files.iter().map(file).collect() }
    }
}

/// The command: prints every finding and fails if there is one.
pub fn run(workspace: &Workspace) -> Result<(), Failure> {
    announce("tidy");
    let findings = check(&Tree::read(workspace.root())?, workspace.root());
    for finding in &findings {
        eprintln!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        count => Err(Failure::new(format!("tidy: {count} findings"))),
    }
}

/// All findings of all rules, in the order of the files. `root` is where the tree lies: no file
/// may say so.
pub fn check(tree: &Tree, root: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(layers::check(tree));
    findings.extend(size::check(tree));
    findings.extend(calls::check(tree));
    findings.extend(sql::check(tree));
    findings.extend(docs::check(tree));
    findings.extend(words::check(tree, root));
    findings.sort();
    findings
}

/// The fallback where there is no git, such as an unpacked archive.
fn walk(root: &Path, folder: &Path) -> Vec<String> {
    const IGNORED: [&str; 3] = [".git", "target", "posthaste-data"];
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            if !IGNORED.iter().any(|ignored| entry.file_name() == *ignored) {
                paths.extend(walk(root, &path));
            }
        } else if let Ok(relative) = path.strip_prefix(root) {
            paths.push(relative.to_string_lossy().replace('\\', "/"));
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        let workspace = Workspace::locate();
        let tree = Tree::read(workspace.root()).unwrap();
        let findings = check(&tree, workspace.root());
        let lines: Vec<_> = findings.iter().map(Finding::to_string).collect();
        assert!(lines.is_empty(), "{} findings\n{}", lines.len(), lines.join("\n"));
    }

    #[test]
    fn without_git_the_same_files_are_found() {
        let root = Workspace::locate().root().join("xtask");
        let walked = walk(&root, &root);
        assert!(walked.contains(&"src/tidy/mod.rs".to_owned()), "{walked:?}");
    }

    #[test]
    fn a_finding_prints_as_editors_expect() {
        let finding = Finding::new("a/b.rs", 3, "line-width", "too wide");
        assert_eq!(finding.to_string(), "a/b.rs:3: line-width: too wide");
    }

    #[test]
    fn test_files_are_told_by_their_path() {
        let is_test =
            |path: &str| SourceFile { path: path.to_owned(), text: String::new() }.is_test();
        assert!(is_test("crates/store/tests/races.rs"));
        assert!(is_test("crates/core/src/breaker/tests.rs"));
        assert!(is_test("crates/core/src/breaker_tests.rs"));
        assert!(is_test("crates/store/src/conformance/outbox.rs"));
        assert!(is_test("crates/testkit/src/lib.rs"));
        assert!(is_test("crates/store/examples/rate.rs"));
        assert!(!is_test("crates/core/src/breaker.rs"));
        assert!(!is_test("xtask/src/test.rs"));
    }
}
