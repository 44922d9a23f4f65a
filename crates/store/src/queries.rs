//! Named queries: cut out of the `.sql` files at compile time.
//!
//! A block begins with `-- name: some_name`, then come comment lines, then the statement. The
//! constant of that name holds the statement alone, so that looking up a prepared one hashes no
//! comments. A name that is not in the file does not compile; a constant that nobody uses warns.

use std::sync::OnceLock;

/// Makes constants out of the blocks of a file, and `ALL` for the tests.
macro_rules! queries {
    ($file:literal: $($name:ident),+ $(,)?) => {
        $(pub(crate) const $name: &str =
            $crate::queries::find(include_str!($file), stringify!($name));)+

        /// The file, for those who check that it holds nothing else.
        #[cfg(test)]
        pub(crate) const TEXT: &str = include_str!($file);

        /// Every query with its name.
        #[cfg(test)]
        pub(crate) const ALL: &[(&str, &str)] = &[$((stringify!($name), $name)),+];
    };
}
pub(crate) use queries;

/// The statement under `-- name: ` and the lower-case form of `name`.
#[expect(clippy::panic, reason = "runs at compile time only; a missing query must not build")]
pub(crate) const fn find(text: &'static str, name: &str) -> &'static str {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if names(bytes, at, name.as_bytes()) {
            let start = statement_start(bytes, line_end(bytes, at));
            return slice(text, start, statement_end(bytes, start));
        }
        at = line_end(bytes, at);
    }
    panic!("no block of this name in the file")
}

const NAME: &[u8] = b"-- name: ";

/// Whether the line at `at` is the head of the block `name`.
const fn names(bytes: &[u8], at: usize, name: &[u8]) -> bool {
    if !starts_with(bytes, at, NAME) || at + NAME.len() + name.len() > bytes.len() {
        return false;
    }
    let mut index = 0;
    while index < name.len() {
        if bytes[at + NAME.len() + index] != name[index].to_ascii_lowercase() {
            return false;
        }
        index += 1;
    }
    let end = at + NAME.len() + name.len();
    end == bytes.len() || bytes[end] == b'\n'
}

/// The first line at or after `at` that is no comment and not empty.
const fn statement_start(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && (starts_with(bytes, at, b"--") || bytes[at] == b'\n') {
        at = line_end(bytes, at);
    }
    at
}

/// The first empty line after `at`, or the end.
const fn statement_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'\n' {
        at = line_end(bytes, at);
    }
    at
}

/// Where the next line begins.
const fn line_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'\n' {
        at += 1;
    }
    if at < bytes.len() { at + 1 } else { at }
}

const fn starts_with(bytes: &[u8], at: usize, prefix: &[u8]) -> bool {
    if at + prefix.len() > bytes.len() {
        return false;
    }
    let mut index = 0;
    while index < prefix.len() {
        if bytes[at + index] != prefix[index] {
            return false;
        }
        index += 1;
    }
    true
}

const fn slice(text: &'static str, start: usize, end: usize) -> &'static str {
    text.split_at(end).0.split_at(start).1
}

/// A list that is walked in either direction: the statement as written, and with every ` ASC`
/// turned round.
pub(crate) struct Directed {
    ascending: &'static str,
    descending: OnceLock<String>,
}

impl Directed {
    pub const fn new(ascending: &'static str) -> Self {
        Self { ascending, descending: OnceLock::new() }
    }

    pub fn sql(&'static self, descending: bool) -> &'static str {
        if !descending {
            return self.ascending;
        }
        self.descending.get_or_init(|| self.ascending.replace(" ASC", " DESC"))
    }
}

#[cfg(test)]
mod tests {
    use super::find;

    const TEXT: &str = "-- A file.\n\n-- name: one\n-- Why.\nSELECT 1\nFROM x;\n\n\
                        -- name: one_more\nSELECT 2;\n";

    #[test]
    fn a_block_is_found_by_its_whole_name_and_without_comments() {
        assert_eq!(find(TEXT, "ONE"), "SELECT 1\nFROM x;\n");
        assert_eq!(find(TEXT, "ONE_MORE"), "SELECT 2;\n");
    }
}
