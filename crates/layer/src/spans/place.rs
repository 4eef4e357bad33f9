//! Maps places in the decoded layer to places in its spans.

use tarpon_oci::limits;

use super::Spans;
use super::recorder::Start;
use crate::decode::Compression;
use crate::index::{Chunk, ChunkPlace, Codec, LayerIndex};

impl LayerIndex {
    /// Gives every chunk that can only be reached through the whole layer ([`Codec::Stream`]) its place in the span that contains
    /// it, as far as that span can be decoded at once.
    pub fn place_in_spans(&mut self, spans: &Spans, compression: Compression) {
        self.chunks.iter_mut().filter_map(|chunk| Some((spans.place(chunk, compression)?, chunk))).for_each(
            |(place, chunk)| {
                chunk.place = place;
            },
        );
        self.checkpoints = spans.checkpoints();
    }
}

impl Spans {
    fn place(&self, chunk: &Chunk, compression: Compression) -> Option<ChunkPlace> {
        let ChunkPlace::Blob { codec: Codec::Stream, offset: decoded, .. } = chunk.place else { return None };
        let number = self.starts.partition_point(|start| start.decoded <= decoded).checked_sub(1)?;
        let start = self.starts.get(number)?;
        let next = self.starts.get(number + 1);
        let skip = decoded - start.decoded;
        let end = skip.checked_add(chunk.size)?;
        let is_cut = next.is_none_or(|next| start.decoded + end <= next.decoded);
        let length = next.map_or(self.end, Start::end_of_the_one_before) - start.offset;
        let is_seekable = length <= limits::CHUNK_ENCODED_BYTES && end <= limits::MEMBER_BYTES;
        if !is_cut || !is_seekable || chunk.size > limits::CHUNK_BYTES {
            return None;
        }
        let codec = match (compression, &start.window) {
            (Compression::Gzip, Some(_)) => Codec::Deflate,
            (Compression::Gzip, None) => Codec::Gzip,
            (Compression::Zstd, _) => Codec::Zstd,
            (Compression::None, _) => return None,
        };
        Some(ChunkPlace::Blob { codec, offset: start.offset, length, skip })
    }
}

impl Start {
    /// The end of the span before, which needs the bits of the first byte that are not ours.
    fn end_of_the_one_before(&self) -> u64 {
        self.offset + u64::from(self.used_bits > 0)
    }
}
