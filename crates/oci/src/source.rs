//! Image sources, as written on the command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::{InvalidReference, Reference};

/// An image source. The spelling is that of Skopeo and Podman.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// `docker://REFERENCE`, or a bare reference: an image in a registry.
    Registry(Reference),
    /// `oci:DIR[:TAG]`: an OCI layout directory. The tag may be `@sha256:…`.
    OciLayout {
        /// The directory of `index.json`.
        directory: PathBuf,
        /// The name of an image in the layout. `None` if there is only one.
        tag: Option<String>,
    },
    /// `oci-archive:FILE[:TAG]`: an OCI layout in a tar.
    OciArchive {
        /// The tar.
        file: PathBuf,
        /// The name of an image in the layout. `None` if there is only one.
        tag: Option<String>,
    },
    /// `docker-archive:FILE[:REFERENCE]`: the output of `docker save`.
    DockerArchive {
        /// The tar.
        file: PathBuf,
        /// The name of an image in the archive. `None` if there is only one.
        reference: Option<Reference>,
    },
}

/// The text is not an image source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSource {
    /// A registry or archive reference is malformed.
    #[error(transparent)]
    Reference(#[from] InvalidReference),
    /// The path is empty.
    #[error("no path in {0:?}: write {0}PATH")]
    NoPath(String),
    /// A transport of other tools that is not supported.
    #[error(
        "transport {0:?} is not supported: use docker://REFERENCE, oci:DIR[:TAG], oci-archive:FILE[:TAG] or docker-archive:FILE[:REFERENCE]"
    )]
    Transport(String),
}

/// Transports that are followed by a path.
const TRANSPORTS: [&str; 3] = ["oci", "oci-archive", "docker-archive"];

/// Transports of Skopeo that would otherwise be parsed as a repository with a tag.
const OTHER_TRANSPORTS: [&str; 8] =
    ["containers-storage", "dir", "docker-daemon", "ostree", "sif", "tarball", "http", "https"];

impl FromStr for Source {
    type Err = InvalidSource;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(reference) = text.strip_prefix("docker://") {
            return Ok(Self::Registry(reference.parse()?));
        }
        let Some((scheme, rest)) = text.split_once(':') else {
            return Ok(Self::Registry(text.parse()?));
        };
        match scheme {
            "oci" => path_and_name("oci:", rest).map(|(directory, tag)| Self::OciLayout { directory, tag }),
            "oci-archive" => path_and_name("oci-archive:", rest).map(|(file, tag)| Self::OciArchive { file, tag }),
            "docker-archive" => {
                let (file, reference) = path_and_name("docker-archive:", rest)?;
                let reference = reference.map(|text| text.parse()).transpose()?;
                Ok(Self::DockerArchive { file, reference })
            }
            other if OTHER_TRANSPORTS.contains(&other) && !rest.is_empty() => {
                Err(InvalidSource::Transport(other.to_owned()))
            }
            _ => Ok(Self::Registry(text.parse()?)),
        }
    }
}

/// Whether the text begins with a transport, which cannot be a bare reference.
fn has_transport(text: &str) -> bool {
    let transport = text.split_once(':').map_or("", |(transport, _)| transport);
    TRANSPORTS.contains(&transport) || OTHER_TRANSPORTS.contains(&transport)
}

/// The start of a name that needs no colon before it.
const PIN: &str = "@sha256:";

/// Splits at the first colon, as Skopeo does: a path with a colon in it cannot be named.
fn path_and_name(scheme: &str, rest: &str) -> Result<(PathBuf, Option<String>), InvalidSource> {
    // `DIR@sha256:…` has a colon inside the digest.
    let (path, name) = match (rest.find(PIN), rest.find(':')) {
        (Some(at), Some(colon)) if at < colon => (&rest[..at], Some(&rest[at..])),
        (_, Some(colon)) => (&rest[..colon], Some(&rest[colon + 1..])),
        (_, None) => (rest, None),
    };
    if path.is_empty() {
        return Err(InvalidSource::NoPath(scheme.to_owned()));
    }
    Ok((PathBuf::from(path), name.filter(|name| !name.is_empty()).map(str::to_owned)))
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, path, name) = match self {
            Self::Registry(reference) => {
                let text = reference.to_string();
                // The registry may be a host of that name.
                let transport = if has_transport(&text) { "docker://" } else { "" };
                return write!(f, "{transport}{text}");
            }
            Self::OciLayout { directory, tag } => ("oci", directory, tag.clone()),
            Self::OciArchive { file, tag } => ("oci-archive", file, tag.clone()),
            Self::DockerArchive { file, reference } => {
                ("docker-archive", file, reference.as_ref().map(ToString::to_string))
            }
        };
        write!(f, "{scheme}:{}", path.display())?;
        match name {
            Some(pin) if pin.starts_with(PIN) => f.write_str(&pin),
            Some(name) => write!(f, ":{name}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Source {
        text.parse().unwrap()
    }

    #[test]
    fn a_bare_reference_is_a_registry_image() {
        assert_eq!(parse("debian:12"), parse("docker://docker.io/library/debian:12"));
        assert_eq!(parse("localhost:5000/a").to_string(), "localhost:5000/a:latest");
        assert_eq!(parse("oci").to_string(), "docker.io/library/oci:latest");
    }

    #[test]
    fn layouts_and_archives_have_a_path_and_maybe_a_name() {
        assert_eq!(parse("oci:/a/b"), Source::OciLayout { directory: "/a/b".into(), tag: None });
        assert_eq!(parse("oci:b:v1"), Source::OciLayout { directory: "b".into(), tag: Some("v1".into()) });
        assert_eq!(parse("oci-archive:a.tar:"), Source::OciArchive { file: "a.tar".into(), tag: None });
        let archive = parse("docker-archive:a.tar:debian:12");
        assert_eq!(archive.to_string(), "docker-archive:a.tar:docker.io/library/debian:12");
        assert_eq!(parse(&archive.to_string()), archive);
    }

    #[test]
    fn an_image_in_a_layout_can_be_named_by_digest() {
        let text = format!("oci:/a@sha256:{}", "0".repeat(64));
        let Source::OciLayout { directory, tag } = parse(&text) else { panic!("not a layout") };
        assert_eq!(directory, PathBuf::from("/a"));
        assert_eq!(tag, Some(format!("@sha256:{}", "0".repeat(64))));
        assert_eq!(parse(&text).to_string(), text);
    }

    #[test]
    fn a_name_that_only_begins_as_a_pin_keeps_its_colon() {
        for text in ["oci:dir:@x", "oci:dir:@", "oci:dir:@sha256", "oci-archive:a.tar:@sha512:00", "oci:a@b:@c"] {
            let source = parse(text);
            assert_eq!(source.to_string(), text);
            assert_eq!(parse(&source.to_string()), source, "{text}");
        }
        assert_eq!(parse("oci:a:@sha256:b").to_string(), "oci:a@sha256:b");
    }

    #[test]
    fn a_registry_that_is_called_as_a_transport_is_not_taken_for_one() {
        for host in TRANSPORTS.into_iter().chain(OTHER_TRANSPORTS) {
            let text = format!("docker://{host}:5000/a:v1");
            let source = parse(&text);
            assert!(matches!(source, Source::Registry(_)), "{text}");
            assert_eq!(source.to_string(), text);
            assert_eq!(parse(&source.to_string()), source, "{text}");
        }
        assert_eq!(parse("docker://registry:5000/a:v1").to_string(), "registry:5000/a:v1");
    }

    /// Texts made of parts of sources, so that most of them are meaningful.
    fn texts() -> impl Strategy<Value = String> {
        let pieces = [
            "docker://",
            "oci:",
            "oci-archive:",
            "docker-archive:",
            "dir:",
            "oci",
            "docker",
            ":",
            "@",
            "/",
            ".",
            "-",
            "a",
            "b9",
            "localhost",
            ":5000/",
            "@sha256:",
            "sha256",
            "@sha512:",
            "v1",
            "É",
            " ",
            "\0",
            "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ];
        proptest::collection::vec(proptest::sample::select(pieces.to_vec()), 1..7).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4096) })]

        #[test]
        fn what_parses_prints_as_text_that_parses_to_the_same(text in texts()) {
            if let Ok(source) = text.parse::<Source>() {
                let printed = source.to_string();
                prop_assert_eq!(printed.parse::<Source>(), Ok(source), "{:?} is printed as {:?}", text, printed);
            }
        }
    }

    #[test]
    fn transports_of_other_tools_are_refused_by_name() {
        for text in ["dir:/tmp/x", "containers-storage:debian", "docker-daemon:debian:12", "https://quay.io/a"] {
            assert!(matches!(text.parse::<Source>(), Err(InvalidSource::Transport(_))), "{text}");
        }
        assert!(matches!("oci:".parse::<Source>(), Err(InvalidSource::NoPath(_))));
        assert!(matches!("oci-archive::tag".parse::<Source>(), Err(InvalidSource::NoPath(_))));
    }
}
