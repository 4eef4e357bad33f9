//! What is known of the image before the start.

use clap::ValueEnum;

/// The tag of the unconverted image.
pub(super) const TAG: &str = "gzip";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    /// The image in gzip, with its index and its boot pack
    Pack,
    /// The image in gzip, with its index
    Index,
    /// The image in eStargz
    Estargz,
    /// The image in gzip without an index: each layer is streamed whole
    Gzip,
}

impl Form {
    /// As the rows name it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pack => "boot pack",
            Self::Index => "index",
            Self::Estargz => "estargz",
            Self::Gzip => "gzip without an index",
        }
    }

    /// The tag of the image.
    pub(super) fn tag(self) -> &'static str {
        if self == Self::Estargz { "estargz" } else { TAG }
    }

    /// Whether the index of the image is used.
    pub(super) fn uses_index(self) -> bool {
        matches!(self, Self::Pack | Self::Index)
    }
}
