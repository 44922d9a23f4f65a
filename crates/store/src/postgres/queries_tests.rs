//! Whether the files of queries and the code name the same ones.

use super::{catalog, history, lanes, upkeep};

#[test]
fn every_query_of_the_files_is_used() {
    let files = [
        ("catalog", catalog::sql::TEXT, catalog::sql::ALL),
        ("history", history::sql::TEXT, history::sql::ALL),
        ("outbox", lanes::sql::TEXT, lanes::sql::ALL),
        ("upkeep", upkeep::sql::TEXT, upkeep::sql::ALL),
    ];
    for (file, text, all) in files {
        let blocks = text.lines().filter_map(|line| line.strip_prefix("-- name: "));
        for name in blocks {
            let used = all.iter().any(|(constant, _)| constant.to_lowercase() == name);
            assert!(used, "nobody uses {name} of {file}.sql");
        }
        for (name, sql) in all {
            assert!(!sql.contains("?1"), "{name} has a placeholder of SQLite");
        }
    }
}
