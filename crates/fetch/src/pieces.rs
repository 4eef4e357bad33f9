//! From missing chunks to the pieces that hold them, with everything else that comes along for nothing.

use std::collections::HashSet;
use std::sync::Arc;

use tarpon_layer::chunks::ChunkRecord;
use tarpon_layer::{Codec, Place};
use tarpon_oci::limits;

use crate::config::PIECE_CHUNKS;
use crate::host::Host;
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
        let pieces = wanted.iter().filter_map(|(_, chunk)| piece(object, chunk));
        pieces.filter(|piece| seen.insert(piece.key)).collect()
    }
}

/// The piece that holds `chunk`, which is the first of its chunks; after it those of other objects in the same place.
fn piece(object: &Arc<Object>, chunk: &ChunkRecord) -> Option<Piece> {
    let image = &object.image;
    let Place::Blob { codec, offset, length, .. } = chunk.place else { return None };
    let blob = image.table.layers().get(usize::try_from(chunk.layer).ok()?)?.blob;
    let key = PieceKey { layer: blob.digest, codec, offset, length };
    let first = object.piece_chunk(chunk);
    let mut chunks = vec![first];
    if matches!(codec, Codec::Gzip | Codec::Zstd) {
        chunks.extend(companions(object, chunk, codec, offset).filter(|other| *other != first).take(PIECE_CHUNKS));
    }
    Some(Piece { key, blob, image: image.clone(), chunks })
}

/// Everything that the table places where `chunk` is, itself included.
fn companions<'a>(
    object: &'a Object,
    chunk: &'a ChunkRecord,
    codec: Codec,
    offset: u64,
) -> impl Iterator<Item = PieceChunk> + 'a {
    let here = move |place: &Place| matches!(place, Place::Blob { codec: c, offset: o, .. } if (*c, *o) == (codec, offset));
    let there = object.image.table.from_place(chunk.layer, offset);
    there
        .take_while(move |(_, _, other)| other.layer == chunk.layer && here(&other.place))
        .filter(|(_, _, other)| other.size <= limits::CHUNK_BYTES)
        .map(|(id, record, other)| PieceChunk::new(id, &record, &other))
}
