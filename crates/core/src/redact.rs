//! Makes text safe for a log: no secret, no personal field, no path or query of a URL.
