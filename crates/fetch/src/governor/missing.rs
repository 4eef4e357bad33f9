//! How much of an image is not here.

use std::sync::Arc;

use tarpon_layer::{Codec, Place as ChunkPlace};

use crate::host::Host;
use crate::image::Image;

/// Chunks that one count looks up: each is a look at the disk, and so many take a quarter of a second. A larger image is sampled.
const LOOKS: u64 = 32_768;

/// A place in the layers of an image: what lies before it was brought or is here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) layer: u16,
    pub(super) offset: u64,
}

impl Host {
    /// Counts what is missing, off this thread.
    pub(super) async fn count_missing(self: &Arc<Self>, image: &Arc<Image>) {
        let (host, of) = (self.clone(), image.clone());
        let counting = self.runtime.spawn_blocking(move || host.missing(&of));
        if let Ok(missing) = counting.await {
            let mut state = image.governor.state.lock();
            (state.missing, state.next) = (Some(missing), Place::default());
            if missing == 0 {
                // Not before they have waited as long again.
                state.burst.forget();
            }
        }
    }

    /// Encoded bytes whose objects are not here, as far as can be told by looking up each object by its name: what is here of an object in
    /// part counts as missing. Of an image with more than [`LOOKS`] chunks every n-th is looked up and stands for the others.
    fn missing(&self, image: &Image) -> u64 {
        let every = u64::from(image.table.chunk_count()).div_ceil(LOOKS).max(1);
        let (mut seen, mut missing) = (0_u64, 0_u64);
        for layer in (0..image.table.layer_count()).filter(|layer| !image.is_distrusted(*layer)) {
            let mut before = None;
            for number in image.table.by_place(layer, 0..u64::MAX) {
                let Some(entry) = image.table.chunk(number) else { continue };
                let ChunkPlace::Blob { codec, offset, length, .. } = entry.chunk.place else { continue };
                // What shares a member is brought once.
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
