//! [`InvalidManifest`]: why a manifest, an index or a config is not used.

use crate::{Digest, InvalidDigest, limits};

/// Why a manifest, index or config is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidManifest {
    /// Larger than [`limits::MANIFEST_BYTES`].
    #[error("{size} bytes is more than a manifest or config may have ({})", limits::MANIFEST_BYTES)]
    TooLarge {
        /// Its length.
        size: u64,
    },
    /// Not JSON, or without a required field.
    #[error("malformed: {0}")]
    Json(#[from] serde_json::Error),
    /// A digest that is not sha256.
    #[error(transparent)]
    Digest(InvalidDigest),
    /// A blob larger than [`limits::BLOB_BYTES`].
    #[error("blob {digest} claims {size} bytes")]
    BlobTooLarge {
        /// Its digest.
        digest: Digest,
        /// The claim.
        size: u64,
    },
    /// Has two different readings.
    #[error("ambiguous: {0}")]
    Ambiguous(String),
    /// Docker manifest schema 1.
    #[error(
        "Docker manifest schema 1 is not supported (it names its content by no digest): push the image again with a current tool"
    )]
    Schema1,
    /// Neither a manifest nor an index.
    #[error("neither an image manifest nor an image index{0}")]
    Unknown(String),
    /// An index where a manifest is required.
    #[error("an image index inside an image index is not supported")]
    NestedIndex,
    /// An artifact (chart, signature, …).
    #[error("not a container image: {0}")]
    NotAnImage(String),
    /// Not a supported artifact, though it may be another kind.
    #[error("not an artifact: {0}")]
    NotAnArtifact(String),
    /// More layers than [`limits::LAYERS`].
    #[error("{0} layers are more than {limit}", limit = limits::LAYERS)]
    TooManyLayers(usize),
    /// A layer of an unsupported type.
    #[error("layer {number} ({digest}) has the unsupported media type {media_type:?}")]
    LayerType {
        /// Position, base is 1.
        number: usize,
        /// Its digest.
        digest: Digest,
        /// Its declared type.
        media_type: String,
    },
    /// A foreign or non-distributable layer.
    #[error("layer {number} ({digest}) is foreign (non-distributable): its bytes are not in the registry")]
    ForeignLayer {
        /// Position, base is 1.
        number: usize,
        /// Its digest.
        digest: Digest,
    },
    /// Manifest and config disagree on the number of layers.
    #[error("the manifest has {layers} layers, the config names {diff_ids}")]
    LayerCount {
        /// Layers of the manifest.
        layers: usize,
        /// Layers of the config.
        diff_ids: usize,
    },
}
