//! From missing chunks to the pieces that hold them, with everything else that comes along for nothing.

use std::collections::HashSet;
use std::sync::Arc;

use tarpon_layer::chunks::ChunkEntry;
use tarpon_layer::{Codec, Place};
use tarpon_oci::limits;

use crate::config::PIECE_CHUNKS;
use crate::host::Host;
use crate::image::Image;
use crate::object::{Numbered, Object};
use crate::plan::{Piece, PieceChunk, PieceKey};

impl Host {
    /// The pieces that hold these chunks. A small object is taken whole: its other chunks cost less than the round
    /// trip that asking for them later would.
    pub(crate) fn pieces(&self, object: &Arc<Object>, wanted: &[Numbered]) -> Vec<Piece> {
        if wanted.is_empty() {
            return Vec::new();
        }
        let whole: Vec<Numbered>;
        let wanted = if object.encoded_bytes_within(self.config.whole_object_bytes) {
            whole = object.chunks().filter(|numbered| !object.has(numbered)).collect();
            &whole
        } else {
            wanted
        };
        let mut seen = HashSet::new();
        let pieces = wanted.iter().filter_map(|(number, _)| piece(object, *number));
        pieces.filter(|piece| seen.insert(piece.key)).collect()
    }
}

/// The piece that holds the chunk, which is the first of its chunks; after it what else lies in the same place.
fn piece(object: &Object, number: u32) -> Option<Piece> {
    let image = &object.image;
    if let Some(piece) = image.pack.get().and_then(|pack| pack.piece_of(image, object.number_in_table(number)?)) {
        return Some(piece);
    }
    piece_in_layer(image, object.number_in_table(number)?)
}

/// As [`piece`], for a number in the table, and from nowhere but the layer.
pub(crate) fn piece_in_layer(image: &Arc<Image>, number: u32) -> Option<Piece> {
    let entry = image.table.chunk(number)?;
    let Place::Blob { codec, offset, length, .. } = entry.chunk.place else { return None };
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

/// The chunk as a part of a piece, and where that is, if it can be fetched by range.
pub(crate) fn placed(image: &Image, number: u32) -> Option<(PieceChunk, u64)> {
    let entry = image.table.chunk(number)?;
    match entry.chunk.place {
        Place::Blob { codec, offset, .. } if codec != Codec::Stream => {
            let (id, object) = image.table.object(entry.object)?;
            Some((PieceChunk::new(id, &object, &entry.chunk), offset))
        }
        _ => None,
    }
}

/// Everything that the table places where `entry` is, as far as it can be decoded in one go; `entry` included.
fn companions(image: &Image, entry: &ChunkEntry, offset: u64) -> impl Iterator<Item = PieceChunk> {
    let same_codec = |other: &Place| matches!((other, entry.chunk.place), (Place::Blob { codec: one, .. }, Place::Blob { codec, .. }) if *one == codec);
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
