//! Where the chunks of an image lie in its boot pack.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;
use tarpon_layer::Codec;
use tarpon_layer::chunks::ChunkTable;
use tarpon_oci::Blob;

use super::index::{BootFrame, BootIndex};
use crate::config::PIECE_CHUNKS;
use crate::image::Image;
use crate::plan::{NO_LAYER, Piece, PieceChunk, PieceKey};

/// A boot pack, seen through the chunk table of its image: chunks that it holds are taken from it rather than from their
/// layer, and checked against the same digests.
pub(crate) struct Pack {
    blob: Blob,
    frames: Vec<Frame>,
    /// Number of a chunk in the table → number of the frame.
    places: HashMap<u32, u32>,
    given_up: AtomicBool,
}

struct Frame {
    offset: u64,
    length: u64,
    chunks: Vec<Member>,
}

/// A chunk in a frame.
struct Member {
    number: u32,
    skip: u64,
}

impl Pack {
    /// What of the pack the table has a use for.
    pub(crate) fn new(index: &BootIndex, table: &ChunkTable<Bytes>) -> Self {
        let mut places = HashMap::new();
        let mut frames = Vec::with_capacity(index.frames.len());
        let mut offset = 0;
        // An honest pack has each chunk once, and takes a look at the one after it. Whoever repeats objects for ever costs no more.
        let mut looks = table.chunk_count().saturating_mul(2);
        for (number, described) in (0_u32..).zip(&index.frames) {
            let length = u64::from(described.length);
            if length == 0 || offset + length > index.blob.size {
                break; // no blob has such a frame, nor those behind it
            }
            let mut chunks = members(described, table, &mut looks);
            chunks.retain(|chunk| *places.entry(chunk.number).or_insert(number) == number);
            frames.push(Frame { offset, length, chunks });
            offset += length;
        }
        Self { blob: index.blob, frames, places, given_up: AtomicBool::new(false) }
    }

    /// Nothing is taken from it any more: it is not what its index says, or not there. `true` the first time.
    pub(crate) fn give_up(&self) -> bool {
        !self.given_up.swap(true, Relaxed)
    }

    /// Whether it holds the chunk.
    pub(crate) fn has(&self, chunk: u32) -> bool {
        self.places.contains_key(&chunk)
    }

    /// The piece that holds the chunk, which comes first in it.
    pub(crate) fn piece_of(&self, image: &Arc<Image>, chunk: u32) -> Option<Piece> {
        let frame = *self.places.get(&chunk)?;
        self.piece(image, frame, |number| number == chunk)
    }

    /// The frame as a piece; none if it holds nothing of use. The first chunk that `is_wanted` likes comes first in it.
    pub(crate) fn piece(&self, image: &Arc<Image>, frame: u32, is_wanted: impl Fn(u32) -> bool) -> Option<Piece> {
        if self.is_given_up() {
            return None;
        }
        let Frame { offset, length, chunks } = self.frames.get(frame as usize)?;
        let first = chunks.iter().position(|chunk| is_wanted(chunk.number))?;
        let order = std::iter::once(first).chain((0..chunks.len()).filter(|place| *place != first));
        let chunks: Option<Vec<PieceChunk>> = order.map(|place| described(image, chunks.get(place)?)).collect();
        let key =
            PieceKey { image: image.id, layer: self.blob.digest, codec: Codec::Zstd, offset: *offset, length: *length };
        Some(Piece { key, blob: self.blob, image: image.clone(), layer: NO_LAYER, chunks: chunks? })
    }

    /// Encoded bytes of all frames.
    pub(crate) fn bytes(&self) -> u64 {
        self.frames.last().map_or(0, |last| last.offset + last.length)
    }

    /// Whether it was given up.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Relaxed)
    }

    /// How many frames there are.
    pub(crate) fn frames(&self) -> u32 {
        u32::try_from(self.frames.len()).unwrap_or(u32::MAX)
    }

    /// Whether a piece was planned from it.
    pub(crate) fn holds(&self, piece: &Piece) -> bool {
        piece.is_of_a_pack() && piece.blob == self.blob
    }
}

/// The chunks that lie in a frame as a whole.
fn members(frame: &BootFrame, table: &ChunkTable<Bytes>, looks: &mut u32) -> Vec<Member> {
    let mut start = 0;
    let mut members = Vec::new();
    for piece in &frame.pieces {
        let end = piece.offset.saturating_add(u64::from(piece.length));
        let object = table.find(&piece.object);
        let first = object.as_ref().and_then(|object| table.chunk_at(object, piece.offset));
        let numbers = first.zip(object).map_or(0..0, |(first, object)| first..object.chunks.end);
        for number in numbers {
            let (Some(entry), Some(left)) = (table.chunk(number), looks.checked_sub(1)) else { break };
            *looks = left;
            let chunk = entry.chunk;
            if chunk.object_offset.saturating_add(chunk.size) > end {
                break;
            }
            // Bytes whose own digest nobody knows can only be had from where they can be checked.
            let is_in = chunk.object_offset >= piece.offset && chunk.content_digest().is_some();
            if is_in && members.len() < PIECE_CHUNKS {
                members.push(Member { number, skip: start + (chunk.object_offset - piece.offset) });
            }
        }
        start += u64::from(piece.length);
    }
    members
}

fn described(image: &Image, member: &Member) -> Option<PieceChunk> {
    let entry = image.table.chunk(member.number)?;
    let (id, object) = image.table.object(entry.object)?;
    Some(PieceChunk { skip: member.skip, ..PieceChunk::new(id, &object, &entry.chunk) })
}
