//! Reads Rust as text in layers, so that a rule about code is not fooled by a comment.
//!
//! It is not a parser. It knows comments, literals and brackets, which is enough to find a word
//! in code, the end of an item and the length of a function.

use std::ops::Range;

/// One source text, three times: each layer has the length and the line breaks of the original,
/// with spaces in place of all that belongs to another layer.
pub struct Layers {
    pub code: String,
    pub comments: String,
    /// What stands between quotes.
    pub strings: String,
}

impl Layers {
    pub fn of(text: &str) -> Self {
        let mut scanner = Scanner {
            bytes: text.as_bytes(),
            at: 0,
            layers: std::array::from_fn(|_| Vec::with_capacity(text.len())),
        };
        scanner.scan();
        // Layers change at ASCII bytes only, so every layer is whole characters.
        let [code, comments, strings] =
            scanner.layers.map(|layer| String::from_utf8_lossy(&layer).into_owned());
        Self { code, comments, strings }
    }
}

/// The line that holds the byte at `offset`, counted from 1.
pub fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1
}

/// Where `needle` stands in the text as whole words. Only a side of the needle that is itself a
/// word has to end there: `rand::` is not found in `brand::`, but is in `rand::random`.
pub fn find_words(text: &str, needle: &str) -> Vec<usize> {
    let word = |byte: Option<&u8>| byte.is_some_and(|byte| is_word(*byte));
    let bytes = text.as_bytes();
    text.match_indices(needle)
        .map(|(start, _)| start)
        .filter(|start| {
            let before = start.checked_sub(1).and_then(|at| bytes.get(at));
            let after = bytes.get(start + needle.len());
            let starts_inside = word(needle.as_bytes().first()) && word(before);
            let ends_inside = word(needle.as_bytes().last()) && word(after);
            !starts_inside && !ends_inside
        })
        .collect()
}

/// The byte ranges of items that only exist in tests, attribute included. `code` is the layer.
pub fn test_items(code: &str) -> Vec<Range<usize>> {
    ["#[cfg(test)]", "#[cfg(all(test", "#[test]", "#[tokio::test"]
        .iter()
        .flat_map(|attribute| code.match_indices(attribute))
        .map(|(start, _)| start..item_end(code, start))
        .collect()
}

/// The end of the item or statement that the attribute at `start` belongs to: its closing brace,
/// or the first `;` outside of all brackets.
pub fn item_end(code: &str, start: usize) -> usize {
    let bytes = code.as_bytes();
    let mut depth = 0_usize;
    let mut at = start;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' if depth == 0 => return at,
            b'}' if depth == 1 => return at + 1,
            b')' | b']' | b'}' => depth -= 1,
            b';' if depth == 0 => return at + 1,
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function<'a> {
    pub name: &'a str,
    pub line: usize,
    /// Lines between the braces of the body.
    pub body_lines: usize,
}

/// All functions with a body, nested ones too.
pub fn functions(code: &str) -> Vec<Function<'_>> {
    find_words(code, "fn").into_iter().filter_map(|start| function_at(code, start)).collect()
}

fn function_at(code: &str, start: usize) -> Option<Function<'_>> {
    let rest = code.get(start + 2..)?;
    let name = rest.trim_start();
    if name.len() == rest.len() {
        return None;
    }
    let name = name.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    if name.is_empty() {
        return None;
    }
    let mut depth = 0_usize;
    let open = code.bytes().enumerate().skip(start).find_map(|(at, byte)| {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b'{' if depth == 0 => return Some(Some(at)),
            b';' if depth == 0 => return Some(None),
            _ => {}
        }
        None
    })??;
    let end = item_end(code, open);
    let body = line_of(code, end.saturating_sub(1)) - line_of(code, open);
    Some(Function { name, line: line_of(code, start), body_lines: body.saturating_sub(1) })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Layer {
    Code,
    Comment,
    Text,
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    layers: [Vec<u8>; 3],
}

impl Scanner<'_> {
    fn scan(&mut self) {
        while let Some(byte) = self.peek(0) {
            match (byte, self.peek(1)) {
                (b'/', Some(b'/')) => self.line_comment(),
                (b'/', Some(b'*')) => self.block_comment(),
                (b'"', _) => self.string(),
                (b'r', Some(b'"' | b'#')) if self.raw_string() => {}
                (b'\'', _) => self.quote(),
                _ => self.take(1, Layer::Code),
            }
        }
    }

    fn line_comment(&mut self) {
        while self.peek(0).is_some_and(|byte| byte != b'\n') {
            self.take(1, Layer::Comment);
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        while self.peek(0).is_some() {
            if self.starts_with(b"/*") {
                depth += 1;
                self.take(2, Layer::Comment);
            } else if self.starts_with(b"*/") {
                depth -= 1;
                self.take(2, Layer::Comment);
                if depth == 0 {
                    return;
                }
            } else {
                self.take(1, Layer::Comment);
            }
        }
    }

    fn string(&mut self) {
        self.take(1, Layer::Code);
        while let Some(byte) = self.peek(0) {
            match byte {
                b'"' => return self.take(1, Layer::Code),
                b'\\' => self.take(2, Layer::Text),
                _ => self.take(1, Layer::Text),
            }
        }
    }

    /// False, and nothing taken, if the `r` here begins something else, such as `r#type`.
    fn raw_string(&mut self) -> bool {
        let before = self.at.checked_sub(1).and_then(|at| self.bytes.get(at)).copied();
        let prefixed = before.is_some_and(|byte| is_word(byte) && byte != b'b' && byte != b'c');
        let hashes = self.bytes.iter().skip(self.at + 1).take_while(|byte| **byte == b'#').count();
        if prefixed || self.peek(1 + hashes) != Some(b'"') {
            return false;
        }
        let close: Vec<u8> =
            std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
        self.take(2 + hashes, Layer::Code);
        while self.peek(0).is_some() && !self.starts_with(&close) {
            self.take(1, Layer::Text);
        }
        self.take(close.len(), Layer::Code);
        true
    }

    /// A character literal or a lifetime.
    fn quote(&mut self) {
        self.take(1, Layer::Code);
        if self.peek(0) == Some(b'\\') {
            self.take(2, Layer::Text);
            while self.peek(0).is_some_and(|byte| byte != b'\'' && byte != b'\n') {
                self.take(1, Layer::Text);
            }
            return self.take(1, Layer::Code);
        }
        // One character of up to four bytes and the closing quote; a lifetime has no such quote.
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let first = rest.first().copied().unwrap_or_default();
        let width = match first {
            0..0x80 => 1,
            0x80..0xe0 => 2,
            0xe0..0xf0 => 3,
            _ => 4,
        };
        if rest.get(width) == Some(&b'\'') {
            self.take(width, Layer::Text);
            self.take(1, Layer::Code);
        }
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.at + ahead).copied()
    }

    fn starts_with(&self, prefix: &[u8]) -> bool {
        self.bytes.get(self.at..).is_some_and(|rest| rest.starts_with(prefix))
    }

    fn take(&mut self, count: usize, layer: Layer) {
        for byte in self.bytes.iter().skip(self.at).take(count) {
            for (index, out) in self.layers.iter_mut().enumerate() {
                let keep = *byte == b'\n' || index == layer as usize;
                out.push(if keep { *byte } else { b' ' });
            }
        }
        self.at = (self.at + count).min(self.bytes.len());
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_keep_comments_and_literals_apart() {
        let text = "let a = \"in // text\"; // in /* comment\n/* x /* y */ z */ let c = '\"';";
        let layers = Layers::of(text);
        assert_eq!(layers.code.len(), text.len());
        assert_eq!(layers.code.trim_end().lines().count(), 2);
        assert!(layers.code.contains("let a = \""));
        assert!(layers.code.contains("let c = ' ';"), "{}", layers.code);
        assert!(!layers.code.contains("text") && !layers.code.contains("comment"));
        assert_eq!(
            layers.strings.split_whitespace().collect::<Vec<_>>(),
            ["in", "//", "text", "\""]
        );
        assert!(layers.comments.contains("in /* comment"));
        assert!(layers.comments.contains("z */"));
    }

    #[test]
    fn literals_end_where_they_end() {
        let layers = Layers::of(
            r##"a(r#"raw " text"#, b"\"", br"\", '\'', 'é', '\u{1F600}', &'static str) + r#type"##,
        );
        assert!(layers.code.contains("&'static str) + r#type"), "{}", layers.code);
        assert!(!layers.code.contains("raw") && !layers.code.contains('é'));
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(find_words("brand::x rand::y", "rand::"), [9]);
        assert_eq!(find_words("defn fn fnord", "fn"), [5]);
        assert_eq!(find_words("x.unwrap() x.unwrap_or()", ".unwrap()"), [1]);
    }

    #[test]
    fn an_item_ends_at_its_brace_or_semicolon() {
        let code = "#[cfg(test)] mod tests { fn a() {} } fn b() {}";
        let items = test_items(code);
        assert_eq!(items.first().map(|item| &code[item.clone()]), code.strip_suffix(" fn b() {}"));
        let code = "#[cfg(test)] use a::{b, c}; fn d() {}";
        assert!(test_items(code).first().is_some_and(|item| item.end <= code.len() - 10));
    }

    #[test]
    fn functions_know_their_length() {
        let code = "fn one() {}\ntrait T { fn none(&self) -> [u8; 4]; }\n\
                    fn three(f: fn(u8)) -> [u8; 2] {\n a;\n b;\n c\n}\n";
        let found = functions(code);
        assert_eq!(
            found,
            [
                Function { name: "one", line: 1, body_lines: 0 },
                Function { name: "three", line: 3, body_lines: 3 },
            ]
        );
    }
}
