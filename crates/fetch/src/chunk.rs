//! [`PieceChunk`]: a chunk as fetching handles it.

use tarpon_layer::chunks::ObjectEntry;
use tarpon_layer::{Chunk, ChunkPlace, ObjectId};
use tarpon_oci::Digest;

use crate::ids::{ChunkName, ImageId};

/// A chunk, as part of a piece and of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PieceChunk {
    pub(crate) object: ObjectId,
    pub(crate) object_size: u64,
    pub(crate) object_offset: u64,
    pub(crate) size: u64,
    pub(crate) digest: Digest,
    /// Whether the digest is that of its bytes. Otherwise it is the digest of the encoded piece.
    pub(crate) names_content: bool,
    /// Where it starts in the decoded piece.
    pub(crate) skip: u64,
}

impl PieceChunk {
    /// The chunk `chunk` of an object, from the chunk table.
    pub(crate) fn new(object: ObjectId, entry: &ObjectEntry, chunk: &Chunk) -> Self {
        let skip = match chunk.place {
            ChunkPlace::Blob { skip, .. } => skip,
            ChunkPlace::Zeros => 0,
        };
        Self {
            object,
            object_size: entry.size,
            object_offset: chunk.object_offset,
            size: chunk.size,
            digest: chunk.digest,
            names_content: chunk.place.names_content(),
            skip,
        }
    }

    /// Whether the chunk is the whole object, with the same digest.
    pub(crate) fn is_whole_object(&self) -> bool {
        self.names_content && self.is_all_of_object() && self.digest == self.object
    }

    /// Whether it is the only chunk of its object.
    pub(crate) fn is_all_of_object(&self) -> bool {
        self.object_offset == 0 && self.size == self.object_size
    }

    /// Whether `other`, a chunk of the same image, has the same bytes.
    pub(crate) fn same_bytes(&self, other: &Self) -> bool {
        let same_place = || (self.object, self.object_offset) == (other.object, other.object_offset);
        self.digest == other.digest
            && self.size == other.size
            && self.names_content == other.names_content
            && (self.names_content || same_place())
    }

    /// The name of its bytes, as a chunk of `image`.
    pub(crate) fn name(&self, image: ImageId) -> ChunkName {
        if self.names_content {
            ChunkName::Content(self.digest)
        } else {
            ChunkName::Place(image, self.object, self.object_offset)
        }
    }
}

/// Bytes that two neighbouring pieces may share: two spans of a deflate stream can meet in the middle of a byte.
pub(crate) const SHARED_BYTES: u64 = 1;

/// Whether one request covers both a piece that ends at `end` and the next, which begins at `offset`.
pub(crate) fn is_next(end: u64, offset: u64, gap: u64) -> bool {
    end.saturating_sub(offset) <= SHARED_BYTES && offset.saturating_sub(end) <= gap
}
