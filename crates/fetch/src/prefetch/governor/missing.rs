//! Counts the bytes of an image that are not local.

use std::sync::Arc;

use tarpon_layer::{ChunkPlace, Codec};

use crate::host::FetchHost;
use crate::image::Image;

/// Chunks that one count looks up: each is a disk access, and this number takes a quarter of a second. A larger image is sampled.
const LOOKUPS: u64 = 32_768;

impl FetchHost {
    /// Counts the missing bytes on another thread.
    pub(super) async fn count_missing(self: &Arc<Self>, image: &Arc<Image>) {
        let (host, of) = (self.clone(), image.clone());
        let counting = self.runtime.spawn_blocking(move || host.missing(&of));
        if let Ok(missing) = counting.await {
            image.governor.counted(missing);
        }
    }

    /// Encoded bytes whose objects are not in the store by name: a partial object counts as missing. Of an image with more than
    /// [`LOOKUPS`] chunks, every n-th is looked up and represents the others.
    fn missing(&self, image: &Image) -> u64 {
        let every = u64::from(image.table.chunk_count()).div_ceil(LOOKUPS).max(1);
        let (mut seen, mut missing) = (0_u64, 0_u64);
        for layer in (0..image.table.layer_count()).filter(|layer| !image.is_distrusted(*layer)) {
            let mut before = None;
            for number in image.table.by_place(layer, 0..u64::MAX) {
                let Some(entry) = image.table.chunk(number) else { continue };
                let ChunkPlace::Blob { codec, offset, length, .. } = entry.chunk.place else { continue };
                // Chunks that share a member are fetched once.
                if codec == Codec::Stream || before.replace(offset) == Some(offset) {
                    continue;
                }
                seen += 1;
                let Some((object, _)) = image.table.object(entry.object).filter(|_| seen % every == 0) else {
                    continue;
                };
                if !self.store.contains(&self.contents.kept_as(&object)) {
                    missing = missing.saturating_add(length);
                }
            }
        }
        missing.saturating_mul(every)
    }
}
