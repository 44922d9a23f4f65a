//! The pages that a repository owes its readers, and decisions that fit on one page.

use super::{Finding, SourceFile, Tree};

const PAGES: [&str; 7] = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "docs/ARCHITECTURE.md",
    "docs/STYLE.md",
    "docs/states.md",
];

const ADR_FOLDER: &str = "docs/adr/";
const ADR_LINES_MAX: usize = 40;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let missing =
        PAGES.iter().filter(|path| tree.get(path).is_none_or(|page| page.text.trim().is_empty()));
    let mut findings: Vec<_> =
        missing.map(|path| Finding::new(path, 1, "docs", "this page is missing")).collect();
    let records: Vec<_> =
        tree.files.iter().filter(|file| file.path.starts_with(ADR_FOLDER)).collect();
    for file in &records {
        findings.extend(record(file, &records));
    }
    findings
}

fn record(file: &SourceFile, records: &[&SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = file.text.lines().count();
    if lines > ADR_LINES_MAX {
        let message = format!("{lines} lines, at most {ADR_LINES_MAX}: one decision, one page");
        findings.push(Finding::new(&file.path, ADR_LINES_MAX + 1, "adr", message));
    }
    if file.path == "docs/adr/README.md" {
        return findings;
    }
    match number(&file.path) {
        None => {
            let message = "an ADR is called NNNN-what-was-decided.md";
            findings.push(Finding::new(&file.path, 1, "adr", message));
        }
        Some(own) => {
            let first = records.iter().find(|other| number(&other.path) == Some(own));
            if first.is_some_and(|first| first.path != file.path) {
                let message = format!("another ADR has the number {own}");
                findings.push(Finding::new(&file.path, 1, "adr", message));
            }
        }
    }
    findings
}

fn number(path: &str) -> Option<&str> {
    let (number, slug) = path.strip_prefix(ADR_FOLDER)?.strip_suffix(".md")?.split_once('-')?;
    let numbered = number.len() == 4 && number.bytes().all(|byte| byte.is_ascii_digit());
    let named = !slug.is_empty()
        && slug.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    (numbered && named).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let pages = PAGES.iter().map(|path| (*path, "text"));
        let files: Vec<_> = pages.chain(files.iter().copied()).collect();
        check(&Tree::of(&files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_missing_or_empty_page_is_found() {
        let found = check(&Tree::of(&[("README.md", "text"), ("CHANGELOG.md", "\n")]));
        let paths: Vec<_> = found.iter().map(|finding| finding.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "CHANGELOG.md",
                "CONTRIBUTING.md",
                "LICENSE",
                "docs/ARCHITECTURE.md",
                "docs/STYLE.md",
                "docs/states.md",
            ]
        );
    }

    #[test]
    fn a_long_decision_is_found() {
        assert!(findings(&[("docs/adr/0001-a.md", &"a\n".repeat(40))]).is_empty());
        let found = findings(&[("docs/adr/0001-a.md", &"a\n".repeat(41))]);
        let expected = "docs/adr/0001-a.md:41: adr: 41 lines, at most 40: one decision, one page";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_decision_without_its_own_number_is_found() {
        let found = findings(&[
            ("docs/adr/README.md", "a"),
            ("docs/adr/0001-a.md", "a"),
            ("docs/adr/0001-b.md", "a"),
            ("docs/adr/2-c.md", "a"),
        ]);
        assert_eq!(
            found,
            [
                "docs/adr/0001-b.md:1: adr: another ADR has the number 0001",
                "docs/adr/2-c.md:1: adr: an ADR is called NNNN-what-was-decided.md",
            ]
        );
    }
}
