//! Whether a chunk is local, and the check of chunks that an earlier process left.

use std::sync::Arc;

use bytes::Bytes;
use tarpon_blob::Opened;
use tarpon_oci::Verified;

use crate::chunk::PieceChunk;
use crate::host::FetchHost;
use crate::image::Image;
use crate::object::{Numbered, Object};

impl FetchHost {
    /// Whether a chunk that no reader requested is local, judged by the name of its object and the presence bits.
    pub(crate) fn is_here(&self, image: &Arc<Image>, chunk: &PieceChunk) -> bool {
        if self.store.contains(&self.contents.kept_as(&chunk.object)) {
            return true;
        }
        let by_parts =
            || self.live_object(image, &chunk.object).is_some_and(|object| object.has_at(chunk.object_offset));
        !chunk.is_whole_object() && by_parts()
    }

    /// Whether the store has the chunk or the complete object; a reader hashes the latter first where necessary.
    pub(crate) fn has_chunk(&self, image: &Arc<Image>, chunk: &PieceChunk) -> bool {
        let opened = self.store.open_checked(&self.contents.kept_as(&chunk.object));
        if matches!(opened, Ok(Opened::Sound(_) | Opened::Unchecked(_))) {
            return true;
        }
        let known = self.live_object(image, &chunk.object);
        known.is_some_and(|object| object.has_at(chunk.object_offset))
    }

    /// Whether the chunk must be fetched. May hash bytes that an earlier process left.
    pub(crate) fn lacks(self: &Arc<Self>, image: &Arc<Image>, chunk: &PieceChunk) -> bool {
        !self.is_here(image, chunk) && !self.was_left(image, chunk)
    }

    /// Whether an earlier process left the chunk, or another image has it. Hashes the bytes that it left.
    fn was_left(self: &Arc<Self>, image: &Arc<Image>, chunk: &PieceChunk) -> bool {
        if chunk.is_whole_object() {
            return false;
        }
        let Some(object) = self.object_in(image, &chunk.object) else { return false };
        // Another image with the same list may have searched for it already.
        if object.has_at(chunk.object_offset) {
            return true;
        }
        let place = chunk.object_offset..chunk.object_offset.saturating_add(1);
        let candidates = object.candidates(&*self.store, object.chunks_of(place).collect());
        !candidates.is_empty() && !self.take_leftover_chunks(&object, candidates).is_empty()
    }

    /// Hashes the bytes that an earlier process left of these chunks, and uses those that match. Blocks on disk and processor.
    pub(crate) fn take_leftover_chunks(
        self: &Arc<Self>,
        object: &Arc<Object>,
        candidates: Vec<Numbered>,
    ) -> Vec<(u32, Verified<Bytes>)> {
        let found = object.check(&*self.store, candidates);
        self.publish_if_complete(object);
        found
    }
}
