//! Makes text safe for a log: no secret, no personal field, no path or query of a URL.
//!
//! Two forms of a URL leave the process. A log, a metric or an error gets `url_for_log`, which
//! tells the host and no more, because chat-type hooks carry their token in the path. The
//! endpoint's owner, who wrote the URL, gets `url_for_owner`.

use std::fmt::Write as _;
use url::Url;

const MASK: &str = "***";

/// Scheme, host and port: enough to find a receiver, nothing that opens it.
pub fn url_for_log(url: &Url) -> String {
    let mut text = origin(url, "");
    text.push_str("/…");
    text
}

/// The URL with user info and the values of its query masked.
pub fn url_for_owner(url: &Url) -> String {
    let has_user = !url.username().is_empty() || url.password().is_some();
    let mut text = origin(url, if has_user { "***@" } else { "" });
    text.push_str(url.path());
    let Some(query) = url.query() else { return text };
    for (index, pair) in query.split('&').enumerate() {
        text.push(if index == 0 { '?' } else { '&' });
        // A part without a name may be the secret itself.
        match pair.split_once('=') {
            Some((name, value)) => {
                text.push_str(name);
                text.push('=');
                text.push_str(mask(value));
            }
            None => text.push_str(mask(pair)),
        }
    }
    text
}

/// Stands for a text that must not be shown; tells only whether there is one.
pub fn mask(text: &str) -> &'static str {
    if text.is_empty() { "" } else { MASK }
}

fn origin(url: &Url, user: &str) -> String {
    let host = url.host_str().unwrap_or_default();
    let mut text = format!("{}://{user}{host}", url.scheme());
    if let Some(port) = url.port() {
        // Writing to a string cannot fail.
        let _ = write!(text, ":{port}");
    }
    text
}
