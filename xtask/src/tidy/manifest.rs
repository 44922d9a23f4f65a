//! The little of TOML that `Cargo.toml` and `Cargo.lock` need here: names of packages, their
//! dependencies, and the line where each stands.

/// One entry of a table of dependencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    pub name: String,
    pub line: usize,
    /// What stands to the right of the name.
    pub value: String,
    /// Only tests, examples and benchmarks have it.
    pub dev: bool,
}

/// The name of the package; absent in the manifest of a workspace.
pub fn package_name(text: &str) -> Option<&str> {
    entries(text)
        .find(|entry| entry.section == "package" && entry.key == "name")
        .map(|entry| entry.value.trim_matches('"'))
}

/// The names of all packages in a `Cargo.lock`, with their lines.
pub fn locked_packages(text: &str) -> impl Iterator<Item = (usize, &str)> {
    entries(text)
        .filter(|entry| entry.section == "[package]" && entry.key == "name")
        .map(|entry| (entry.line, entry.value.trim_matches('"')))
}

/// All dependencies of a manifest: normal, build and dev ones, those of single targets, and those
/// that a workspace offers to its members.
pub fn dependencies(text: &str) -> Vec<Dependency> {
    let mut found: Vec<Dependency> = Vec::new();
    for entry in entries(text) {
        let section = entry.section;
        let dev = section.contains("dev-dependencies");
        if entry.key.is_empty() {
            if let Some(last) = found.last_mut().filter(|_| section.contains("dependencies")) {
                last.value += entry.value;
            }
        } else if section == "dependencies"
            || section.ends_with("-dependencies")
            || section.ends_with(".dependencies")
        {
            let name = entry.key.split('.').next().unwrap_or(entry.key).trim_matches('"');
            let value = entry.value.to_owned();
            found.push(Dependency { name: name.to_owned(), line: entry.line, value, dev });
        } else if let Some((_, name)) = section.split_once("dependencies.") {
            // The long form, `[dependencies.name]`: its keys all belong to one dependency.
            let value = format!("{} = {}", entry.key, entry.value);
            match found.last_mut() {
                Some(last) if last.name == name && last.dev == dev => last.value += &value,
                _ => found.push(Dependency { name: name.to_owned(), line: entry.line, value, dev }),
            }
        }
    }
    found
}

struct Entry<'a> {
    /// `[package]`, with brackets, for one of an array of tables.
    section: &'a str,
    /// Empty on the further lines of a value.
    key: &'a str,
    value: &'a str,
    line: usize,
}

fn entries(text: &str) -> impl Iterator<Item = Entry<'_>> {
    let mut section = "";
    text.lines().enumerate().filter_map(move |(index, line)| {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name;
            return None;
        }
        if line.starts_with('#') || line.is_empty() {
            return None;
        }
        let (key, value) = line.split_once('=').unwrap_or(("", line));
        Some(Entry { section, key: key.trim(), value: value.trim(), line: index + 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_found_in_every_form() {
        let text = "[package]\nname = \"a\"\n[dependencies]\n# no = \"1\"\nb.workspace = true\n\
                    c = { version = \"1\" }\n[dev-dependencies]\nd = \"1\"\n\
                    [target.'cfg(unix)'.dependencies]\ne = \"1\"\n[dependencies.f]\n\
                    version = \"1\"\nfeatures = [\"g\"]\n[workspace.dependencies]\n\
                    h = { version = \"1\", features = [\n  \"i\",\n] }\n";
        assert_eq!(package_name(text), Some("a"));
        let found = dependencies(text);
        let names: Vec<_> =
            found.iter().map(|found| (found.name.as_str(), found.line, found.dev)).collect();
        assert_eq!(
            names,
            [
                ("b", 5, false),
                ("c", 6, false),
                ("d", 8, true),
                ("e", 10, false),
                ("f", 12, false),
                ("h", 15, false),
            ]
        );
        let has = |name, value| {
            found.iter().any(|found| found.name == name && found.value.contains(value))
        };
        assert!(has("f", "\"g\"") && has("h", "\"i\""), "{found:?}");
    }

    #[test]
    fn locked_packages_are_found() {
        let text = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1\"\n";
        assert_eq!(locked_packages(text).collect::<Vec<_>>(), [(4, "a")]);
    }
}
