//! [`Identity`]: whether the name in a signature is one that an image may have.

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tarpon_oci::{Reference, Source};

use crate::scope::{exact, name};
use crate::strict;

/// The rule that compares a signature's name with the image's.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub(crate) enum Identity {
    #[default]
    MatchRepoDigestOrExact,
    MatchExact,
    MatchRepository,
    ExactReference(String),
    ExactRepository(String),
    Remapped {
        prefix: String,
        signed_prefix: String,
    },
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
enum Raw {
    MatchRepoDigestOrExact {},
    MatchExact {},
    MatchRepository {},
    ExactReference { docker_reference: String },
    ExactRepository { docker_repository: String },
    RemapIdentity { prefix: String, signed_prefix: String },
}

impl Identity {
    /// Reads a rule of a policy.
    pub(crate) fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Self>, D::Error> {
        Self::in_policy(from).map(Some)
    }

    /// As [`Identity::present`], of a rule that must be there.
    pub(crate) fn in_policy<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let raw = strict::object(Value::deserialize(from)?).map_err(D::Error::custom)?;
        Ok(match raw {
            Raw::MatchRepoDigestOrExact {} => Self::MatchRepoDigestOrExact,
            Raw::MatchExact {} => Self::MatchExact,
            Raw::MatchRepository {} => Self::MatchRepository,
            Raw::ExactReference { docker_reference } => {
                if Name::parse(&docker_reference).is_none_or(|name| name.is_bare) {
                    return Err(D::Error::custom("dockerReference has neither a tag nor a digest"));
                }
                Self::ExactReference(docker_reference)
            }
            Raw::ExactRepository { docker_repository } => {
                if Name::parse(&docker_repository).is_none() {
                    return Err(D::Error::custom("dockerRepository is not a repository"));
                }
                Self::ExactRepository(docker_repository)
            }
            Raw::RemapIdentity { prefix, signed_prefix } => {
                if let Some(bad) = [&prefix, &signed_prefix].into_iter().find(|prefix| !is_prefix(prefix)) {
                    return Err(D::Error::custom(format!("{bad:?} is neither a host nor a repository with its host")));
                }
                Self::Remapped { prefix, signed_prefix }
            }
        })
    }
}

/// `HOST[:PORT]`, or that and a path.
fn is_prefix(text: &str) -> bool {
    let (host, path) = text.split_once('/').map_or((text, None), |(host, path)| (host, Some(path)));
    let (name, port) = host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port)));
    let is_label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    name.split('.').all(is_label)
        && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit()))
        // A host with a dot, so that the path alone decides.
        && path.is_none_or(|path| format!("host.example/{path}").parse::<Reference>().is_ok_and(|read| read.repository() == path))
}

/// A reference of which it is known whether it has a tag or a digest.
struct Name {
    reference: Reference,
    is_bare: bool,
}

impl Name {
    fn parse(text: &str) -> Option<Self> {
        let after_slash = text.rsplit('/').next().unwrap_or_default();
        let is_bare = !text.contains('@') && !after_slash.contains(':');
        Some(Self { reference: text.parse().ok()?, is_bare })
    }

    fn repository(&self) -> String {
        name(&self.reference)
    }
}

impl Identity {
    /// Whether a signature for `signed` is one for the image. False for images that have no name in a registry, unless the rule names one.
    pub(crate) fn accepts(&self, source: &Source, signed: &str) -> bool {
        let Some(signed) = Name::parse(signed) else { return false };
        let image = match source {
            Source::Registry(reference) => Some(exact(reference)),
            _ => None,
        };
        match (self, image) {
            (Self::ExactReference(expected), _) => {
                let expected = Name::parse(expected).filter(|name| !name.is_bare);
                !signed.is_bare && expected.is_some_and(|expected| expected.reference == signed.reference)
            }
            (Self::ExactRepository(expected), _) => {
                Name::parse(expected).is_some_and(|expected| expected.repository() == signed.repository())
            }
            (_, None) => false,
            (Self::MatchExact, Some(image)) => !signed.is_bare && signed.reference == image,
            (Self::MatchRepository, Some(image)) => signed.repository() == name(&image),
            (Self::MatchRepoDigestOrExact, Some(image)) => is_exact_or_digest(&image, &signed),
            (Self::Remapped { prefix, signed_prefix }, Some(image)) => {
                remapped(&image, prefix, signed_prefix).is_some_and(|image| is_exact_or_digest(&image, &signed))
            }
        }
    }
}

/// With a digest the tag in the signature does not matter: the digest was compared with the manifest's.
fn is_exact_or_digest(image: &Reference, signed: &Name) -> bool {
    match image.tag() {
        _ if signed.is_bare => false,
        Some(_) => signed.reference == *image,
        None => signed.repository() == name(image),
    }
}

fn remapped(image: &Reference, prefix: &str, signed_prefix: &str) -> Option<Reference> {
    let own = name(image);
    let Some(rest) = own.strip_prefix(prefix).filter(|rest| rest.is_empty() || rest.starts_with('/')) else {
        return Some(image.clone());
    };
    let text = image.to_string();
    let suffix = text.strip_prefix(&own)?;
    let new = format!("{signed_prefix}{rest}{suffix}");
    // A name that is completed when it is read names another repository.
    new.parse::<Reference>().ok().filter(|read| read.to_string() == new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(rule: &str, image: &str, signed: &str) -> bool {
        let rule = Identity::in_policy(&mut serde_json::Deserializer::from_str(rule)).unwrap();
        rule.accepts(&image.parse().unwrap(), signed)
    }

    #[test]
    fn each_rule_compares_what_it_names() {
        let digest = format!("sha256:{}", "1".repeat(64));
        let pinned = format!("r.example/a@{digest}");
        let default = r#"{"type":"matchRepoDigestOrExact"}"#;
        let remap = r#"{"type":"remapIdentity","prefix":"r.example","signedPrefix":"vendor.example/images"}"#;
        for (rule, image, signed, expected) in [
            (default, "r.example/a:v1", "r.example/a:v1", true),
            (default, "r.example/a:v1", "r.example/a:v2", false),
            (default, "r.example/a:v1", "r.example/a", false),
            (default, &pinned, "r.example/a:v9", true),
            (default, &pinned, "r.example/a", false),
            (default, &pinned, "r.example/b:v9", false),
            (default, "oci:/a", "r.example/a:v1", false),
            (default, "debian:12", "debian:12", true),
            (r#"{"type":"matchExact"}"#, "r.example/a:v1", "r.example/a:v1", true),
            (r#"{"type":"matchExact"}"#, &pinned, "r.example/a:v1", false),
            (r#"{"type":"matchExact"}"#, &pinned, &pinned, true),
            (r#"{"type":"matchRepository"}"#, "r.example/a:v1", "r.example/a", true),
            (r#"{"type":"matchRepository"}"#, "r.example/a:v1", "r.example/b", false),
            (r#"{"type":"exactReference","dockerReference":"r.example/b:v1"}"#, "oci:/a", "r.example/b:v1", true),
            (r#"{"type":"exactReference","dockerReference":"r.example/b:v1"}"#, "r.example/b:v1", "r.example/b", false),
            (
                r#"{"type":"exactRepository","dockerRepository":"r.example/b"}"#,
                "r.example/a:v1",
                "r.example/b:v7",
                true,
            ),
            (
                r#"{"type":"exactRepository","dockerRepository":"r.example/b"}"#,
                "r.example/a:v1",
                "r.example/a:v1",
                false,
            ),
            (remap, "r.example/a:v1", "vendor.example/images/a:v1", true),
            (remap, "r.example/a:v1", "r.example/a:v1", false),
            (remap, "r.example2/a:v1", "r.example2/a:v1", true),
        ] {
            assert_eq!(accepts(rule, image, signed), expected, "{rule} {image} {signed}");
        }
    }

    #[test]
    fn a_prefix_is_a_host_or_a_repository_with_its_host() {
        for good in ["r.example", "r.example:5000", "localhost", "r.example/a/b", "host/a"] {
            assert!(is_prefix(good), "{good}");
        }
        for bad in ["", "r.example/", "r.example:", "r.example/A", "-a", "r.example/a:v1", "r.example//a"] {
            assert!(!is_prefix(bad), "{bad}");
        }
    }
}
