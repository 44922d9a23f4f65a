//! SQL is a document: named queries, explained, the same in both back-ends, and all of them used.
//!
//! A file of queries is a sequence of `-- name: snake_case` lines, each followed by comment lines
//! (parameters, the index it leans on, why) and one statement. Files in `schema/` are migrations
//! and have no names inside. A query that only one back-end needs says so in a comment,
//! `-- only here: reason`.

use super::rust::{find_words, line_of};
use super::{Finding, SourceFile, Tree};
use std::collections::{BTreeMap, BTreeSet};

const ROOT: &str = "crates/store/sql/";
const BACK_ENDS: [&str; 2] = ["sqlite", "postgres"];
const HEADER: &str = "-- name:";
/// Followed by the reason why the other back-end has no such query.
const ONLY_HERE: &str = "-- only here:";

/// In a comment right above a call of a clock: the reason why the time cannot come in.
const OWN_CLOCK: &str = "-- own clock:";

/// Time and dice come in as parameters.
const BANNED: [&str; 7] = [
    "now(",
    "current_timestamp",
    "current_time",
    "datetime('now",
    "strftime(",
    "random(",
    "clock_timestamp(",
];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let files = files(tree);
    let mut findings = Vec::new();
    for file in &files {
        findings.extend(banned(file));
        if !file.is_schema() {
            findings.extend(form(file));
        }
    }
    findings.extend(twins(&files));
    findings.extend(unique(&files));
    findings.extend(unused(tree, &files));
    findings
}

/// One file of one back-end.
struct SqlFile<'a> {
    source: &'a SourceFile,
    back_end: &'static str,
    /// The path under the folder of the back-end.
    name: &'a str,
    queries: Vec<Query<'a>>,
}

impl SqlFile<'_> {
    fn is_schema(&self) -> bool {
        self.name.starts_with("schema/")
    }

    /// A migration may say in its first line why the other back-end has none like it.
    fn is_only_here(&self) -> bool {
        let reason = self.source.text.lines().next().and_then(|line| line.strip_prefix(ONLY_HERE));
        self.is_schema() && reason.is_some_and(|reason| !reason.trim().is_empty())
    }

    fn finding(&self, line: usize, rule: &'static str, message: String) -> Finding {
        Finding::new(&self.source.path, line, rule, message)
    }
}

struct Query<'a> {
    name: &'a str,
    line: usize,
    comments: usize,
    /// Statement lines.
    lines: usize,
    only_here: bool,
}

fn files(tree: &Tree) -> Vec<SqlFile<'_>> {
    let file = |source: &'_ SourceFile| {
        let under = source.path.strip_prefix(ROOT).filter(|_| source.has_extension(&["sql"]))?;
        let (folder, _) = under.split_once('/')?;
        BACK_ENDS.into_iter().find(|back_end| *back_end == folder)
    };
    tree.files
        .iter()
        .filter_map(|source| {
            let back_end = file(source)?;
            let name = source.path.get(ROOT.len() + back_end.len() + 1..)?;
            Some(SqlFile { source, back_end, name, queries: queries(&source.text) })
        })
        .collect()
}

fn queries(text: &str) -> Vec<Query<'_>> {
    let mut found: Vec<Query<'_>> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if let Some(name) = line.strip_prefix(HEADER) {
            let (name, line) = (name.trim(), index + 1);
            found.push(Query { name, line, comments: 0, lines: 0, only_here: false });
        } else if let Some(query) = found.last_mut() {
            match line.trim() {
                "" => {}
                line if line.starts_with("--") => {
                    query.comments += 1;
                    let reason = line.strip_prefix(ONLY_HERE).unwrap_or_default();
                    query.only_here |= !reason.trim().is_empty();
                }
                _ => query.lines += 1,
            }
        }
    }
    found
}

fn form(file: &SqlFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let stray = file
        .source
        .text
        .lines()
        .enumerate()
        .take_while(|(_, line)| !line.starts_with(HEADER))
        .find(|(_, line)| !line.trim().is_empty() && !line.trim().starts_with("--"));
    if let Some((index, _)) = stray {
        let message = format!("a statement without `{HEADER} ...` above it");
        findings.push(file.finding(index + 1, "sql-form", message));
    }
    for query in &file.queries {
        let name = query.name;
        let snake = !name.is_empty()
            && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
        let message = if !snake {
            format!("`{name}` is not snake_case")
        } else if query.comments == 0 {
            format!("`{name}` does not say what it is for")
        } else if query.lines == 0 {
            format!("`{name}` has no statement")
        } else {
            continue;
        };
        findings.push(file.finding(query.line, "sql-form", message));
    }
    findings
}

/// Both folders hold the same files with the same queries, from the day that the second exists.
fn twins(files: &[SqlFile]) -> Vec<Finding> {
    let of = |back_end: &str| -> BTreeMap<&str, &SqlFile> {
        let own = files.iter().filter(|file| file.back_end == back_end);
        own.map(|file| (file.name, file)).collect()
    };
    let [one, other] = BACK_ENDS.map(of);
    if one.is_empty() || other.is_empty() {
        return Vec::new();
    }
    let mut findings = missing_twins(&one, &other, BACK_ENDS[1]);
    findings.extend(missing_twins(&other, &one, BACK_ENDS[0]));
    findings
}

fn missing_twins(
    ours: &BTreeMap<&str, &SqlFile>,
    theirs: &BTreeMap<&str, &SqlFile>,
    their_name: &str,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, file) in ours {
        let Some(twin) = theirs.get(name) else {
            if file.is_only_here() {
                continue;
            }
            let message = format!("{their_name}/ has no file of this name");
            findings.push(file.finding(1, "sql-twins", message));
            continue;
        };
        for query in file.queries.iter().filter(|query| !query.only_here) {
            if !twin.queries.iter().any(|found| found.name == query.name) {
                let message = format!("`{}` is missing in {}", query.name, twin.source.path);
                findings.push(file.finding(query.line, "sql-twins", message));
            }
        }
    }
    findings
}

/// A name means one query, whichever file it is in.
fn unique(files: &[SqlFile]) -> Vec<Finding> {
    let mut seen = BTreeSet::new();
    let mut findings = Vec::new();
    for file in files {
        for query in &file.queries {
            if !seen.insert((file.back_end, query.name)) {
                let message = format!("`{}` is the name of another query too", query.name);
                findings.push(file.finding(query.line, "sql-form", message));
            }
        }
    }
    findings
}

fn unused(tree: &Tree, files: &[SqlFile]) -> Vec<Finding> {
    let users: Vec<_> =
        tree.rust().filter(|file| file.path.starts_with("crates/store/src/")).collect();
    let mut findings = Vec::new();
    for file in files {
        for query in &file.queries {
            // The constant of a query has its name in capitals; rustc warns of one nobody uses.
            let constant = query.name.to_ascii_uppercase();
            let used = users.iter().any(|user| {
                [query.name, &constant].iter().any(|name| !find_words(&user.text, name).is_empty())
            });
            if !used {
                let message = format!("no code in crates/store/src uses `{}`", query.name);
                findings.push(file.finding(query.line, "sql-unused", message));
            }
        }
    }
    findings
}

fn banned(file: &SqlFile) -> Vec<Finding> {
    let text: String = file
        .source
        .text
        .lines()
        .map(|line| line.split("--").next().unwrap_or_default().to_ascii_lowercase() + "\n")
        .collect();
    let excused = |line: usize| {
        let above = line.checked_sub(2).and_then(|index| file.source.text.lines().nth(index));
        above.is_some_and(|line| line.trim().starts_with(OWN_CLOCK))
    };
    BANNED
        .iter()
        .flat_map(|call| find_words(&text, call).into_iter().map(move |offset| (call, offset)))
        .filter(|(_, offset)| !excused(line_of(&text, *offset)))
        .map(|(call, offset)| {
            let message = format!("`{call}`: time and dice are parameters");
            file.finding(line_of(&text, offset), "sql-clock", message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: (&str, &str) =
        ("crates/store/src/queries.rs", "[\"take\", \"give\", \"now_and_then\"]");

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().copied().chain([USER]).collect();
        check(&Tree::of(&files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_document_is_clean() {
        let text = "-- The outbox.\n\n-- name: take\n-- Why.\nSELECT 1;\n\n-- name: give\n\
                    -- ?1: now, in microseconds; not now().\nSELECT 2\nWHERE 3;\n";
        let found = findings(&[
            ("crates/store/sql/sqlite/outbox.sql", text),
            ("crates/store/sql/postgres/outbox.sql", text),
            ("crates/store/sql/sqlite/schema/0001_start.sql", "CREATE TABLE a (b);"),
            ("crates/store/sql/postgres/schema/0001_start.sql", "CREATE TABLE a (b);"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn bad_form_is_found() {
        let text = "SELECT 0;\n-- name: Take\n-- Why.\nSELECT 1;\n-- name: take\nSELECT 1;\n\
                    -- name: give\n-- Why.\n\n-- name: take\n-- Why.\nSELECT 1;\n";
        let found = findings(&[("crates/store/sql/sqlite/outbox.sql", text)]);
        let path = "crates/store/sql/sqlite/outbox.sql";
        assert_eq!(
            found,
            [
                format!("{path}:1: sql-form: a statement without `-- name: ...` above it"),
                format!("{path}:2: sql-form: `Take` is not snake_case"),
                format!("{path}:5: sql-form: `take` does not say what it is for"),
                format!("{path}:7: sql-form: `give` has no statement"),
                format!("{path}:10: sql-form: `take` is the name of another query too"),
                format!("{path}:2: sql-unused: no code in crates/store/src uses `Take`"),
            ]
        );
    }

    #[test]
    fn twins_that_differ_are_found_in_both_directions() {
        let take = "-- name: take\n-- Why.\nSELECT 1;\n";
        let give = "-- name: give\n-- Why.\nSELECT 1;\n";
        let found = findings(&[
            ("crates/store/sql/sqlite/outbox.sql", take),
            ("crates/store/sql/postgres/outbox.sql", give),
            ("crates/store/sql/sqlite/schema/0001_start.sql", ""),
        ]);
        let (sqlite, postgres) = ("crates/store/sql/sqlite", "crates/store/sql/postgres");
        assert_eq!(
            found,
            [
                format!(
                    "{sqlite}/outbox.sql:1: sql-twins: `take` is missing in {postgres}/outbox.sql"
                ),
                format!(
                    "{sqlite}/schema/0001_start.sql:1: sql-twins: postgres/ has no file of this \
                     name"
                ),
                format!(
                    "{postgres}/outbox.sql:1: sql-twins: `give` is missing in {sqlite}/outbox.sql"
                ),
            ]
        );
    }

    #[test]
    fn a_query_may_say_why_it_has_no_twin() {
        let found = |comment: &str| {
            let take = format!("-- name: take\n-- Why.\n{comment}\nSELECT 1;\n");
            let give = "-- name: give\n-- only here: no reason to take.\nSELECT 1;\n";
            findings(&[
                ("crates/store/sql/sqlite/outbox.sql", &take),
                ("crates/store/sql/postgres/outbox.sql", give),
            ])
        };
        assert!(found("-- only here: it has one writer.").is_empty());
        let bare = found("-- only here:");
        assert!(bare.len() == 1 && bare.iter().all(|it| it.contains("`take`")), "{bare:?}");
    }

    #[test]
    fn a_migration_may_say_why_it_has_no_twin_and_a_clock() {
        let start = "CREATE TABLE a (b);";
        let found = |text: &str| {
            findings(&[
                ("crates/store/sql/sqlite/schema/0001_start.sql", start),
                ("crates/store/sql/postgres/schema/0001_start.sql", start),
                ("crates/store/sql/postgres/schema/0002_more.sql", text),
            ])
        };
        let clean = "-- only here: why.\n-- own clock: why.\nSELECT now();\n";
        assert!(found(clean).is_empty(), "{:?}", found(clean));
        assert_eq!(found("SELECT now();\n").len(), 2);
        assert_eq!(found("-- only here:\nSELECT 1;\n").len(), 1);
    }

    #[test]
    fn a_query_that_nobody_runs_is_found() {
        let text = "-- name: lose\n-- Why.\nSELECT 1;\n";
        let found = findings(&[("crates/store/sql/sqlite/outbox.sql", text)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found.iter().all(|line| line.contains("sql-unused")), "{found:?}");
    }

    #[test]
    fn a_clock_in_sql_is_found() {
        for call in BANNED {
            let text = format!("-- name: take\n-- Why.\nSELECT {}\n", call.to_uppercase());
            let found = findings(&[("crates/store/sql/sqlite/outbox.sql", &text)]);
            assert_eq!(found.len(), 1, "{call}: {found:?}");
            assert!(found.iter().all(|line| line.contains(":3: sql-clock")), "{found:?}");
        }
    }
}
