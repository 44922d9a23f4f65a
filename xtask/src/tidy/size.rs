//! Sizes: files, functions and lines that a reader can hold in the head; and modules that open
//! with what they are for.

use super::rust::{Layers, functions, line_of, test_items};
use super::{Finding, SourceFile, Tree};

/// Lines of a file, its `#[cfg(test)]` parts not counted.
const FILE_LINES_MAX: usize = 500;
/// Lines of a file that holds tests only.
const TEST_FILE_LINES_MAX: usize = 900;
const FUNCTION_LINES_MAX: usize = 70;
const LINE_COLUMNS_MAX: usize = 100;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let layers = Layers::of(&file.text);
        findings.extend(file_size(file, &layers));
        findings.extend(function_size(file, &layers));
        findings.extend(module_doc(file));
    }
    for file in tree.files.iter().filter(|file| file.has_extension(&["rs", "sql"])) {
        findings.extend(line_width(file));
    }
    findings
}

fn file_size(file: &SourceFile, layers: &Layers) -> Option<Finding> {
    let total = file.text.lines().count();
    let (lines, max) = if file.is_test() {
        (total, TEST_FILE_LINES_MAX)
    } else {
        (total - test_lines(&layers.code), FILE_LINES_MAX)
    };
    (lines > max).then(|| {
        let message = format!("{lines} lines, at most {max}; split it by what its parts are for");
        Finding::new(&file.path, max + 1, "file-size", message)
    })
}

fn test_lines(code: &str) -> usize {
    let mut covered = vec![false; code.lines().count()];
    for item in test_items(code) {
        let first = line_of(code, item.start) - 1;
        let last = line_of(code, item.end.saturating_sub(1)) - 1;
        for line in covered.iter_mut().take(last + 1).skip(first) {
            *line = true;
        }
    }
    covered.into_iter().filter(|line| *line).count()
}

fn function_size(file: &SourceFile, layers: &Layers) -> Vec<Finding> {
    functions(&layers.code)
        .into_iter()
        .filter(|function| function.body_lines > FUNCTION_LINES_MAX)
        .map(|function| {
            let (name, lines) = (function.name, function.body_lines);
            let message = format!("`{name}` has {lines} lines, at most {FUNCTION_LINES_MAX}");
            Finding::new(&file.path, function.line, "function-size", message)
        })
        .collect()
}

fn module_doc(file: &SourceFile) -> Option<Finding> {
    let described = file.text.trim_start().starts_with("//!");
    (!described && !file.is_test()).then(|| {
        let message = "a module opens with `//!` and what it is for";
        Finding::new(&file.path, 1, "module-doc", message)
    })
}

fn line_width(file: &SourceFile) -> Vec<Finding> {
    let width = |line: &str| line.chars().count();
    file.text
        .lines()
        .enumerate()
        .filter(|(_, line)| width(line) > LINE_COLUMNS_MAX)
        .map(|(index, line)| {
            let message = format!("{} columns, at most {LINE_COLUMNS_MAX}", width(line));
            Finding::new(&file.path, index + 1, "line-width", message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        let tree = Tree::of(&[(path, text)]);
        check(&tree).into_iter().map(|finding| (finding.line, finding.rule)).collect()
    }

    #[test]
    fn a_long_file_is_found_but_its_tests_do_not_count() {
        let lines = |count: usize| "const A: u8 = 0;\n".repeat(count);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", lines(400));
        let fits = format!("//! A.\n{}{tests}", lines(499));
        assert_eq!(findings("a.rs", &fits), []);
        let long = format!("//! A.\n{}{tests}", lines(500));
        assert_eq!(findings("a.rs", &long), [(501, "file-size")]);
        assert_eq!(findings("tests/a.rs", &lines(900)), []);
        assert_eq!(findings("tests/a.rs", &lines(901)), [(901, "file-size")]);
    }

    #[test]
    fn a_long_function_is_found() {
        let function = |count: usize| format!("//! A.\nfn a() {{\n{}}}\n", "b();\n".repeat(count));
        assert_eq!(findings("a.rs", &function(70)), []);
        assert_eq!(findings("a.rs", &function(71)), [(2, "function-size")]);
    }

    #[test]
    fn a_wide_line_is_found_in_rust_and_sql() {
        let line = |columns: usize| format!("//!{}\n", "é".repeat(columns - 3));
        assert_eq!(findings("a.rs", &line(100)), []);
        assert_eq!(findings("a.rs", &line(101)), [(1, "line-width")]);
        assert_eq!(findings("a.sql", &line(101)), [(1, "line-width")]);
        assert_eq!(findings("a.md", &line(101)), []);
    }

    #[test]
    fn a_module_without_a_word_about_itself_is_found() {
        assert_eq!(findings("a.rs", "use a::b;\n"), [(1, "module-doc")]);
        assert_eq!(findings("tests/a.rs", "use a::b;\n"), []);
    }
}
