//! The supported media types. Everything else is refused by name.

use std::fmt;

/// The type of a blob in a descriptor or a `Content-Type`. Only listed types are interpreted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MediaType {
    /// An image manifest: OCI, or Docker schema 2, which has the same shape.
    Manifest,
    /// An image index or Docker manifest list.
    Index,
    /// An image config.
    Config,
    /// A layer that can be read.
    Layer(Compression),
    /// A layer whose bytes are stored elsewhere ("foreign", "non-distributable"): never fetched.
    ForeignLayer,
    /// Docker's manifest format before 2016, which does not name its config and layers by digest.
    DockerSchema1,
    /// Anything else, unchanged.
    Other(String),
}

/// The compression of a layer's tar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Plain tar.
    None,
    /// gzip, eStargz included.
    Gzip,
    /// Zstandard, zstd:chunked included.
    Zstd,
}

impl Compression {
    /// All values. Their positions are their numbers.
    const ALL: [Self; 3] = [Self::None, Self::Gzip, Self::Zstd];

    /// The number of the value in our binary formats.
    pub fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::Zstd => 2,
        }
    }

    /// The compression with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// The type of an OCI image manifest.
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// The type of an OCI image index.
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// The type of an OCI image config.
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// The type of an empty JSON object: the config where none is needed.
pub(crate) const EMPTY_JSON: &str = "application/vnd.oci.empty.v1+json";
/// The type of a Docker schema 2 manifest.
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// The type of a Docker manifest list.
pub const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// The `Accept` types of a request for a manifest. Without the OCI types some registries answer 404 for an OCI image.
pub const ACCEPT_MANIFEST: [&str; 4] = [OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_INDEX];

/// Bytes of either half of a media type (RFC 6838 §4.2).
const NAME_BYTES: usize = 127;

/// Whether `text` is `TYPE/SUBTYPE` (RFC 6838 §4.2) without parameters.
pub fn is_valid(text: &str) -> bool {
    let name = |name: &str| {
        let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&b);
        first && name.len() <= NAME_BYTES && name.bytes().all(allowed)
    };
    text.split_once('/').is_some_and(|(kind, subtype)| name(kind) && name(subtype))
}

impl MediaType {
    /// Classifies `text`, ignoring parameters (`; charset=…`) and the case of letters, as in HTTP.
    pub fn parse(text: &str) -> Self {
        let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            OCI_MANIFEST | DOCKER_MANIFEST => Self::Manifest,
            OCI_INDEX | DOCKER_INDEX => Self::Index,
            OCI_CONFIG | "application/vnd.docker.container.image.v1+json" => Self::Config,
            "application/vnd.oci.image.layer.v1.tar" | "application/vnd.docker.image.rootfs.diff.tar" => {
                Self::Layer(Compression::None)
            }
            "application/vnd.oci.image.layer.v1.tar+gzip"
            | "application/vnd.docker.image.rootfs.diff.tar.gzip"
            | "application/vnd.docker.image.rootfs.diff.tar+gzip" => Self::Layer(Compression::Gzip),
            "application/vnd.oci.image.layer.v1.tar+zstd"
            | "application/vnd.docker.image.rootfs.diff.tar.zstd"
            | "application/vnd.docker.image.rootfs.diff.tar+zstd" => Self::Layer(Compression::Zstd),
            "application/vnd.docker.distribution.manifest.v1+json"
            | "application/vnd.docker.distribution.manifest.v1+prettyjws" => Self::DockerSchema1,
            other if is_foreign_layer(other) => Self::ForeignLayer,
            _ => Self::Other(text.chars().take(200).collect()),
        }
    }
}

fn is_foreign_layer(essence: &str) -> bool {
    essence.starts_with("application/vnd.oci.image.layer.nondistributable.v1.tar")
        || essence.starts_with("application/vnd.docker.image.rootfs.foreign.diff.tar")
}

impl Compression {
    /// The OCI media type of a layer with this compression.
    pub fn layer_media_type(self) -> &'static str {
        match self {
            Self::None => "application/vnd.oci.image.layer.v1.tar",
            Self::Gzip => "application/vnd.oci.image.layer.v1.tar+gzip",
            Self::Zstd => "application/vnd.oci.image.layer.v1.tar+zstd",
        }
    }

    /// Detects the compression from the first bytes of a layer. A tar has no magic at its start, so it is the default.
    pub fn detect(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            // A skippable frame in front, as in the output of some writers of seekable zstd.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ => Self::None,
        }
    }
}

impl fmt::Display for MediaType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manifest => f.write_str("an image manifest"),
            Self::Index => f.write_str("an image index"),
            Self::Config => f.write_str("an image config"),
            Self::Layer(compression) => write!(f, "a layer ({compression})"),
            Self::ForeignLayer => f.write_str("a foreign layer"),
            Self::DockerSchema1 => f.write_str("a Docker schema 1 manifest"),
            Self::Other(text) => write!(f, "{text:?}"),
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "tar",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oci_and_docker_spellings_mean_the_same() {
        assert_eq!(MediaType::parse(OCI_MANIFEST), MediaType::parse(DOCKER_MANIFEST));
        assert_eq!(MediaType::parse(OCI_INDEX), MediaType::parse(DOCKER_INDEX));
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            assert_eq!(MediaType::parse(compression.layer_media_type()), MediaType::Layer(compression));
        }
    }

    #[test]
    fn a_media_type_is_two_plain_names() {
        for text in [OCI_MANIFEST, EMPTY_JSON, "a/b", "image/svg+xml"] {
            assert!(is_valid(text), "{text}");
        }
        let long = format!("a/{}", "b".repeat(128));
        for text in ["", "a", "a/", "/b", "a/b/c", "a/b; c=d", "a/ b", "a/b\n", "a/.b", "a/ü", &long] {
            assert!(!is_valid(text), "{text}");
        }
    }

    #[test]
    fn parameters_and_case_are_ignored() {
        assert_eq!(MediaType::parse("Application/vnd.OCI.image.index.v1+json; charset=utf-8"), MediaType::Index);
    }

    #[test]
    fn foreign_layers_are_distinguished_from_unknown_types() {
        for text in [
            "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
            "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
        ] {
            assert_eq!(MediaType::parse(text), MediaType::ForeignLayer);
        }
        assert_eq!(MediaType::parse("text/html"), MediaType::Other("text/html".to_owned()));
    }

    #[test]
    fn each_half_of_a_media_type_is_bounded() {
        let half = "a".repeat(NAME_BYTES);
        assert!(is_valid(&format!("{half}/{half}")));
        assert!(!is_valid(&format!("{half}a/{half}")) && !is_valid(&format!("{half}/{half}a")));
    }

    #[test]
    fn the_numbers_of_stored_compressions_stay_the_same() {
        let numbers = [Compression::None, Compression::Gzip, Compression::Zstd].map(Compression::number);
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(numbers.map(Compression::from_number), Compression::ALL.map(Some));
        assert_eq!(Compression::from_number(3), None);
    }
}
