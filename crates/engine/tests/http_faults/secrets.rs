//! Where secrets may be.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tarpon_registry::{CredentialSource, Credentials};
use tarpon_testkit::registry::{PASSWORD, USER};
use tarpon_testkit::transport::Seen;

/// The host of the registry and that of its token service.
pub(crate) const REGISTRY: &str = "registry.test";
const TOKENS: &str = "auth.test";
/// The host of blobs behind presigned addresses.
pub(crate) const BLOBS: &str = "cdn.test";

/// The user's credentials, and a file in `folder` that allows the token service to have them.
pub(crate) fn credentials(folder: &Path) -> CredentialSource {
    let services = folder.join("token-services");
    std::fs::write(&services, format!("{REGISTRY} {TOKENS}\n")).unwrap();
    let credentials = Credentials::parse(&format!("{USER}:{PASSWORD}"));
    CredentialSource::new(credentials, Vec::new()).with_token_services(vec![services])
}

/// Why this text has no place in a message.
pub(crate) fn check_message(text: &str) -> Result<(), String> {
    let pair = STANDARD.encode(format!("{USER}:{PASSWORD}"));
    match [PASSWORD, &pair, "token-", "signature-"].into_iter().find(|secret| text.contains(secret)) {
        Some(_) => Err(format!("a secret in {text:?}")),
        None if text.contains('\n') => Err(format!("a message of several lines: {text:?}")),
        None => Ok(()),
    }
}

/// Why this request may not be sent.
pub(crate) fn check_request(seen: &Seen) -> Result<(), String> {
    let (url, host) = (&seen.url, seen.url.host_str().unwrap_or_default());
    let header = seen.headers.get("authorization").map(|value| value.to_str().unwrap());
    let is_allowed = match (host, header) {
        (_, None) => true,
        (REGISTRY, Some(header)) => header.starts_with("Bearer ") || header.starts_with("Basic "),
        (TOKENS, Some(header)) => header.starts_with("Basic "),
        (_, Some(_)) => false,
    };
    let rest = format!("{}{:?}", url.as_str(), seen.body);
    let is_clean =
        !rest.contains(PASSWORD) && !rest.contains("token-") && (host == BLOBS || !rest.contains("signature-"));
    match url.scheme() {
        "https" if is_allowed && is_clean => Ok(()),
        "https" => Err(format!("a secret to {url}")),
        scheme => Err(format!("a request by {scheme}: {url}")),
    }
}
