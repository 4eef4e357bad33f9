//! The result of a conversion.

use serde::Serialize;
use tarpon_oci::Digest;

/// A completed conversion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Conversion {
    /// The source, normalised.
    pub source: String,
    /// Digest of the manifest or index that its name refers to.
    pub source_digest: Digest,
    /// The destination, normalised.
    pub destination: String,
    /// Format of the layers.
    pub format: String,
    /// Digest of the manifest or index that now has the destination's tag.
    pub digest: Digest,
    /// Whether that is an index.
    pub is_index: bool,
    /// The image of tables of contents beside it.
    pub external_toc: Option<TocImage>,
    /// Each image.
    pub images: Vec<ConvertedImage>,
    /// Notes, such as what was left out, one line each.
    pub notes: Vec<String>,
}

/// One image of a conversion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConvertedImage {
    /// Its platform.
    pub platform: String,
    /// Its manifest before.
    pub source_digest: Digest,
    /// Its manifest now.
    pub digest: Digest,
    /// Compressed bytes of its layers before.
    pub source_size: u64,
    /// Compressed bytes of its layers now.
    pub size: u64,
    /// Its layers, lowest first.
    pub layers: Vec<ConvertedLayer>,
}

/// One layer of a conversion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConvertedLayer {
    /// The blob before.
    pub source_digest: Digest,
    /// The blob now.
    pub digest: Digest,
    /// Bytes of the blob before.
    pub source_size: u64,
    /// Bytes of the blob now.
    pub size: u64,
    /// How it was produced.
    pub outcome: Outcome,
}

/// How a layer was produced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Rewritten.
    Converted,
    /// It was already in the format, and its blob was copied.
    Copied,
    /// It was already in the format, and the destination had its blob or mounted it from the source's repository.
    Reused,
}

/// An image that holds tables of contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TocImage {
    /// Its tag at the destination.
    pub tag: String,
    /// Digest of its manifest.
    pub digest: Digest,
}
