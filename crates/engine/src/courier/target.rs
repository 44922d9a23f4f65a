//! Where requests of one endpoint go, worked out once so that an attempt parses nothing.

use crate::guard::Host;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Uri};
use percent_encoding::percent_decode_str;
use posthaste_core::endpoint::EndpointUrl;
use std::fmt;
use std::sync::Arc;

/// An endpoint's URL as the courier needs it. Cheap to clone; made once per endpoint version.
///
/// `Debug` shows scheme, host and port only: path, query and user info are payload.
#[derive(Clone)]
pub struct Target {
    pub(super) origin: Arc<Origin>,
    /// The host as it stands in the URL, with the port unless it is the scheme's own.
    pub(super) authority: HeaderValue,
    /// `Basic` credentials, where the URL has user info.
    pub(super) authorization: Option<HeaderValue>,
    /// `None` for a URL that cannot be put into a request; a WHATWG URL always can.
    pub(super) locations: Option<Locations>,
}

/// What connections are shared by.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    pub is_tls: bool,
    pub host: Host,
    pub port: u16,
}

#[derive(Clone)]
pub(super) struct Locations {
    /// Path and query, for HTTP/1.1.
    pub relative: Uri,
    /// With scheme and authority, for HTTP/2.
    pub absolute: Uri,
}

impl From<&EndpointUrl> for Target {
    fn from(endpoint_url: &EndpointUrl) -> Self {
        let url = endpoint_url.as_url();
        let host = match url.host() {
            Some(url::Host::Ipv4(address)) => Host::Address(address.into()),
            Some(url::Host::Ipv6(address)) => Host::Address(address.into()),
            Some(url::Host::Domain(name)) => Host::Name(name.trim_end_matches('.').into()),
            None => Host::Name("".into()),
        };
        let is_tls = endpoint_url.is_https();
        let port = url.port().unwrap_or(if is_tls { 443 } else { 80 });
        let mut authority = url.host_str().unwrap_or_default().to_owned();
        if let Some(port) = url.port() {
            authority.push_str(&format!(":{port}"));
        }
        Self {
            origin: Arc::new(Origin { is_tls, host, port }),
            authorization: authorization(url),
            locations: locations(url, is_tls, &authority),
            authority: HeaderValue::try_from(authority)
                .unwrap_or_else(|_not_ascii| HeaderValue::from_static("")),
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.origin.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}/…", self.authority.to_str().unwrap_or_default())
    }
}

fn locations(url: &url::Url, is_tls: bool, authority: &str) -> Option<Locations> {
    let path_and_query = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = Some(PathAndQuery::try_from(path_and_query).ok()?);
    let relative = Uri::from_parts(parts).ok()?;
    let mut parts = relative.clone().into_parts();
    parts.scheme = Some(if is_tls { Scheme::HTTPS } else { Scheme::HTTP });
    parts.authority = Some(Authority::try_from(authority).ok()?);
    let absolute = Uri::from_parts(parts).ok()?;
    Some(Locations { relative, absolute })
}

/// RFC 7617: the user info is percent-decoded, joined by a colon and encoded in base64.
fn authorization(url: &url::Url) -> Option<HeaderValue> {
    let password = url.password();
    if url.username().is_empty() && password.is_none() {
        return None;
    }
    let mut credentials: Vec<u8> = percent_decode_str(url.username()).collect();
    credentials.push(b':');
    credentials.extend(percent_decode_str(password.unwrap_or_default()));
    let mut value =
        HeaderValue::try_from(format!("Basic {}", STANDARD.encode(credentials))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Target {
        Target::from(&EndpointUrl::parse(url).unwrap())
    }

    #[test]
    fn f042_a_long_url_is_kept_unchanged() {
        for length in [255, 256, 1_000, 2_048, 8_000] {
            let url = format!("http://hooks.test/{}", "a".repeat(length - 18));
            let locations = target(&url).locations.unwrap();
            assert_eq!(locations.absolute.to_string(), url);
        }
    }

    #[test]
    fn every_path_and_query_that_a_url_can_have_can_be_sent() {
        let all: String = (1..=255).map(char::from).filter(|c| !"?#\t\n\r".contains(*c)).collect();
        let url = format!("http://hooks.test/{}?{}", all.replace(['/', '\\'], ""), all);
        let endpoint_url = EndpointUrl::parse(&url).unwrap();
        let locations = Target::from(&endpoint_url).locations.unwrap();
        assert_eq!(locations.absolute.to_string(), endpoint_url.as_str());
    }

    #[test]
    fn a_default_port_is_left_out_of_the_authority() {
        assert_eq!(target("https://hooks.test:443/x").authority, "hooks.test");
        assert_eq!(target("http://hooks.test:443/x").authority, "hooks.test:443");
        assert_eq!(target("http://[2001:DB8::1]:8080/x").authority, "[2001:db8::1]:8080");
    }

    #[test]
    fn debug_shows_neither_path_nor_user_info() {
        let shown = format!("{:?}", target("https://user:pw@hooks.test:8443/secret?token=abc"));
        assert_eq!(shown, "https://hooks.test:8443/…");
    }
}
