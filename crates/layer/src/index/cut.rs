//! Cuts chunks smaller, where a start touches only parts of them.

use tarpon_oci::Digest;

use super::{Chunk, ChunkPlace, Codec, LayerIndex, Node, ObjectId};

impl LayerIndex {
    /// Returns the same layer, with the chunks of its files cut at further places. `places` returns those of an object, ascending.
    /// `digest` hashes `size` bytes of it from `offset`. The places of the bytes do not change: pieces of one chunk share its place
    /// in the blob, so nothing more is fetched or decoded for them than before, but bytes from other sources can be checked piece
    /// by piece.
    ///
    /// # Errors
    /// As `digest`.
    pub fn cut<'a, E>(
        &self,
        places: impl Fn(&ObjectId) -> &'a [u64],
        mut digest: impl FnMut(&ObjectId, u64, u64) -> Result<Digest, E>,
    ) -> Result<Self, E> {
        let mut chunks = Vec::with_capacity(self.chunks.len());
        let mut entries = self.entries.clone();
        for entry in &mut entries {
            let Node::File(content) = &mut entry.node else { continue };
            let own = self.chunks.iter().skip(content.first_chunk as usize).take(content.chunk_count as usize);
            let first = chunks.len();
            for chunk in own {
                let pieces = pieces(chunk, places(&content.object));
                let is_cut = pieces.len() > 1;
                for mut piece in pieces {
                    if is_cut {
                        piece.digest = digest(&content.object, piece.object_offset, piece.size)?;
                    }
                    chunks.push(piece);
                }
            }
            content.first_chunk = u32::try_from(first).unwrap_or(u32::MAX);
            content.chunk_count = u32::try_from(chunks.len() - first).unwrap_or(u32::MAX);
        }
        Ok(Self { entries, chunks, checkpoints: self.checkpoints.clone(), dropped_xattrs: self.dropped_xattrs })
    }
}

/// A chunk, cut at those of `places` that are inside of it. The digests of the pieces are not set yet.
fn pieces(chunk: &Chunk, places: &[u64]) -> Vec<Chunk> {
    let end = chunk.object_offset.saturating_add(chunk.size);
    let inside = places.iter().copied().filter(|place| *place > chunk.object_offset && *place < end);
    let starts = std::iter::once(chunk.object_offset).chain(inside.clone());
    let ends = inside.chain(std::iter::once(end));
    let piece = |(start, end): (u64, u64)| {
        let place = shifted(chunk.place, start - chunk.object_offset)?;
        Some(Chunk { object_offset: start, size: end - start, place, ..*chunk })
    };
    // A chunk that cannot be cut stays as it is.
    starts.zip(ends).map(piece).collect::<Option<_>>().unwrap_or_else(|| vec![*chunk])
}

/// The place of the bytes this many decoded bytes further on, if it is in the same piece of the blob.
fn shifted(place: ChunkPlace, by: u64) -> Option<ChunkPlace> {
    match place {
        ChunkPlace::Blob { codec: codec @ (Codec::Gzip | Codec::Deflate | Codec::Zstd), offset, length, skip } => {
            Some(ChunkPlace::Blob { codec, offset, length, skip: skip.checked_add(by)? })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{Attributes, Entry, FileContent, LayerPath};

    /// A file of two chunks and one of one, whose bytes are their places.
    fn index(codec: Codec) -> LayerIndex {
        let place = |skip| ChunkPlace::Blob { codec, offset: 10, length: 90, skip };
        let chunk =
            |object_offset, size, skip| Chunk { object_offset, size, digest: Digest::of(b"?"), place: place(skip) };
        let file = |path: &str, size, first_chunk, chunk_count| Entry {
            path: LayerPath::from_tar_name(path.as_bytes()).unwrap(),
            node: Node::File(
                FileContent { size, object: Digest::of(path.as_bytes()), first_chunk, chunk_count }.into(),
            ),
            attributes: Attributes::default().into(),
        };
        LayerIndex {
            entries: vec![file("large", 150, 0, 2), file("small", 7, 2, 1)],
            chunks: vec![chunk(0, 100, 0), chunk(100, 50, 100), chunk(0, 7, 150)],
            ..LayerIndex::default()
        }
    }

    fn cut(codec: Codec, places: &[u64]) -> LayerIndex {
        let of = |object: &ObjectId| if *object == Digest::of(b"large") { places } else { &[] };
        let digest =
            |_: &ObjectId, offset: u64, size: u64| Ok::<_, ()>(Digest::of(format!("{offset}+{size}").as_bytes()));
        index(codec).cut(of, digest).unwrap()
    }

    #[test]
    fn pieces_share_the_place_of_their_chunk_and_cover_it() {
        let cut = cut(Codec::Deflate, &[0, 30, 60, 100, 150, 900]);
        let seen: Vec<_> = cut.chunks.iter().map(|chunk| (chunk.object_offset, chunk.size, chunk.place)).collect();
        let place = |skip| ChunkPlace::Blob { codec: Codec::Deflate, offset: 10, length: 90, skip };
        let wanted =
            [(0, 30, place(0)), (30, 30, place(30)), (60, 40, place(60)), (100, 50, place(100)), (0, 7, place(150))];
        assert_eq!(seen, wanted);
        assert_eq!(cut.chunks[1].digest, Digest::of(b"30+30"));
        assert_eq!(cut.chunks[3].digest, Digest::of(b"?"), "what is not cut keeps its digest");
        let Node::File(small) = &cut.entries[1].node else { panic!("a file") };
        assert_eq!((small.first_chunk, small.chunk_count), (4, 1));
    }

    #[test]
    fn without_places_or_where_nothing_can_be_cut_the_index_stays_as_it_is() {
        assert_eq!(cut(Codec::Deflate, &[]), index(Codec::Deflate));
        assert_eq!(cut(Codec::Stream, &[30]), index(Codec::Stream));
    }
}
