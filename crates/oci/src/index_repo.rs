//! [`IndexRepo`]: a place for indexes of images of other registries, and where in it those of an image are.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::{InvalidReference, Reference, Source};

/// A registry prefix or a layout that holds indexes and boot packs of images of other registries, by the digests of their manifests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum IndexRepo {
    /// `HOST[:PORT][/PATH]`: the indexes of `docker.io/library/redis` are in `HOST/PATH/docker.io/library/redis`.
    Registry {
        /// The registry, as in references.
        registry: String,
        /// The path below it; may be empty.
        path: String,
    },
    /// `oci:DIR`: an OCI layout that holds those of all images.
    Layout(PathBuf),
}

/// The text names no index repository.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidIndexRepo {
    /// No host.
    #[error("expected HOST[:PORT]/PATH or oci:DIR: the first part names no registry")]
    NoHost,
    /// A layout with a name, or without a path.
    #[error("expected oci:DIR, without a tag")]
    Layout,
    /// An archive or another transport.
    #[error("an index repository is in a registry (HOST[:PORT]/PATH) or in an OCI layout (oci:DIR)")]
    Transport,
    /// Not a part of a reference.
    #[error("expected HOST[:PORT]/PATH: {}", .0.why())]
    Reference(#[from] InvalidReference),
}

/// Stands for the repository of an image while a prefix is parsed. Two components, because Docker Hub adds one to a single one.
const ANY: &str = "x/x";

impl IndexRepo {
    /// The repository or layout that holds the indexes of `image`. `None`: an image that is in no registry has none in a registry, and the
    /// name of a repository may be too long.
    ///
    /// Different repositories of images have different places: a port follows `_`, which no host name contains, and an IPv6 address is
    /// written out behind `ipv6__`. Host names do not distinguish upper and lower case, and neither do places.
    pub fn place(&self, image: &Source) -> Option<Source> {
        match (self, image) {
            (Self::Layout(directory), _) => Some(Source::OciLayout { directory: directory.clone(), tag: None }),
            (Self::Registry { registry, path }, Source::Registry(image)) => {
                let host = component(image.registry());
                let folder = if path.is_empty() { String::new() } else { format!("{path}/") };
                let text = format!("{registry}/{folder}{host}/{}", image.repository());
                text.parse().ok().map(Source::Registry)
            }
            (Self::Registry { .. }, _) => None,
        }
    }
}

/// A registry as a component of a repository's name.
fn component(registry: &str) -> String {
    let (host, port) = match registry.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        Some((address, port)) => {
            let groups = address.parse::<Ipv6Addr>().map(|address| address.segments()).unwrap_or_default();
            let groups = groups.map(|group| format!("{group:x}"));
            (format!("ipv6__{}", groups.join("-")), port.strip_prefix(':'))
        }
        None => match registry.split_once(':') {
            Some((host, port)) => (host.to_lowercase(), Some(port)),
            None => (registry.to_lowercase(), None),
        },
    };
    port.map_or_else(|| host.clone(), |port| format!("{host}_{port}"))
}

impl FromStr for IndexRepo {
    type Err = InvalidIndexRepo;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.strip_prefix("docker://").unwrap_or(text);
        let text = text.strip_suffix('/').unwrap_or(text);
        let (host, path) = text.split_once('/').unwrap_or((text, ""));
        if let Ok(source @ (Source::OciLayout { .. } | Source::OciArchive { .. } | Source::DockerArchive { .. })) =
            text.parse()
        {
            return match source {
                Source::OciLayout { directory, tag: None } => Ok(Self::Layout(directory)),
                Source::OciLayout { .. } => Err(InvalidIndexRepo::Layout),
                _ => Err(InvalidIndexRepo::Transport),
            };
        }
        if host != "localhost" && !host.contains(['.', ':']) {
            return Err(InvalidIndexRepo::NoHost);
        }
        let probe = if path.is_empty() { format!("{host}/{ANY}") } else { format!("{host}/{path}/{ANY}") };
        let probe: Reference = probe.parse()?;
        let path = probe.repository().strip_suffix(ANY).unwrap_or_default().trim_end_matches('/').to_owned();
        Ok(Self::Registry { registry: probe.registry().to_owned(), path })
    }
}

impl fmt::Display for IndexRepo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registry { registry, path } if path.is_empty() => f.write_str(registry),
            Self::Registry { registry, path } => write!(f, "{registry}/{path}"),
            Self::Layout(directory) => write!(f, "oci:{}", directory.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(repo: &str, image: &str) -> Option<String> {
        let place = repo.parse::<IndexRepo>().unwrap().place(&image.parse().unwrap());
        place.map(|place| place.to_string().trim_end_matches(":latest").to_owned())
    }

    #[test]
    fn an_image_has_a_place_below_the_prefix() {
        let digest = format!("sha256:{}", "0".repeat(64));
        for (repo, image, expected) in [
            ("registry.example/tarpon", "redis:7", "registry.example/tarpon/docker.io/library/redis"),
            ("registry.example/tarpon/", &format!("quay.io/a/b@{digest}"), "registry.example/tarpon/quay.io/a/b"),
            ("docker://localhost:5000", "host:5001/x", "localhost:5000/host_5001/x"),
            ("r.example:5000/a/b", "[2001:db8::1]:80/x", "r.example:5000/a/b/ipv6__2001-db8-0-0-0-0-0-1_80/x"),
            ("docker.io/team", "Host.Example/x", "docker.io/team/host.example/x"),
            ("oci:/shared/dir", "redis", "oci:/shared/dir"),
            ("oci:/shared/dir", "oci:/an/image:v1", "oci:/shared/dir"),
        ] {
            assert_eq!(place(repo, image).as_deref(), Some(expected), "{repo} {image}");
        }
        assert_eq!(place("registry.example/tarpon", "oci:/an/image"), None, "it is in no registry");
        assert_eq!(place("registry.example/tarpon", &format!("quay.io/{}", "a".repeat(235))), None, "too long");
    }

    #[test]
    fn what_names_no_place_is_refused() {
        for text in ["", "tarpon", "team/tarpon", "oci:", "oci:/a:tag", "oci-archive:/a.tar", "docker-archive:/a.tar"] {
            assert!(text.parse::<IndexRepo>().is_err(), "{text:?}");
        }
        let digest = format!("registry.example/a@sha256:{}", "0".repeat(64));
        for text in [&digest, "registry.example/a:v1", "registry.example/A", "registry.example//a", "-r.example/a"] {
            assert!(text.parse::<IndexRepo>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_is_printed_parses_to_the_same() {
        for text in ["registry.example", "localhost:5000/a/b", "docker.io/team", "oci:/shared/dir"] {
            assert_eq!(text.parse::<IndexRepo>().unwrap().to_string(), text);
        }
    }

    fn images() -> impl Strategy<Value = String> {
        let host = "(a|b|ipv6)(-a|[.]a){0,2}|\\[(::1|1::|::ffff:1[.]2[.]3[.]4)\\]";
        (host, "(:(1|5000|443))?", "(a|b|a_1|a-b|1)(/(a|b)){0,2}").prop_map(|(host, port, path)| {
            let is_registry = host.contains(['.', '[']) || !port.is_empty();
            format!("{host}{}{port}/{path}", if is_registry { "" } else { ".c" })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2048) })]

        #[test]
        fn two_repositories_never_share_a_place(one in images(), other in images()) {
            let repo: IndexRepo = "registry.example/tarpon".parse().unwrap();
            let [one, other] = [one, other].map(|text| text.parse::<Source>().unwrap());
            let (first, second) = (repo.place(&one).unwrap(), repo.place(&other).unwrap());
            prop_assert_eq!(first == second, one == other, "{} {} {}", one, other, first);
        }
    }
}
