//! The format of a layer according to its descriptor.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use tarpon_oci::{Compression, Digest, MediaType};

/// Annotation of eStargz.
pub(crate) const ESTARGZ_DIGEST: &str = "containerd.io/snapshot/stargz/toc.digest";
/// The prefixes of containers/storage since 1.44, and of older versions and stargz-snapshotter.
const ZSTD_PREFIXES: [&str; 2] = ["io.github.containers.zstd-chunked.", "io.containers.zstd-chunked."];
const CHECKSUM: &str = "manifest-checksum";
const POSITION: &str = "manifest-position";

/// A format with a table of contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// gzip members, and a footer with the place of the TOC.
    Estargz,
    /// zstd frames. Annotations contain the place of the TOC.
    ZstdChunked,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Estargz => "eStargz",
            Self::ZstdChunked => "zstd:chunked",
        })
    }
}

/// How to read a layer, according to its descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// As a stream, from its beginning: there is no TOC with a trusted digest.
    Plain,
    /// Through its TOC.
    Toc(TocClaim),
}

/// A claim that the blob has a TOC, with the digest that it must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TocClaim {
    pub(super) format: Format,
    pub(super) digest: Digest,
    pub(super) blob_size: u64,
    /// For zstd:chunked.
    pub(super) position: Position,
}

/// `manifest-position`: the place of the compressed TOC, and its decompressed length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) offset: u64,
    pub(super) compressed: u64,
    pub(super) decoded: u64,
}

/// A descriptor that contradicts itself or is not supported. The message names the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// Layers that registries need not store.
    #[error("foreign (non-distributable) layers are not supported")]
    Foreign,
    /// Not a layer, or encrypted, or of a later kind.
    #[error("unsupported media type of a layer: {0:?}")]
    MediaType(MediaType),
    /// An annotation with an invalid value.
    #[error("annotation {name}: malformed value {value:?}")]
    Annotation {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
    },
    /// One annotation requires another one.
    #[error("annotation {0} is missing")]
    Missing(String),
    /// One blob cannot have two formats, and the choice between them would be arbitrary.
    #[error("annotations {0} and {1} claim two different things")]
    TwoClaims(String, String),
    /// eStargz is gzip, zstd:chunked is zstd.
    #[error("annotation {annotation} claims {format}, which the media type is not of")]
    WrongMediaType {
        /// The annotation.
        annotation: String,
        /// The format it claims.
        format: Format,
    },
}

impl Claim {
    /// Reads media type, annotations and size of a layer's descriptor.
    ///
    /// # Errors
    /// [`ClaimError`]: the layer is refused, not read in another way.
    pub fn of(
        media_type: &MediaType,
        annotations: &BTreeMap<String, String>,
        blob_size: u64,
    ) -> Result<Self, ClaimError> {
        let expected = format_of(media_type)?;
        let mut found: Option<(String, TocClaim)> = None;
        for (name, claim) in estargz(annotations, blob_size).into_iter().chain(zstd_chunked(annotations, blob_size)) {
            let claim = claim?;
            match &found {
                Some((_, first)) if *first == claim => {}
                Some((first, _)) => return Err(ClaimError::TwoClaims(first.clone(), name)),
                None => found = Some((name, claim)),
            }
        }
        match found {
            None => Ok(Self::Plain),
            Some((_, claim)) if expected == Some(claim.format) => Ok(Self::Toc(claim)),
            Some((annotation, claim)) => Err(ClaimError::WrongMediaType { annotation, format: claim.format }),
        }
    }
}

/// The format that a layer of this media type may have, if any.
fn format_of(media_type: &MediaType) -> Result<Option<Format>, ClaimError> {
    match media_type {
        MediaType::Layer(Compression::None) => Ok(None),
        MediaType::Layer(Compression::Gzip) => Ok(Some(Format::Estargz)),
        MediaType::Layer(Compression::Zstd) => Ok(Some(Format::ZstdChunked)),
        MediaType::ForeignLayer => Err(ClaimError::Foreign),
        other => Err(ClaimError::MediaType(other.clone())),
    }
}

type Named = (String, Result<TocClaim, ClaimError>);

fn estargz(annotations: &BTreeMap<String, String>, blob_size: u64) -> Option<Named> {
    let value = annotations.get(ESTARGZ_DIGEST)?;
    let claim = digest(ESTARGZ_DIGEST, value).map(|digest| TocClaim {
        format: Format::Estargz,
        digest,
        blob_size,
        position: Position::default(),
    });
    Some((ESTARGZ_DIGEST.to_owned(), claim))
}

fn zstd_chunked(annotations: &BTreeMap<String, String>, blob_size: u64) -> impl Iterator<Item = Named> {
    ZSTD_PREFIXES.into_iter().filter_map(move |prefix| {
        let [checksum, position] = [CHECKSUM, POSITION].map(|name| format!("{prefix}{name}"));
        let claim = match (annotations.get(&checksum), annotations.get(&position)) {
            (None, None) => return None,
            (None, Some(_)) => Err(ClaimError::Missing(checksum.clone())),
            (Some(_), None) => Err(ClaimError::Missing(position)),
            (Some(digest_value), Some(position_value)) => digest(&checksum, digest_value).and_then(|digest| {
                let place = parse_position(position_value, blob_size);
                let place = place.ok_or_else(|| malformed(&position, position_value))?;
                Ok(TocClaim { format: Format::ZstdChunked, digest, blob_size, position: place })
            }),
        };
        Some((checksum, claim))
    })
}

fn digest(name: &str, value: &str) -> Result<Digest, ClaimError> {
    Digest::from_str(value).map_err(|_| malformed(name, value))
}

fn malformed(name: &str, value: &str) -> ClaimError {
    ClaimError::Annotation { name: name.to_owned(), value: value.chars().take(160).collect() }
}

/// `OFFSET:COMPRESSED:DECODED:1`: the TOC is in the blob, behind the header of its skippable frame.
fn parse_position(text: &str, blob_size: u64) -> Option<Position> {
    let mut fields = text.split(':').map(|field| {
        let is_number = !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| field.parse::<u64>().ok()).flatten()
    });
    let mut next = || fields.next().flatten();
    let position = Position { offset: next()?, compressed: next()?, decoded: next()? };
    let kind = next()?;
    let end = position.offset.checked_add(position.compressed)?;
    let is_valid = kind == 1
        && fields.next().is_none()
        && position.offset >= super::footer::SKIPPABLE_HEADER
        && position.compressed > 0
        && end <= blob_size;
    is_valid.then_some(position)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "io.containers.zstd-chunked.";
    const NEW: &str = "io.github.containers.zstd-chunked.";

    fn claim(compression: Compression, annotations: &[(&str, &str)]) -> Result<Claim, String> {
        let annotations = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Claim::of(&MediaType::Layer(compression), &annotations, 1000).map_err(|error| error.to_string())
    }

    fn format(claim: Claim) -> Option<Format> {
        match claim {
            Claim::Plain => None,
            Claim::Toc(claim) => Some(claim.format()),
        }
    }

    fn digest() -> String {
        Digest::of(b"toc").to_string()
    }

    #[test]
    fn without_annotations_every_layer_is_plain() {
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            assert_eq!(claim(compression, &[("other", "1")]), Ok(Claim::Plain));
        }
        let none = BTreeMap::new();
        assert_eq!(Claim::of(&MediaType::ForeignLayer, &none, 1), Err(ClaimError::Foreign));
        assert!(Claim::of(&MediaType::parse("application/x+encrypted"), &none, 1).is_err());
    }

    #[test]
    fn both_spellings_of_zstd_chunked_and_estargz_are_known() {
        let digest = digest();
        for prefix in [OLD, NEW] {
            let [checksum, position] = [CHECKSUM, POSITION].map(|name| format!("{prefix}{name}"));
            let annotations = [(&*checksum, &*digest), (&*position, "100:50:400:1")];
            assert_eq!(claim(Compression::Zstd, &annotations).map(format), Ok(Some(Format::ZstdChunked)));
        }
        let annotations = [(ESTARGZ_DIGEST, &*digest)];
        assert_eq!(claim(Compression::Gzip, &annotations).map(format), Ok(Some(Format::Estargz)));
    }

    #[test]
    fn contradictory_claims_are_refused() {
        let digest = digest();
        let other = Digest::of(b"other").to_string();
        let names = [OLD, NEW].map(|prefix| [CHECKSUM, POSITION].map(|name| format!("{prefix}{name}")));
        let [[old_sum, old_at], [new_sum, new_at]] = &names;
        let at = "100:50:400:1";
        let cases: [(Compression, &[(&str, &str)]); 9] = [
            (Compression::Zstd, &[(old_sum, &digest), (old_at, at), (ESTARGZ_DIGEST, &digest)]),
            (Compression::Zstd, &[(old_sum, &digest), (old_at, at), (new_sum, &other), (new_at, at)]),
            (Compression::Zstd, &[(old_sum, &digest), (old_at, at), (new_sum, &digest), (new_at, "101:50:400:1")]),
            (Compression::Zstd, &[(new_sum, &digest)]),
            (Compression::Zstd, &[(new_at, at)]),
            (Compression::Zstd, &[(ESTARGZ_DIGEST, &digest)]),
            (Compression::Gzip, &[(new_sum, &digest), (new_at, at)]),
            (Compression::None, &[(ESTARGZ_DIGEST, &digest)]),
            (Compression::Gzip, &[(ESTARGZ_DIGEST, "sha256:1234")]),
        ];
        for (compression, annotations) in cases {
            assert!(claim(compression, annotations).is_err(), "{annotations:?}");
        }
        let same: &[(&str, &str)] = &[(old_sum, &digest), (old_at, at), (new_sum, &digest), (new_at, at)];
        assert_eq!(claim(Compression::Zstd, same).map(format), Ok(Some(Format::ZstdChunked)));
    }

    #[test]
    fn positions_outside_the_blob_are_refused() {
        for text in ["100:50:400:1", "8:992:1:1"] {
            assert!(parse_position(text, 1000).is_some(), "{text}");
        }
        for text in [
            "",
            "100",
            "100:50:400",
            "100:50:400:2",
            "100:50:400:1:1",
            "0:50:400:1",
            "100:0:400:1",
            "100:901:400:1",
            "-1:50:400:1",
            "+100:50:400:1",
            "18446744073709551615:50:400:1",
            "100:50:400:",
        ] {
            assert!(parse_position(text, 1000).is_none(), "{text}");
        }
    }
}
