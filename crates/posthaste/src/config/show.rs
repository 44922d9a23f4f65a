//! `posthaste config`: what is in force and why, in a form that `posthaste.toml` accepts.

use super::Config;
use super::layers::MASK;
use std::fmt::Write;

/// A line for each key: the value, and where it came from as a comment. Secrets are masked and,
/// like unset keys, commented out. `explain` puts what a key is above it.
pub fn table(config: &Config, explain: bool) -> String {
    let mut rows = Vec::new();
    for (key, setting) in config.layers.shown() {
        let (line, origin) = match setting {
            Some(setting) if setting.text.contains(MASK) => {
                (format!("# {} = {}", key.name, setting.text), setting.origin.to_string())
            }
            Some(setting) => {
                let text = toml::Value::String(setting.text);
                (format!("{} = {text}", key.name), setting.origin.to_string())
            }
            None => (format!("# {}", key.name), "unset".to_owned()),
        };
        rows.push((key.about, line, origin));
    }
    let width = rows.iter().map(|(_, line, _)| line.chars().count()).max().unwrap_or(0);
    rows.iter().fold(String::new(), |mut text, (about, line, origin)| {
        if explain {
            let _ = writeln!(text, "\n# {about}");
        }
        let _ = writeln!(text, "{line:width$}  # {origin}");
        text
    })
}
