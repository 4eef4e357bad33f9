//! Which headers a configuration may add to requests.

use http::HeaderName;

/// Headers with which a client states what it wants, who it is, and how its message is framed. Another value would change what the
/// response means, or send credentials past the rules for them.
const OWNED: [&str; 26] = [
    "accept",
    "accept-encoding",
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "cookie",
    "cookie2",
    "date",
    "expect",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "keep-alive",
    "range",
    "referer",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];

/// Headers for proxies, which are on the way to each host.
const OWNED_PREFIX: &str = "proxy-";

/// Whether a configuration may add a header of this name, else why not.
pub(super) fn check(name: &str) -> Result<(), String> {
    let Ok(parsed) = name.parse::<HeaderName>() else {
        return Err(format!("{name:?} is not the name of a header"));
    };
    let name = parsed.as_str();
    match OWNED.contains(&name) || name.starts_with(OWNED_PREFIX) {
        true => Err(format!("the header {name} is tarpon's own")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_the_client_owns_are_refused_in_any_spelling() {
        for name in ["Authorization", "HOST", "range", "Cookie", "Proxy-Authorization", "proxy-x", "Content-Length"] {
            assert!(check(name).unwrap_err().ends_with("is tarpon's own"), "{name}");
        }
        for name in ["", "a b", "x:", "ü", "x\n"] {
            assert!(check(name).unwrap_err().ends_with("is not the name of a header"), "{name}");
        }
        for name in ["X-Dragonfly-Application", "x-tenant", "Accept-Language"] {
            assert_eq!(check(name), Ok(()));
        }
    }
}
