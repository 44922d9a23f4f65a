//! Paths of somebody's machine do not belong into the repository.

use super::{Finding, Tree};
use std::path::Path;

/// Folders that exist on one machine only, or that an example should not teach to use.
const MACHINE_PATHS: [&str; 4] = ["/tmp/", "/home/", "/root/", "/Users/"];

/// It has to name them.
const OWN_PATH: &str = "xtask/src/tidy/words.rs";

/// `root` is where this checkout lies; a short path such as `/srv` could be a word of its own.
pub fn check(tree: &Tree, root: &Path) -> Vec<Finding> {
    let root = (root.components().count() > 2).then(|| root.to_string_lossy().into_owned());
    let words: Vec<&str> = MACHINE_PATHS.into_iter().chain(root.as_deref()).collect();
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| !file.is_test() && file.path != OWN_PATH) {
        for (index, line) in file.text.lines().enumerate() {
            for word in words.iter().filter(|word| line.contains(**word)) {
                let message = format!("`{word}` is a path of one machine");
                findings.push(Finding::new(&file.path, index + 1, "machine-path", message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let tree = Tree::of(&[(path, text)]);
        let found = check(&tree, Path::new("/srv/checkouts/posthaste"));
        found.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn the_path_of_a_machine_is_found() {
        for word in MACHINE_PATHS {
            assert_eq!(lines("README.md", &format!("text\nin {word}a\n")), [2], "{word}");
        }
        assert_eq!(lines("a.rs", "// see /srv/checkouts/posthaste/b\n"), [1]);
        assert_eq!(lines("README.md", "usr/bin/env in /etc/\n"), [] as [usize; 0]);
    }

    #[test]
    fn tests_may_make_temporary_files() {
        assert_eq!(lines("crates/store/tests/a.rs", "\"/tmp/a\"\n"), [] as [usize; 0]);
    }
}
