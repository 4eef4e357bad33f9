//! [`Pack`]: the positions of an image's chunks in its boot pack.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;
use tarpon_layer::Codec;
use tarpon_layer::chunks::ChunkTable;
use tarpon_oci::Blob;

use super::index::{BootFrame, BootIndex};
use crate::chunk::PieceChunk;
use crate::config::PIECE_CHUNKS;
use crate::ids::{ImageId, PieceKey};

/// A boot pack, matched with the chunk table of its image: the chunks that it holds are fetched from it instead of their layer, and checked
/// against the same digests.
pub(crate) struct Pack {
    blob: Blob,
    frames: Vec<Frame>,
    /// Number of a chunk in the table → number of the frame.
    places: HashMap<u32, u32>,
    origin: PackOrigin,
    given_up: AtomicBool,
}

/// How the content of a boot pack was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackOrigin {
    /// By the record of a start: it has all that the start reads.
    Recorded,
    /// By a prediction: the start reads more.
    Predicted,
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
    /// The part of the pack that the table can use.
    pub(crate) fn new(index: &BootIndex, table: &ChunkTable<Bytes>, origin: PackOrigin) -> Self {
        let mut places = HashMap::new();
        let mut frames = Vec::with_capacity(index.frames.len());
        let mut offset = 0;
        // A correct pack has each chunk once and needs one more look-up, of the next chunk. The bound keeps a pack that repeats
        // objects from costing more.
        let mut lookups = table.chunk_count().saturating_mul(2);
        for (number, described) in (0_u32..).zip(&index.frames) {
            let length = u64::from(described.length);
            if length == 0 || offset + length > index.blob.size {
                break; // no blob has such a frame, nor those behind it
            }
            let mut chunks = members(described, table, &mut lookups);
            chunks.retain(|chunk| *places.entry(chunk.number).or_insert(number) == number);
            frames.push(Frame { offset, length, chunks });
            offset += length;
        }
        Self { blob: index.blob, frames, places, origin, given_up: AtomicBool::new(false) }
    }

    /// Stops using the pack: it is absent, or does not match its index. Returns `true` the first time.
    pub(crate) fn give_up(&self) -> bool {
        !self.given_up.swap(true, Relaxed)
    }

    /// Whether it has all that a start reads.
    pub(crate) fn is_recorded(&self) -> bool {
        self.origin == PackOrigin::Recorded
    }

    /// Whether it holds the chunk.
    pub(crate) fn has(&self, chunk: u32) -> bool {
        self.places.contains_key(&chunk)
    }

    /// The number of the frame that holds the chunk.
    pub(crate) fn frame_of(&self, chunk: u32) -> Option<u32> {
        self.places.get(&chunk).copied()
    }

    /// The chunks of a frame, and its key as a piece of `image`; `None` if it holds nothing of use. The first chunk that `is_wanted`
    /// accepts comes first.
    pub(crate) fn frame(
        &self,
        image: ImageId,
        table: &ChunkTable<Bytes>,
        frame: u32,
        is_wanted: impl Fn(u32) -> bool,
    ) -> Option<(PieceKey, Vec<PieceChunk>)> {
        if self.is_given_up() {
            return None;
        }
        let Frame { offset, length, chunks } = self.frames.get(frame as usize)?;
        let first = chunks.iter().position(|chunk| is_wanted(chunk.number))?;
        let order = std::iter::once(first).chain((0..chunks.len()).filter(|place| *place != first));
        let chunks: Option<Vec<PieceChunk>> = order.map(|place| described(table, chunks.get(place)?)).collect();
        let key = PieceKey { image, layer: self.blob.digest, codec: Codec::Zstd, offset: *offset, length: *length };
        Some((key, chunks?))
    }

    /// The blob of its frames.
    pub(crate) fn blob(&self) -> Blob {
        self.blob
    }

    /// Encoded bytes of all frames.
    pub(crate) fn bytes(&self) -> u64 {
        self.frames.last().map_or(0, |last| last.offset + last.length)
    }

    /// Whether [`Pack::give_up`] was called.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Relaxed)
    }

    /// The number of frames.
    pub(crate) fn frames(&self) -> u32 {
        u32::try_from(self.frames.len()).unwrap_or(u32::MAX)
    }
}

/// The chunks that are completely inside a frame.
fn members(frame: &BootFrame, table: &ChunkTable<Bytes>, lookups: &mut u32) -> Vec<Member> {
    let mut start = 0;
    let mut members = Vec::new();
    for piece in &frame.pieces {
        let end = piece.offset.saturating_add(u64::from(piece.length));
        let object = table.find(&piece.object);
        let first = object.as_ref().and_then(|object| table.chunk_at(object, piece.offset));
        let numbers = first.zip(object).map_or(0..0, |(first, object)| first..object.chunks.end);
        for number in numbers {
            let (Some(entry), Some(left)) = (table.chunk(number), lookups.checked_sub(1)) else { break };
            *lookups = left;
            let chunk = entry.chunk;
            if chunk.object_offset.saturating_add(chunk.size) > end {
                break;
            }
            // Bytes whose own digest is unknown can only be checked at their place in the layer.
            let is_in = chunk.object_offset >= piece.offset && chunk.content_digest().is_some();
            if is_in && members.len() < PIECE_CHUNKS {
                members.push(Member { number, skip: start + (chunk.object_offset - piece.offset) });
            }
        }
        start += u64::from(piece.length);
    }
    members
}

fn described(table: &ChunkTable<Bytes>, member: &Member) -> Option<PieceChunk> {
    let entry = table.chunk(member.number)?;
    let (id, object) = table.object(entry.object)?;
    Some(PieceChunk { skip: member.skip, ..PieceChunk::new(id, &object, &entry.chunk) })
}
