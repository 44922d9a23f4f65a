//! Where values come from: defaults, then `posthaste.toml`, then the environment, then flags. Each
//! value keeps its origin, so that whoever refuses it can say where to look.

use super::keys::{self, Key};
use crate::failure::Failure;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// What stands for a secret wherever one is shown.
pub const MASK: &str = "********";
/// The file that is read when nobody names one.
const FILE: &str = "posthaste.toml";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    File(PathBuf),
    Environment(String),
    Flag(String),
    /// Follows from another key, or from what a command is for.
    Derived(String),
}

impl Origin {
    /// Of two origins, the one with the higher rank overrides.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Default => 0,
            Self::File(_) => 1,
            Self::Environment(_) => 2,
            Self::Flag(_) => 3,
            Self::Derived(_) => 4,
        }
    }
}

#[derive(Clone)]
pub struct Setting {
    pub text: String,
    pub origin: Origin,
}

/// The texts in force, by key.
///
/// `Debug` shows none of them: some are secret.
#[derive(Clone, Default)]
pub struct Layers(BTreeMap<&'static str, Setting>);

/// What the command line says.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    pub config: Option<PathBuf>,
    /// Key, value and the flag's own name.
    pub values: Vec<(String, String, String)>,
}

impl Layers {
    /// Reads all layers. `environment` is the process's, or a test's.
    ///
    /// # Errors
    /// A file that cannot be read, or a key that nobody knows.
    pub fn read(
        flags: &Flags,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Failure> {
        let environment: BTreeMap<_, _> =
            environment.into_iter().filter(|(name, _)| name.starts_with("POSTHASTE_")).collect();
        let mut layers = Self::defaults();
        if let Some(path) = config_file(flags, &environment) {
            layers.read_file(&path)?;
        }
        layers.read_environment(environment)?;
        for (name, text, flag) in &flags.values {
            let origin = Origin::Flag(flag.clone());
            let key = known(name, &origin)?;
            if key.masked(text) != *text {
                return Err(Failure::usage(format!(
                    "{name} does not belong on the command line, where every user of this machine \
                     can read it; set {} instead",
                    key.variable()
                )));
            }
            layers.put(key, text.clone(), origin);
        }
        Ok(layers)
    }

    /// The defaults with these values over them.
    ///
    /// # Errors
    /// A key that nobody knows.
    pub fn of(values: &[(&str, &str)]) -> Result<Self, Failure> {
        let mut layers = Self::defaults();
        for (name, text) in values {
            let origin = Origin::Derived("this command".to_owned());
            let key = known(name, &origin)?;
            layers.put(key, (*text).to_owned(), origin);
        }
        Ok(layers)
    }

    fn defaults() -> Self {
        let mut layers = Self::default();
        for key in &keys::KEYS {
            if let Some(text) = key.default {
                layers.put(key, text.to_owned(), Origin::Default);
            }
        }
        layers
    }

    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.0.get(name)
    }

    /// Notes what follows for a key from others, unless somebody set it.
    pub fn derive(&mut self, name: &'static str, text: String, from: &str) {
        let origin = Origin::Derived(from.to_owned());
        self.0.entry(name).or_insert(Setting { text, origin });
    }

    /// Every key with what is in force for it; secrets masked.
    pub fn shown(&self) -> impl Iterator<Item = (&'static Key, Option<Setting>)> + '_ {
        keys::KEYS.iter().map(|key| {
            let masked = |setting: Setting| Setting { text: key.masked(&setting.text), ..setting };
            let setting = self.0.get(key.name).cloned().map(masked);
            (key, setting)
        })
    }

    fn put(&mut self, key: &'static Key, text: String, origin: Origin) {
        self.0.insert(key.name, Setting { text, origin });
    }

    fn read_environment(&mut self, environment: BTreeMap<String, String>) -> Result<(), Failure> {
        for (variable, text) in environment {
            if keys::OTHER_VARIABLES.contains(&variable.as_str())
                || keys::OTHER_PREFIXES.iter().any(|prefix| variable.starts_with(prefix))
            {
                continue;
            }
            let bare = variable.trim_start_matches("POSTHASTE_");
            let name = bare.to_ascii_lowercase().replace("__", ".");
            let origin = Origin::Environment(variable);
            let key = known(&name, &origin)?;
            self.put(key, text, origin);
        }
        Ok(())
    }

    fn read_file(&mut self, path: &Path) -> Result<(), Failure> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::usage(format!(
                "cannot read the configuration file {shown}: {error}; check the path and its \
                 permissions"
            ))
        })?;
        // The parser's own display quotes the line, which may hold a secret.
        let table: toml::Table = toml::from_str(&text).map_err(|error: toml::de::Error| {
            let at = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
            Failure::usage(format!("{shown}, line {line}, is not TOML: {}", error.message()))
        })?;
        let mut entries = Vec::new();
        flatten("", table, &mut entries);
        for (name, value) in entries {
            let origin = Origin::File(path.to_owned());
            let key = known(&name, &origin)?;
            let text = scalar(&value).ok_or_else(|| {
                Failure::usage(format!(
                    "{name} in {shown} is a {}; use a text, a number, true, false or a list of \
                     them",
                    value.type_str()
                ))
            })?;
            self.put(key, text, origin);
        }
        Ok(())
    }
}

impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment(variable) => f.write_str(variable),
            Self::Flag(flag) => f.write_str(flag),
            Self::Derived(from) => write!(f, "from {from}"),
        }
    }
}

/// The file that was asked for, or the one that lies here.
fn config_file(flags: &Flags, environment: &BTreeMap<String, String>) -> Option<PathBuf> {
    let named = flags.config.clone();
    named
        .or_else(|| environment.get("POSTHASTE_CONFIG").map(PathBuf::from))
        .or_else(|| Some(PathBuf::from(FILE)).filter(|path| path.exists()))
}

fn known(name: &str, origin: &Origin) -> Result<&'static Key, Failure> {
    if let Some(key) = keys::find(name) {
        return Ok(key);
    }
    // The environment speaks of variables, so the way out does too.
    let spelled = |name: &str| match origin {
        Origin::Environment(_) => {
            format!("POSTHASTE_{}", name.to_ascii_uppercase().replace('.', "__"))
        }
        _ => name.to_owned(),
    };
    let what = match origin {
        Origin::Environment(variable) => format!("{variable} in the environment"),
        origin => format!("{name} ({origin})"),
    };
    if keys::LATER.contains(&name) {
        return Err(Failure::usage(format!("{what} is not supported yet in this version")));
    }
    let hint = match keys::nearest(name) {
        Some(near) => format!("did you mean {}?", spelled(near)),
        None => "`posthaste config` lists all keys".to_owned(),
    };
    Err(Failure::usage(format!("{what} is not a known key; {hint}")))
}

fn flatten(prefix: &str, table: toml::Table, into: &mut Vec<(String, toml::Value)>) {
    for (name, value) in table {
        let name = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        match value {
            toml::Value::Table(inner) => flatten(&name, inner, into),
            value => into.push((name, value)),
        }
    }
}

/// The text of a value as the environment would give it.
fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(truth) => Some(truth.to_string()),
        toml::Value::Array(items) => {
            let flat = items.iter().all(|item| !item.is_array());
            let texts: Option<Vec<_>> = items.iter().map(scalar).collect();
            texts.filter(|_| flat).map(|texts| texts.join(","))
        }
        toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}
