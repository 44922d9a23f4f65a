//! Which database: a file of our own, or a PostgreSQL server.

use super::layers::MASK;
use super::value::Parsed;
use posthaste_store::PostgresStore;
use std::fmt;
use std::path::{Path, PathBuf};

const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];
/// Parameters of a URL whose value is a secret.
const SECRET_PARAMETERS: [&str; 2] = ["password", "sslpassword"];

/// What `database_url` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Database {
    Sqlite(PathBuf),
    Postgres(DatabaseUrl),
}

/// A PostgreSQL server's address with whatever is needed to log in; `Debug` and `Display` mask the
/// password.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(String);

impl Database {
    /// # Errors
    /// What would be right instead.
    pub fn parse(text: &str) -> Parsed<Self> {
        let text = text.trim();
        if text.starts_with("postgres:") || text.starts_with("postgresql:") {
            return DatabaseUrl::parse(text).map(Self::Postgres);
        }
        let path = text.strip_prefix("sqlite:").unwrap_or_default();
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() || path.contains(":memory:") {
            return Err("use sqlite:PATH with the path of a file, or \
                        postgres://USER:PASSWORD@HOST:PORT/DATABASE"
                .to_owned());
        }
        Ok(Self::Sqlite(Path::new(path).to_owned()))
    }

    /// Whether it lies in `folder`.
    pub fn is_in(&self, folder: &Path) -> bool {
        matches!(self, Self::Sqlite(path) if path.starts_with(folder))
    }
}

impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => path.display().fmt(f),
            Self::Postgres(url) => url.fmt(f),
        }
    }
}

impl DatabaseUrl {
    /// # Errors
    /// What would be right instead.
    pub fn parse(text: &str) -> Parsed<Self> {
        let text = text.trim();
        let wrong = |what: &str| format!("{what}; use postgres://USER:PASSWORD@HOST:PORT/DATABASE");
        if !SCHEMES.iter().any(|scheme| text.starts_with(scheme)) {
            return Err(wrong("this is no address of a PostgreSQL server"));
        }
        PostgresStore::check_url(text).map_err(|_| wrong("a part of this address is wrong"))?;
        Ok(Self(text.to_owned()))
    }

    /// With its password.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_password(&self.0))
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_password(&self.0))
    }
}

/// The text of a URL with its passwords masked. Of one that is not well-formed, rather too much is
/// hidden than too little.
pub fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    // A password with an unescaped `@`, `/` or `?` in it is a mistake, and must not show either.
    let rest = match rest.rsplit_once('@') {
        Some((login, rest)) => match login.split_once(':') {
            Some((user, _)) => format!("{user}:{MASK}@{rest}"),
            None => format!("{login}@{rest}"),
        },
        None => rest.to_owned(),
    };
    let Some((place, parameters)) = rest.split_once('?') else {
        return format!("{scheme}://{rest}");
    };
    let parameters: Vec<String> = parameters.split('&').map(masked).collect();
    format!("{scheme}://{place}?{}", parameters.join("&"))
}

fn masked(parameter: &str) -> String {
    match parameter.split_once('=') {
        Some((name, _)) if SECRET_PARAMETERS.contains(&name.to_ascii_lowercase().as_str()) => {
            format!("{name}={MASK}")
        }
        _ => parameter.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_all_that_is_hidden() {
        for (url, shown) in [
            ("postgres://u:p@h:5/d", "postgres://u:********@h:5/d"),
            ("postgres://u@h/d?sslmode=require", "postgres://u@h/d?sslmode=require"),
            ("postgres://u:p@s/w?o:r@d@h/d", "postgres://u:********@h/d"),
            ("postgres://h/d?user=u&password=p", "postgres://h/d?user=u&password=********"),
            ("postgres://:p@h", "postgres://:********@h"),
            ("postgres:///d", "postgres:///d"),
        ] {
            assert_eq!(without_password(url), shown, "{url}");
        }
        let url = DatabaseUrl::parse("postgres://u:hunter2@h/d").unwrap();
        assert!(!format!("{url} {url:?}").contains("hunter2"));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["postgres:h", "postgres://u:p@h:notaport/d", "postgresql:/h/d"] {
            assert!(Database::parse(text).is_err(), "{text}");
        }
        for text in ["postgres://u:p@h/d", "postgresql://u@one:5432,two:5433/d?sslmode=require"] {
            assert!(matches!(Database::parse(text), Ok(Database::Postgres(_))), "{text}");
        }
    }
}
