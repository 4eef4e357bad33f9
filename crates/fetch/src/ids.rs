//! Names of images, chunk lists, pieces and chunks.

use tarpon_layer::{Codec, ObjectId};
use tarpon_oci::Digest;

/// Identifies an image among those of one [`crate::Fetcher`]; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ImageId(u64);

impl ImageId {
    pub(crate) fn new(number: u64) -> Self {
        Self(number)
    }
}

/// Identifies a chunk list: the size of the object and, in order, the size and the digest of each chunk, or that it is zeros. The
/// positions of the chunks are not part of it, unless their digests are not those of their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ListId(Digest);

impl ListId {
    pub(crate) fn new(digest: Digest) -> Self {
        Self(digest)
    }

    pub(crate) fn digest(&self) -> &Digest {
        &self.0
    }
}

/// Identifies a piece. The image is part of the key: a remembered failure or a hanging request of one image's table or source must
/// not affect readers of another image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PieceKey {
    pub(crate) image: ImageId,
    pub(crate) layer: Digest,
    pub(crate) codec: Codec,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// Identifies the bytes of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ChunkName {
    /// By their digest, whichever image has them.
    Content(Digest),
    /// By image, object and offset, where their digest is not known beforehand.
    Place(ImageId, ObjectId, u64),
}
