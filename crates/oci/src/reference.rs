//! Image references, as Docker resolves them.
//!
//! Grammar: github.com/distribution/reference. A first component with a dot, a colon, or the name `localhost` is a registry.
//! Anything else is a repository on Docker Hub, and one without a slash is in its `library/`.

use std::fmt;
use std::str::FromStr;

use crate::Digest;

/// Docker Hub's name in references.
pub const DOCKER_HUB: &str = "docker.io";
/// The tag of a reference that has neither tag nor digest.
pub const DEFAULT_TAG: &str = "latest";

/// Bytes of a repository name, registry included: the distribution project's limit.
const NAME_BYTES: usize = 255;
/// Bytes of a tag.
const TAG_BYTES: usize = 128;

/// A registry, a repository, and a tag or digest in it. Normalised: equal references are equal text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// The text is not an image reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an image reference: {text:?}: {why}")]
pub struct InvalidReference {
    text: String,
    why: &'static str,
}

impl InvalidReference {
    /// The problem, for messages that show the text already.
    pub fn why(&self) -> &'static str {
        self.why
    }
}

impl Reference {
    /// The registry in its spelling in references: `docker.io`, `quay.io`, `localhost:5000`.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The host of the registry's API: `HOST[:PORT]`. Differs from [`Reference::registry`] for Docker Hub only.
    pub fn api_host(&self) -> &str {
        if self.registry == DOCKER_HUB { "registry-1.docker.io" } else { &self.registry }
    }

    /// The repository, without the registry: `library/debian`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag. `None` only when a digest is given without one.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest that pins the manifest or index. It wins over the tag.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// The same repository, pinned to `digest`, without a tag.
    pub fn pinned(&self, digest: Digest) -> Self {
        Self { tag: None, digest: Some(digest), ..self.clone() }
    }
}

impl FromStr for Reference {
    type Err = InvalidReference;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|why| InvalidReference { text: text.chars().take(300).collect(), why })
    }
}

fn parse(text: &str) -> Result<Reference, &'static str> {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest.parse().map_err(|_| "the part after '@' is not a sha256 digest")?)),
        None => (text, None),
    };
    // A colon after the last slash starts the tag. One before it belongs to a port.
    let name_start = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match rest[name_start..].find(':') {
        Some(colon) => (&rest[..name_start + colon], Some(&rest[name_start + colon + 1..])),
        None => (rest, None),
    };
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err("the tag is not valid");
    }
    let (registry, repository) = split_registry(name)?;
    if registry.len() + repository.len() > NAME_BYTES {
        return Err("the name is longer than 255 bytes");
    }
    let tag = match (tag, digest) {
        (None, None) => Some(DEFAULT_TAG.to_owned()),
        (tag, _) => tag.map(str::to_owned),
    };
    Ok(Reference { registry, repository, tag, digest })
}

fn split_registry(name: &str) -> Result<(String, String), &'static str> {
    if name.is_empty() {
        return Err("the name is empty");
    }
    let (registry, repository) = match name.split_once('/') {
        Some((first, rest)) if is_registry(first) => (first, rest.to_owned()),
        _ => (DOCKER_HUB, name.to_owned()),
    };
    let registry = match registry {
        "index.docker.io" | "registry-1.docker.io" => DOCKER_HUB,
        other => other,
    };
    if !is_host_and_port(registry) {
        return Err("the registry is not a host name with an optional port");
    }
    let repository = match repository {
        short if registry == DOCKER_HUB && !short.contains('/') => format!("library/{short}"),
        full => full,
    };
    if !repository.split('/').all(is_component) {
        return Err("the repository must be lower-case letters, digits and single separators (. _ - /)");
    }
    Ok((registry.to_owned(), repository))
}

/// Whether a bare reference names no registry, as in `alpine:3`: tools of containers look such names up in the host's configuration.
pub fn is_short_name(reference: &str) -> bool {
    match reference.split_once('/') {
        Some((first, _)) => !is_registry(first),
        None => true,
    }
}

/// Docker's rule for telling a registry from the first part of a repository.
fn is_registry(first: &str) -> bool {
    first == "localhost" || first.contains(['.', ':']) || first.bytes().any(|b| b.is_ascii_uppercase())
}

fn is_host_and_port(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        Some(inner) => match inner.split_once(']') {
            Some((address, rest)) => {
                if address.parse::<std::net::Ipv6Addr>().is_err() {
                    return false;
                }
                ("", if rest.is_empty() { None } else { Some(rest.strip_prefix(':').unwrap_or("")) })
            }
            None => return false,
        },
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let port_is_good =
        port.is_none_or(|port| port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|p| p > 0));
    port_is_good && (text.starts_with('[') || host.split('.').all(label))
}

/// `[a-z0-9]+` joined by `.`, `_`, `__` or any number of `-`.
fn is_component(component: &str) -> bool {
    let bytes = component.as_bytes();
    let alphanumeric = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if !alphanumeric(bytes.first()) || !alphanumeric(bytes.last()) {
        return false;
    }
    component
        .split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        .all(|separator| matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|b| b == b'-'))
}

/// Whether `tag` can be a tag: letters, digits, `_`, `.` and `-`, the last two not at its start, at most 128 bytes.
pub fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= TAG_BYTES
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

    use super::*;

    fn full(text: &str) -> String {
        text.parse::<Reference>().unwrap().to_string()
    }

    const PIN: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn short_names_are_docker_hub_library() {
        assert_eq!(full("debian"), "docker.io/library/debian:latest");
        assert_eq!(full("debian:12"), "docker.io/library/debian:12");
        assert_eq!(full("docker.io/debian"), "docker.io/library/debian:latest");
        assert_eq!(full("index.docker.io/library/debian"), "docker.io/library/debian:latest");
        assert_eq!(full("grafana/grafana"), "docker.io/grafana/grafana:latest");
        assert_eq!("debian".parse::<Reference>().unwrap().api_host(), "registry-1.docker.io");
    }

    #[test]
    fn a_dot_a_colon_or_localhost_makes_a_registry() {
        assert_eq!(full("quay.io/a/b"), "quay.io/a/b:latest");
        assert_eq!(full("registry:5000/a"), "registry:5000/a:latest");
        assert_eq!(full("localhost/a"), "localhost/a:latest");
        assert_eq!(full("localhost:5000/a/b/c:1.0"), "localhost:5000/a/b/c:1.0");
        assert_eq!(full("[::1]:5000/a"), "[::1]:5000/a:latest");
        assert_eq!(full("registry/a"), "docker.io/registry/a:latest");
    }

    #[test]
    fn a_pin_needs_no_tag_and_keeps_one() {
        assert_eq!(full(&format!("quay.io/a@{PIN}")), format!("quay.io/a@{PIN}"));
        assert_eq!(full(&format!("quay.io/a:1@{PIN}")), format!("quay.io/a:1@{PIN}"));
    }

    #[test]
    fn what_docker_refuses_is_refused() {
        let long = "a/".repeat(200);
        for text in [
            "",
            ":tag",
            "@",
            "Debian",
            "a//b",
            "a/",
            "/a",
            "a:",
            "a:.tag",
            "a:t/g:",
            "-a",
            "a-",
            "a..b",
            "a___b",
            "quay.io/",
            "quay.io/../etc",
            "quay.io/a?b",
            "quay.io/a b",
            "user@quay.io/a",
            "quay.io:0/a",
            "quay.io:99999/a",
            "quay.io:+80/a",
            "-quay.io/a",
            "[::1/a",
            "[zz]/a",
            "a@sha256:1234",
            "a@sha512:1234",
            long.as_str(),
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text}");
        }
        assert!(format!("a:{}", "t".repeat(129)).parse::<Reference>().is_err());
    }

    /// References that parse: a registry, a path, perhaps a tag, perhaps a digest.
    fn references() -> impl Strategy<Value = String> {
        let registry = "(([a-z0-9]{1,8}\\.){1,3}[a-z]{2,3}(:[1-9][0-9]{0,3})?)|localhost";
        let path = "[a-z0-9]{1,6}((\\.|_|__|--?|/)[a-z0-9]{1,6}){0,3}";
        let tag = proptest::option::of("[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}");
        (registry, path, tag, any::<bool>()).prop_map(|(registry, path, tag, is_pinned)| {
            let tag = tag.map(|tag| format!(":{tag}")).unwrap_or_default();
            let pin = if is_pinned { format!("@{PIN}") } else { String::new() };
            format!("{registry}/{path}{tag}{pin}")
        })
    }

    /// Characters with a meaning in a URL, in a path or to the parser, and anything else that can be printed.
    fn piece() -> impl Strategy<Value = String> {
        const SPECIAL: &[&str] =
            &["..", "/", "//", "/../", "?", "#", "%2e", "@", " ", "\\", "\0", "\n", ":", "[", "]", "&", "A", "-", "."];
        prop_oneof![3 => prop::sample::select(SPECIAL).prop_map(str::to_owned), 1 => "\\PC{1,3}"]
    }

    /// Valid references, half of them with something put in between.
    fn doubtful_references() -> impl Strategy<Value = String> {
        (references(), proptest::option::of((any::<prop::sample::Index>(), piece()))).prop_map(
            |(mut text, inserted)| {
                if let Some((position, piece)) = inserted {
                    text.insert_str(position.index(text.len() + 1), &piece);
                }
                text
            },
        )
    }

    proptest! {
        #[test]
        fn a_normalised_reference_parses_to_itself(text in references()) {
            let reference: Reference = text.parse().unwrap();
            prop_assert_eq!(reference.to_string().parse::<Reference>().unwrap(), reference);
        }
    }

    #[test]
    fn whatever_parses_is_safe_in_a_url() {
        const CASES: u32 = 1024;
        let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(CASES) };
        // The same cases in every run, so that the numbers below do not depend on chance.
        let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        let accepted = std::cell::Cell::new(0);
        let result = runner.run(&doubtful_references(), |text| {
            if let Ok(reference) = text.parse::<Reference>() {
                accepted.set(accepted.get() + 1);
                let safe = |b: u8| b.is_ascii_alphanumeric() || b"._-/:[]@".contains(&b);
                prop_assert!(reference.to_string().bytes().all(safe), "{}", reference);
                prop_assert!(!reference.repository().split('/').any(|part| part == ".." || part.is_empty()));
                let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-/".contains(&b);
                prop_assert!(reference.repository().bytes().all(plain), "{}", reference);
            }
            Ok(())
        });
        result.unwrap();
        // Nearly half of the cases are valid as they were made, and many others are refused: both are tried.
        assert!((CASES * 2 / 5..CASES * 9 / 10).contains(&accepted.get()), "{} of {CASES} parsed", accepted.get());
    }

    #[test]
    fn names_and_tags_may_be_as_long_as_their_limits() {
        let name = |bytes: usize| format!("localhost/{}", "a".repeat(bytes - "localhost".len()));
        assert!(name(NAME_BYTES).parse::<Reference>().is_ok());
        assert!(name(NAME_BYTES + 1).parse::<Reference>().is_err());
        assert!(is_tag(&"a".repeat(TAG_BYTES)));
        assert!(!is_tag(&"a".repeat(TAG_BYTES + 1)));
    }

    #[test]
    fn its_parts_are_those_of_the_text() {
        let reference: Reference = format!("r.example:5000/a/b:t@{PIN}").parse().unwrap();
        assert_eq!((reference.registry(), reference.repository()), ("r.example:5000", "a/b"));
        assert_eq!((reference.tag(), reference.digest()), (Some("t"), Some(&PIN.parse().unwrap())));
        let reference: Reference = "r.example:5000/a".parse().unwrap();
        assert_eq!((reference.tag(), reference.digest()), (Some(DEFAULT_TAG), None));
    }
}
