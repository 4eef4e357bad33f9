//! [`LayerKind`] and [`Verification`]: how a layer is read, and to what extent it was verified.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tarpon_oci::Compression;

/// Implements the string forms of an enum: `as_str`, `Display`, `FromStr`, and through these its serialised form.
macro_rules! words {
    ($name:ident, $what:literal, $($variant:ident = $word:literal),+ $(,)?) => {
        impl $name {
            /// Its name in records, `status` and the API.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(word: &str) -> Result<Self, String> {
                match word {
                    $($word => Ok(Self::$variant),)+
                    other => Err(format!(concat!("unknown ", $what, " {:?}"), other)),
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(word: String) -> Result<Self, String> {
                word.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.as_str().to_owned()
            }
        }
    };
}

/// How a layer is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum LayerKind {
    /// An uncompressed tar without a table of contents.
    Tar,
    /// A tar with gzip, without a table of contents.
    TarGzip,
    /// A tar with zstd, without a table of contents.
    TarZstd,
    /// By the table of contents of eStargz.
    Estargz,
    /// By the table of contents of zstd:chunked.
    ZstdChunked,
    /// By a ztoc of a SOCI index, which does not name contents by digests.
    Soci,
}

words!(
    LayerKind,
    "format of a layer",
    Tar = "tar",
    TarGzip = "tar+gzip",
    TarZstd = "tar+zstd",
    Estargz = "eStargz",
    ZstdChunked = "zstd:chunked",
    Soci = "soci",
);

impl LayerKind {
    /// A layer without a table of contents.
    pub fn plain(compression: Compression) -> Self {
        match compression {
            Compression::None => Self::Tar,
            Compression::Gzip => Self::TarGzip,
            Compression::Zstd => Self::TarZstd,
        }
    }

    /// Whether the layer has no table of contents.
    pub fn is_plain(self) -> bool {
        matches!(self, Self::Tar | Self::TarGzip | Self::TarZstd)
    }
}

/// To what extent a layer was verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Verification {
    /// All bytes of the layer were read, and hash to the diffID in the image's config.
    DiffId,
    /// The manifest names the digest of the table of contents, which names the digest of each chunk.
    Toc,
    /// An index describes the layer, and the user gave the digest of the index.
    IndexPinned,
    /// An index describes the layer. It comes from the registry's list of referrers, which the user chose to trust.
    IndexTrusted,
    /// An index describes the layer. A key that the user's policy names signed it.
    IndexSigned,
    /// A SOCI index describes the layer; the digests in its ztoc are those of spans.
    Soci,
    /// The layer does not hash to the diffID in the image's config. Nothing more is read from it, here and below.
    DiffIdRefuted,
    /// The table of contents does not match the layer.
    TocRefuted,
    /// The index does not match the layer.
    IndexRefuted,
    /// The SOCI index does not match the layer.
    SociRefuted,
}

words!(
    Verification,
    "verification of a layer",
    DiffId = "diffID-verified",
    Toc = "toc-verified",
    IndexPinned = "index-pinned",
    IndexTrusted = "index-trusted",
    IndexSigned = "index-signed",
    Soci = "soci-verified",
    DiffIdRefuted = "diffID-refuted",
    TocRefuted = "toc-refuted",
    IndexRefuted = "index-refuted",
    SociRefuted = "soci-refuted",
);

impl Verification {
    /// Whether the digests in the manifest do not prove the description of the layer: it comes from an index, or was refuted.
    pub fn is_by_index(self) -> bool {
        self.is_refuted() || matches!(self, Self::IndexPinned | Self::IndexTrusted | Self::IndexSigned | Self::Soci)
    }

    /// Whether the description of the layer was found not to match the layer.
    pub fn is_refuted(self) -> bool {
        self.refuted() == self
    }

    /// The state after the description of the layer was found not to match the layer.
    #[must_use]
    pub fn refuted(self) -> Self {
        match self {
            Self::DiffId | Self::DiffIdRefuted => Self::DiffIdRefuted,
            Self::Toc | Self::TocRefuted => Self::TocRefuted,
            Self::IndexPinned | Self::IndexTrusted | Self::IndexSigned | Self::IndexRefuted => Self::IndexRefuted,
            Self::Soci | Self::SociRefuted => Self::SociRefuted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [LayerKind; 6] = [
        LayerKind::Tar,
        LayerKind::TarGzip,
        LayerKind::TarZstd,
        LayerKind::Estargz,
        LayerKind::ZstdChunked,
        LayerKind::Soci,
    ];
    const VERIFICATIONS: [Verification; 10] = [
        Verification::DiffId,
        Verification::Toc,
        Verification::IndexPinned,
        Verification::IndexTrusted,
        Verification::IndexSigned,
        Verification::Soci,
        Verification::DiffIdRefuted,
        Verification::TocRefuted,
        Verification::IndexRefuted,
        Verification::SociRefuted,
    ];

    #[test]
    fn each_word_is_read_back_and_others_are_refused() {
        for kind in KINDS {
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!((json.trim_matches('"'), kind.as_str().parse()), (kind.as_str(), Ok(kind)));
        }
        for state in VERIFICATIONS {
            let json = serde_json::to_string(&state).unwrap();
            assert_eq!(serde_json::from_str::<Verification>(&json).unwrap(), state);
        }
        let error = serde_json::from_str::<Verification>("\"index-pined\"").unwrap_err().to_string();
        assert!(error.contains("unknown verification of a layer \"index-pined\""), "{error}");
        assert!("estargz".parse::<LayerKind>().is_err(), "the words are those of the records");
    }

    #[test]
    fn every_state_can_be_refuted_and_stays_refuted() {
        for state in VERIFICATIONS {
            assert!(state.refuted().is_refuted() && state.refuted().is_by_index(), "{state}");
            assert_eq!(state.is_refuted(), state.as_str().ends_with("-refuted"), "{state}");
            assert_eq!(state.refuted().as_str().split('-').next(), state.as_str().split('-').next(), "{state}");
        }
    }
}
