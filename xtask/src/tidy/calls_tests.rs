use super::*;

/// What is found in one file, the table of exceptions aside.
fn findings(path: &str, text: &str) -> Vec<(usize, &'static str)> {
    check(&Tree::of(&[(path, text)]))
        .into_iter()
        .filter(|finding| finding.rule != "exceptions")
        .map(|finding| (finding.line, finding.rule))
        .collect()
}

#[test]
fn every_needle_of_every_ban_is_found() {
    for ban in &BANS {
        let folder = ban.within.first().unwrap_or(&"crates/server/");
        for needle in ban.needles {
            let text = format!("fn a() {{\n    {needle}\n}}\n");
            let found = findings(&format!("{folder}src/a.rs"), &text);
            assert_eq!(found, [(2, ban.rule)], "{needle}");
        }
    }
}

#[test]
fn owners_and_tests_may() {
    let clock = "fn a() { Instant::now(); }";
    assert_eq!(findings("crates/posthaste/src/main.rs", clock), []);
    assert_eq!(findings("crates/engine/tests/a.rs", clock), []);
    assert_eq!(findings("crates/engine/src/a.rs", clock), [(1, "clock")]);
    let test = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { c.unwrap(); }\n}\n";
    assert_eq!(findings("crates/engine/src/a.rs", test), []);
    let after = format!("{test}fn d() {{ e.unwrap(); }}\n");
    assert_eq!(findings("crates/engine/src/a.rs", &after), [(6, "unwrap")]);
}

#[test]
fn no_test_may_allow_or_be_unbounded() {
    let text = "#[allow(dead_code)]\nfn a() { unbounded_channel() }\n";
    let found = findings("crates/engine/tests/a.rs", text);
    assert_eq!(found, [(2, "unbounded"), (1, "allow")]);
}

#[test]
fn comments_and_literals_are_not_code() {
    let text = "// Instant::now\nfn a() { \"x.unwrap() HashMap\" }\n";
    assert_eq!(findings("crates/core/src/a.rs", text), []);
}

#[test]
fn a_visible_expectation_lifts_a_ban_for_its_item() {
    let text = "#[expect(clippy::expect_used, reason = \"constant\")]\n\
                fn a() { b.expect(\"c\"); }\nfn d() { e.expect(\"f\"); }\n";
    assert_eq!(findings("crates/core/src/a.rs", text), [(3, "unwrap")]);
    let other = text.replace("expect_used", "unwrap_used");
    assert_eq!(findings("crates/core/src/a.rs", &other), [(2, "unwrap"), (3, "unwrap")]);
}

#[test]
fn the_channel_without_a_bound_is_found() {
    let text = "let a = mpsc::channel();\nlet b = mpsc::channel::<Vec<u8>>();\n\
                let c = mpsc::channel(8);\nlet d = mpsc::channel::<u8>(limits::B);\n";
    let found = findings("crates/store/src/a.rs", text);
    assert_eq!(found, [(1, "unbounded"), (2, "unbounded")]);
}

#[test]
fn sql_outside_the_store_is_found() {
    let text = "fn a() { \"DELETE FROM deliveries\" }";
    assert_eq!(findings("crates/engine/src/a.rs", text), [(1, "sql-place")]);
    assert_eq!(findings("crates/store/src/a.rs", text), []);
}

#[test]
fn a_note_without_an_issue_is_found() {
    let note = |word: &str, rest: &str| format!("// {word}{rest}\n");
    for word in ["TODO", "FIXME", "XXX"] {
        assert_eq!(findings("xtask/src/a.rs", &note(word, ": later")), [(1, "todo")]);
        assert_eq!(findings("xtask/src/a.rs", &note(word, "(#12): later")), []);
    }
    assert_eq!(findings("a.sql", "-- TODO an index\n"), [(1, "todo")]);
}

#[test]
fn an_exception_that_nothing_needs_is_found() {
    let stale =
        |tree: &Tree| check(tree).iter().filter(|finding| finding.rule == "exceptions").count();
    assert_eq!(stale(&Tree::of(&[])), EXCEPTIONS.len());
    let needed = [("crates/engine/src/courier/mod.rs", "fn a() { Instant::now(); }")];
    assert_eq!(stale(&Tree::of(&needed)), EXCEPTIONS.len() - 1);
}
