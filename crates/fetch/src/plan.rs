//! Plans requests: from the chunks that a read misses to pieces, from pieces to requests. Pure.
//!
//! A **piece** is the unit of decoding: one gzip member, one zstd frame or one run of raw bytes, with all the chunks inside
//! (eStargz puts several small files into one member). A **run** is the unit of a request: neighbouring pieces of one layer.

use std::ops::Range;
use std::sync::Arc;

use tarpon_layer::Codec;
use tarpon_oci::Blob;

use crate::chunk::{PieceChunk, is_next};
use crate::config::Config;
use crate::ids::PieceKey;
use crate::image::Image;
use crate::pack::places::Pack;

/// Layer number of a piece in a boot pack: no table has this many layers.
pub(crate) const NO_LAYER: u16 = u16::MAX;

/// A part of a layer that is fetched and decoded as a whole.
#[derive(Clone)]
pub(crate) struct Piece {
    pub(crate) key: PieceKey,
    pub(crate) blob: Blob,
    pub(crate) image: Arc<Image>,
    /// Number of the layer in the image's table.
    pub(crate) layer: u16,
    /// The chunks in it, starting with the requested one.
    pub(crate) chunks: Vec<PieceChunk>,
}

impl Piece {
    /// Its range in the blob.
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

    /// Whether it is part of a boot pack instead of a layer of the image.
    pub(crate) fn is_of_a_pack(&self) -> bool {
        self.layer == NO_LAYER
    }

    /// Whether it is a frame of `pack`.
    pub(crate) fn is_of(&self, pack: &Pack) -> bool {
        self.is_of_a_pack() && self.blob == pack.blob()
    }

    /// Whether its bytes are only available by decoding the layer from its beginning.
    pub(crate) fn needs_stream(&self) -> bool {
        self.key.codec == Codec::Stream
    }
}

/// Joins pieces that are neighbours in the same layer. Each run is ascending and has no overlap, except
/// [`crate::chunk::SHARED_BYTES`].
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
