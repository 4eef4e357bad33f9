//! Invariant: a digest, reference, source or platform that parses prints as text that parses to the same value; and the
//! parts used in a URL contain only the characters of names.

use tarpon_oci::{Digest, Platform, Reference, Source};

/// Parses `data` as each kind of name that users and manifests give.
pub fn digest_reference(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(digest) = text.parse::<Digest>() {
        assert_eq!(digest.to_string(), text);
    }
    if let Ok(reference) = text.parse::<Reference>() {
        assert_eq!(reference.to_string().parse().as_ref(), Ok(&reference));
        assert!(reference.repository().bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/".contains(&b)));
        assert!(reference.repository().split('/').all(|part| !part.is_empty() && part != "." && part != ".."));
        assert!(reference.tag().is_some() || reference.digest().is_some());
    }
    if let Ok(source) = text.parse::<Source>() {
        assert_eq!(source.to_string().parse().as_ref(), Ok(&source));
    }
    if let Ok(platform) = text.parse::<Platform>() {
        assert_eq!(platform.to_string().parse().as_ref(), Ok(&platform));
        assert_eq!(platform.distance(&platform), Some(0));
    }
}
