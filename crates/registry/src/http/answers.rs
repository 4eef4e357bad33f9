//! Interprets answers: redirects, locations and errors.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, LOCATION};
use tarpon_blob::Fault;
use tarpon_oci::{Digest, limits};
use url::Url;

use super::body;
use super::call::Call;
use super::retry::{Failure, Retry, retry_after};
use crate::transport::Response;

/// Returns `response` to `call`, if its status is one of `good` and its body is not encoded.
pub(super) async fn expect(call: &Call, response: Response, good: &[u16]) -> Result<Response, Failure> {
    check_encoding(&response, &call.shown)?;
    match good.contains(&response.status.as_u16()) {
        true => Ok(response),
        false => Err(refusal(response, &call.shown).await),
    }
}

/// Rejects encoded bodies: an encoding would change the requested bytes.
pub(super) fn check_encoding(response: &Response, shown: &str) -> Result<(), Failure> {
    match response.headers.get(CONTENT_ENCODING) {
        Some(encoding) if response.status.is_success() && encoding != "identity" => {
            Err(Failure::bad_data(format!("{shown}: unexpected content encoding {encoding:?}")))
        }
        _ => Ok(()),
    }
}

pub(super) fn check_length(response: &Response, expected: u64, shown: &str) -> Result<(), Failure> {
    match body::content_length(response) {
        Some(length) if length != expected => {
            Err(Failure::bad_data(format!("{shown}: {length} bytes instead of {expected}")))
        }
        _ => Ok(()),
    }
}

/// A header as text.
pub(super) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// `Docker-Content-Digest`: the digest that the registry declares for what it served or stored.
pub(super) fn declared_digest(headers: &HeaderMap) -> Option<Digest> {
    text(headers, "docker-content-digest")?.parse().ok()
}

/// Checks that the registry stored the bytes that were sent, if it declares a digest.
pub(super) fn check_stored(response: &Response, sent: &Digest, shown: &str) -> Result<(), Failure> {
    match text(&response.headers, "docker-content-digest") {
        Some(stored) if stored != sent.to_string() => {
            let stored: String = stored.chars().filter(|c| !c.is_control()).take(80).collect();
            let message = format!("{shown}: the registry stored {stored} instead of {sent}");
            Err(Failure::new(Fault::BadData, Retry::Never, message))
        }
        _ => Ok(()),
    }
}

/// The redirect target of `response`, which came from `from`, if any.
pub(super) fn redirect(response: &Response, from: &Url, shown: &str) -> Result<Option<Url>, Failure> {
    match response.status.as_u16() {
        301 | 302 | 303 | 307 | 308 => location(response, from, shown).map(Some),
        _ => Ok(None),
    }
}

/// The `Location` of `response`, which came from `from`, with its query.
pub(super) fn location(response: &Response, from: &Url, shown: &str) -> Result<Url, Failure> {
    match text(&response.headers, LOCATION.as_str()) {
        Some(location) => resolve(location, from),
        None => Err(Failure::refused(format!("{shown}: {} without a location", response.status))),
    }
}

/// Resolves `location` against `from`. The result is never less secure than `from`.
pub(super) fn resolve(location: &str, from: &Url) -> Result<Url, Failure> {
    let refused = |why: &str| Failure::refused(format!("{} redirects {why}", host(from)));
    let mut to = from.join(location).map_err(|_| refused("to an invalid address"))?;
    match (from.scheme(), to.scheme()) {
        (_, "https") | ("http", "http") => {}
        ("https", "http") => return Err(refused("from HTTPS to plain HTTP")),
        _ => return Err(refused("to a URL that is not HTTP")),
    }
    if !to.username().is_empty() || to.password().is_some() {
        return Err(refused("to a URL with a password"));
    }
    to.set_fragment(None);
    Ok(to)
}

pub(super) fn host(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// The failure for an answer that is not a success.
pub(super) async fn refusal(response: Response, shown: &str) -> Failure {
    let status = response.status;
    let (fault, retry) = match status.as_u16() {
        404 | 410 => (Fault::NotFound, Retry::Never),
        401 | 403 => (Fault::Denied, Retry::Never),
        416 | 200..=299 => (Fault::BadData, Retry::Once),
        429 | 503 => (Fault::Unavailable, retry_after(&response.headers).map_or(Retry::Later, Retry::After)),
        408 | 425 | 500 | 502 | 504 => (Fault::Unavailable, Retry::Later),
        501 | 505..=599 => (Fault::Unavailable, Retry::Never),
        _ => (Fault::Refused, Retry::Never),
    };
    // The body of a 416 may never arrive: docker-registry announces the blob's length and sends a line of text.
    let reason = match status.as_u16() {
        416 | 200..=299 => None,
        _ => reason(response).await,
    };
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    Failure::new(fault, retry, format!("{shown}: {status}{reason}"))
}

/// The message in a registry's error body.
async fn reason(response: Response) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Body {
        errors: Vec<Entry>,
    }
    #[derive(serde::Deserialize)]
    struct Entry {
        code: String,
        #[serde(default)]
        message: String,
    }
    let collected = body::collect(response, limits::ERROR_BODY_BYTES, "");
    let bytes = tokio::time::timeout(crate::timing::DRAIN, collected).await.ok()?.ok()?;
    let first = serde_json::from_slice::<Body>(&bytes).ok()?.errors.into_iter().next()?;
    let text: String =
        format!("{} {}", first.code, first.message).chars().filter(|c| !c.is_control()).take(200).collect();
    Some(text.trim().to_owned())
}
