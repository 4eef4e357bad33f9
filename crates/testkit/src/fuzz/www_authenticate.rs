//! Invariant: any header value is parsed to its end; the output is no longer than the input.

use tarpon_registry::Challenge;

/// Parses `data` as the value of `WWW-Authenticate`.
pub fn www_authenticate(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let challenges = Challenge::parse(text);
    let length = |challenge: &Challenge| match challenge {
        Challenge::Basic => 5,
        Challenge::Bearer { realm, service, scope } => {
            let optional = |text: &Option<String>| text.as_ref().map_or(0, String::len);
            6 + realm.len() + optional(service) + optional(scope)
        }
    };
    assert!(challenges.iter().map(length).sum::<usize>() <= text.len());
}
