//! Query strings: typed reads of what clients put behind the `?`. Unknown names are ignored.

use crate::error::{Refusal, Result};
use crate::wire::time::Time;
use posthaste_core::time::Timestamp;
use std::borrow::Cow;

/// The query of one request, decoded when it is asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Option<String>);

impl Query {
    pub fn new(text: Option<&str>) -> Self {
        Self(text.filter(|text| !text.is_empty()).map(str::to_owned))
    }

    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    fn pairs(&self) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
        url::form_urlencoded::parse(self.as_str().as_bytes())
    }

    /// The first value under this name; an empty one counts as none.
    pub fn text(&self, name: &str) -> Option<String> {
        self.0.as_ref()?;
        let found = self.pairs().find(|(key, _)| key == name);
        found.map(|(_, value)| value.into_owned()).filter(|value| !value.is_empty())
    }

    pub fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.text(name).as_deref() {
            None => Ok(default),
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(_) => Err(Refusal::bad_query(name, "`true` or `false`")),
        }
    }

    pub fn number(&self, name: &str) -> Result<Option<u32>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let number = text.parse::<u64>().map_err(|_| Refusal::bad_query(name, "a whole number"))?;
        Ok(Some(u32::try_from(number).unwrap_or(u32::MAX)))
    }

    pub fn time(&self, name: &str) -> Result<Option<Timestamp>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match Time::parse(&text) {
            Some(time) => Ok(Some(time.0)),
            None => Err(Refusal::query(name, "must be a date and time as in RFC 3339")),
        }
    }

    /// All values of a list in any of its spellings: `a,b`, repeated, `name[]=a`, `name[0]=a`.
    pub fn list(&self, name: &str) -> Vec<String> {
        let of_list = |key: &str| match key.strip_prefix(name) {
            Some("") => true,
            Some(index) => index.starts_with('[') && index.ends_with(']'),
            None => false,
        };
        self.pairs()
            .filter(|(key, _)| of_list(key))
            .flat_map(|(_, value)| value.split(',').map(str::to_owned).collect::<Vec<_>>())
            .filter(|value| !value.is_empty())
            .collect()
    }

    /// A value read by its own parser, refused with the parser's reason.
    pub fn parse<T, E: std::fmt::Display>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        parse(&text).map(Some).map_err(|error| Refusal::query(name, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_list() {
        for text in [
            "event_types=a%2Cb",
            "event_types=a,b",
            "event_types=a&event_types=b",
            "event_types[]=a&event_types[]=b",
            "event_types%5B0%5D=a&event_types%5B1%5D=b",
            "other=c&event_types=a&event_types_more=d&event_types=,b",
        ] {
            assert_eq!(Query::new(Some(text)).list("event_types"), ["a", "b"], "{text}");
        }
    }

    #[test]
    fn types_are_checked() {
        let query = Query::new(Some("yes=true&odd=1&n=7&minus=-1&big=99999999999&empty=&day=x"));
        assert!(query.flag("yes", false).unwrap());
        assert!(query.flag("absent", true).unwrap());
        assert!(query.flag("odd", true).is_err());
        assert_eq!(query.number("n").unwrap(), Some(7));
        assert_eq!(query.number("empty").unwrap(), None);
        assert_eq!(query.number("big").unwrap(), Some(u32::MAX));
        assert!(query.number("minus").is_err());
        assert!(query.time("day").is_err());
    }
}
