//! Tables and lines for people, JSON for programs.

use super::local::write;
use crate::failure::Failure;
use serde_json::Value;

/// Prints the server's own answer.
pub fn json(value: &Value) -> Result<(), Failure> {
    write(format!("{value:#}\n").as_bytes())
}

/// Prints rows under a head, each column as wide as its widest cell.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
    write(aligned(head, rows).as_bytes())
}

fn aligned(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&head).chain(rows) {
        let cells: Vec<_> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A field as a person reads it: a text without quotes, `-` for what is not there.
pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        // What a terminal would obey is not for a table.
        Value::String(text) => text.chars().filter(|c| !c.is_control()).collect(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["1".to_owned(), "long".to_owned(), "x".to_owned()]];
        assert_eq!(aligned(&["AB", "C", "D"], &rows), "AB  C     D\n1   long  x\n");
    }

    #[test]
    fn a_cell_does_not_reach_the_terminal() {
        assert_eq!(cell(&Value::String("a\u{1b}[2Jb".to_owned())), "a[2Jb");
    }
}
