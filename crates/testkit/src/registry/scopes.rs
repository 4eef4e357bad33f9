//! Scopes of tokens.

use bytes::Bytes;
use http::{Method, Request};

/// The scopes that a token must have for `request` to `/v2/REPOSITORY/…`.
pub(super) fn needed(request: &Request<Bytes>) -> Vec<String> {
    let write = !matches!(*request.method(), Method::GET | Method::HEAD);
    let mut scopes = vec![format!("repository:app:pull{}", if write { ",push" } else { "" })];
    let query = request.uri().query().unwrap_or_default();
    let from = url::form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "from");
    if let Some((_, from)) = from.filter(|_| *request.method() == Method::POST) {
        scopes.push(format!("repository:{from}:pull"));
    }
    scopes
}

/// Whether a token for `given` allows `needed`.
pub(super) fn allows(given: &[String], needed: &str) -> bool {
    let parts = |scope: &str| scope.rsplit_once(':').map(|(name, actions)| (name.to_owned(), actions.to_owned()));
    let Some((name, actions)) = parts(needed) else { return false };
    given.iter().filter_map(|scope| parts(scope)).any(|(given, allowed)| {
        given == name && actions.split(',').all(|action| allowed.split(',').any(|allowed| allowed == action))
    })
}
