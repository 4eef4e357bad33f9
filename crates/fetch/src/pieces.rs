//! From missing chunks to the pieces that hold them, with the other chunks of these pieces.

use std::collections::HashSet;
use std::sync::Arc;

use tarpon_layer::chunks::ChunkEntry;
use tarpon_layer::{ChunkPlace, Codec};
use tarpon_oci::limits;

use crate::chunk::PieceChunk;
use crate::config::PIECE_CHUNKS;
use crate::host::FetchHost;
use crate::ids::PieceKey;
use crate::image::Image;
use crate::object::{Numbered, Object};
use crate::pack::places::Pack;
use crate::plan::{NO_LAYER, Piece};

impl FetchHost {
    /// The pieces that hold these chunks. A small object is fetched whole: its other chunks cost less than another round trip later.
    pub(crate) fn pieces(&self, object: &Arc<Object>, wanted: &[Numbered]) -> Vec<Piece> {
        if wanted.is_empty() {
            return Vec::new();
        }
        let is_small = object.encoded_bytes_within(self.config.whole_object_bytes);
        let whole = object.chunks().filter(|numbered| is_small && !object.has(numbered)).map(|(number, _)| number);
        let mut seen = HashSet::new();
        // Those that are wanted come first: by its first chunk it is judged whether a piece must be fetched.
        let numbers = wanted.iter().map(|(number, _)| *number).chain(whole);
        let pieces = numbers.filter_map(|number| piece(object, number));
        pieces.filter(|piece| seen.insert(piece.key)).collect()
    }
}

/// The piece that holds the chunk, which is the first of its chunks; the others are the chunks at the same position.
fn piece(object: &Object, number: u32) -> Option<Piece> {
    let image = &object.image;
    let number = object.number_in_table(number)?;
    let in_pack =
        image.prefetch.pack().and_then(|pack| piece_in_frame(image, pack, pack.frame_of(number)?, |n| n == number));
    in_pack.or_else(|| piece_in_layer(image, number))
}

/// A frame of the image's boot pack as a piece; `None` if it holds nothing of use. The first chunk that `is_wanted` accepts comes first.
pub(crate) fn piece_in_frame(
    image: &Arc<Image>,
    pack: &Pack,
    frame: u32,
    is_wanted: impl Fn(u32) -> bool,
) -> Option<Piece> {
    let (key, chunks) = pack.frame(image.id, &image.table, frame, is_wanted)?;
    Some(Piece { key, blob: pack.blob(), image: image.clone(), layer: NO_LAYER, chunks })
}

/// As [`piece`], for a number in the table, and from the layer only.
pub(crate) fn piece_in_layer(image: &Arc<Image>, number: u32) -> Option<Piece> {
    let entry = image.table.chunk(number)?;
    let ChunkPlace::Blob { codec, offset, length, .. } = entry.chunk.place else { return None };
    let blob = image.table.layer(entry.layer)?.blob;
    let (id, record) = image.table.object(entry.object)?;
    let first = PieceChunk::new(id, &record, &entry.chunk);
    let mut chunks = vec![first];
    if matches!(codec, Codec::Gzip | Codec::Deflate | Codec::CheckedSpan | Codec::Zstd)
        && first.skip.saturating_add(first.size) <= limits::CHUNK_BYTES
    {
        chunks.extend(companions(image, &entry, offset).filter(|other| *other != first).take(PIECE_CHUNKS));
    }
    let key = PieceKey { image: image.id, layer: blob.digest, codec, offset, length };
    Some(Piece { key, blob, image: image.clone(), layer: entry.layer, chunks })
}

/// The chunk as a part of a piece, and the offset of the piece, if it can be fetched by range.
pub(crate) fn placed(image: &Image, number: u32) -> Option<(PieceChunk, u64)> {
    let entry = image.table.chunk(number)?;
    match entry.chunk.place {
        ChunkPlace::Blob { codec, offset, .. } if codec != Codec::Stream => {
            let (id, object) = image.table.object(entry.object)?;
            Some((PieceChunk::new(id, &object, &entry.chunk), offset))
        }
        _ => None,
    }
}

/// All chunks that the table places where `entry` is and that can be decoded with it; `entry` included.
fn companions(image: &Image, entry: &ChunkEntry, offset: u64) -> impl Iterator<Item = PieceChunk> {
    let same_codec = |other: &ChunkPlace| matches!((other, entry.chunk.place), (ChunkPlace::Blob { codec: one, .. }, ChunkPlace::Blob { codec, .. }) if *one == codec);
    let there = image.table.by_place(entry.layer, offset..offset.saturating_add(1));
    there
        .filter_map(|number| image.table.chunk(number))
        .filter(move |other| same_codec(&other.chunk.place))
        .filter_map(|other| {
            let (id, object) = image.table.object(other.object)?;
            Some(PieceChunk::new(id, &object, &other.chunk))
        })
        .filter(|chunk| chunk.skip.saturating_add(chunk.size) <= limits::CHUNK_BYTES)
}
