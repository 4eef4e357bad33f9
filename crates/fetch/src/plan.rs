//! Which bytes to ask for: from the chunks that a read misses to pieces, from pieces to requests. Pure.
//!
//! A **piece** is what is decoded at once: one gzip member, one zstd frame or one run of raw bytes, with all the chunks
//! that lie in it (eStargz puts several small files into one member). A **run** is what is asked for at once:
//! neighbouring pieces of one layer.

use std::ops::Range;
use std::sync::Arc;

use tarpon_layer::chunks::ObjectEntry;
use tarpon_layer::{Chunk, Codec, ObjectId, Place};
use tarpon_oci::{Blob, Digest};

use crate::config::Config;
use crate::image::{Image, ImageId};

/// Names a piece. The image is part of the name: what one image's table or source makes of a place in a layer (a failure that
/// is remembered, a request that hangs) must not be what another image's readers get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PieceKey {
    pub(crate) image: ImageId,
    pub(crate) layer: Digest,
    pub(crate) codec: Codec,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// Stands for the layer of a piece that lies in a boot pack: no table has so many.
pub(crate) const NO_LAYER: u16 = u16::MAX;

/// A part of a layer that is fetched and decoded as a whole.
#[derive(Clone)]
pub(crate) struct Piece {
    pub(crate) key: PieceKey,
    pub(crate) blob: Blob,
    pub(crate) image: Arc<Image>,
    /// Number of the layer in the image's table.
    pub(crate) layer: u16,
    /// The chunks in it, the one that was asked for first.
    pub(crate) chunks: Vec<PieceChunk>,
}

/// A chunk as part of a piece and of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PieceChunk {
    pub(crate) object: ObjectId,
    pub(crate) object_size: u64,
    pub(crate) object_offset: u64,
    pub(crate) size: u64,
    pub(crate) digest: Digest,
    /// Whether the digest is that of its bytes. If not, it is that of the encoded piece.
    pub(crate) names_content: bool,
    /// Where it starts in the decoded piece.
    pub(crate) skip: u64,
}

/// Names the bytes of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ChunkName {
    /// By their digest: whoever has them.
    Content(Digest),
    /// By object and offset as an image has them, where nobody knows their digest beforehand.
    Place(ImageId, ObjectId, u64),
}

impl PieceChunk {
    /// What the table says about one chunk of an object.
    pub(crate) fn new(object: ObjectId, entry: &ObjectEntry, chunk: &Chunk) -> Self {
        let skip = match chunk.place {
            Place::Blob { skip, .. } => skip,
            Place::Zeros => 0,
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

    /// Whether it is its object: the same bytes under the same digest.
    pub(crate) fn is_whole_object(&self) -> bool {
        self.names_content && self.is_all_of_object() && self.digest == self.object
    }

    /// Whether the object has no other chunk.
    pub(crate) fn is_all_of_object(&self) -> bool {
        self.object_offset == 0 && self.size == self.object_size
    }

    /// Whether the bytes of `other`, a chunk of the same image, are the bytes of this.
    pub(crate) fn same_bytes(&self, other: &Self) -> bool {
        let same_place = || (self.object, self.object_offset) == (other.object, other.object_offset);
        self.digest == other.digest
            && self.size == other.size
            && self.names_content == other.names_content
            && (self.names_content || same_place())
    }

    /// What goes by this name is the chunk of this image.
    pub(crate) fn name(&self, image: ImageId) -> ChunkName {
        if self.names_content {
            ChunkName::Content(self.digest)
        } else {
            ChunkName::Place(image, self.object, self.object_offset)
        }
    }
}

impl Piece {
    /// Its place in the blob.
    pub(crate) fn range(&self) -> Range<u64> {
        self.key.offset..self.key.offset.saturating_add(self.key.length).min(self.blob.size)
    }

    /// Decoded bytes from its beginning to the end of its last chunk.
    pub(crate) fn decoded_bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.skip.saturating_add(chunk.size)).max().unwrap_or(0)
    }

    /// Bytes that are decoded or hashed for it, whichever are more.
    pub(crate) fn work_bytes(&self) -> u64 {
        let hashed = if self.key.codec.names_content() { 0 } else { self.key.length };
        self.decoded_bytes().max(hashed)
    }

    /// Bytes of memory that it takes, encoded or decoded.
    pub(crate) fn memory(&self) -> u64 {
        self.key.length.max(self.decoded_bytes())
    }

    /// Whether it lies in a boot pack, and in none of the image's layers.
    pub(crate) fn is_of_a_pack(&self) -> bool {
        self.layer == NO_LAYER
    }

    /// Whether its bytes can only be had by decoding the layer from its beginning.
    pub(crate) fn needs_stream(&self) -> bool {
        self.key.codec == Codec::Stream
    }
}

/// Two spans of a deflate stream may meet in the middle of a byte, which belongs to both.
pub(crate) const SHARED_BYTES: u64 = 1;

/// Joins pieces that are neighbours in the same layer. Each run is ascending and free of overlap, but for [`SHARED_BYTES`].
pub(crate) fn runs(mut pieces: Vec<Piece>, config: &Config) -> Vec<Vec<Piece>> {
    pieces.sort_by_key(|piece| (piece.key.layer, piece.key.offset));
    let mut runs: Vec<Vec<Piece>> = Vec::new();
    for piece in pieces {
        match runs.last_mut() {
            Some(run) if joins(run, &piece, config) => run.push(piece),
            _ => runs.push(vec![piece]),
        }
    }
    runs
}

/// Whether what begins at `offset` goes into one request with what ends at `end`.
pub(crate) fn is_next(end: u64, offset: u64, gap: u64) -> bool {
    end.saturating_sub(offset) <= SHARED_BYTES && offset.saturating_sub(end) <= gap
}

fn joins(run: &[Piece], piece: &Piece, config: &Config) -> bool {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return false };
    let end = last.range().end;
    last.key.layer == piece.key.layer
        && !last.needs_stream()
        && !piece.needs_stream()
        && piece.key.offset > last.key.offset
        && is_next(end, piece.key.offset, config.coalesce_gap)
        && piece.range().end - first.key.offset <= config.range_bytes
}
