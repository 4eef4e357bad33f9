//! Counts Podman's uses of layers. Podman reports each use exactly once, so the count is in the record before Podman gets its reply.

use std::sync::Arc;

use super::entry::Entry;
use super::store::LayerStore;
use crate::layer_store_fs::{LayerKey, Use};

impl LayerStore {
    /// Counts a use, also of a layer that is no longer shown: Podman still has what it found.
    pub(super) async fn note_use(self: Arc<Self>, key: LayerKey, change: Use) {
        let mut is_counted = self.clone().count_aside(&key, change).await;
        if !is_counted && change == Use::More {
            self.finding.forget(&key.image);
            self.clone().look_for(key.clone()).await;
            is_counted = self.count_aside(&key, change).await;
        }
        match change {
            _ if is_counted => {}
            Use::More => tracing::warn!(
                image = %key.image, layer = %key.digest,
                "Podman uses a layer that is not shown, and cannot be found again: its image may fail to run; remove it and pull again"
            ),
            Use::Less => {
                tracing::debug!(image = %key.image, layer = %key.digest, "Podman releases a layer that is not shown");
            }
        }
    }

    /// As [`Self::count`], on a thread that may block.
    async fn count_aside(self: Arc<Self>, key: &LayerKey, change: Use) -> bool {
        let (runtime, key) = (self.host.runtime().clone(), key.clone());
        let counted = runtime.spawn_blocking(move || self.count(&key, change)).await;
        counted.unwrap_or_else(|error| {
            tracing::error!(%error, "a use of a layer was not counted");
            false
        })
    }

    /// Counts a use and records it. The image is removed with its last use. Returns whether the layer exists.
    fn count(&self, key: &LayerKey, change: Use) -> bool {
        let _changing = self.changing.lock();
        let mut state = self.state.write();
        let Some(at) = counted(&state.images, key, change) else { return false };
        let entry = &mut state.images[at];
        entry.change(&key.digest, change);
        let request = entry.request.clone();
        let is_over = change == Use::Less && entry.uses() == 0;
        if is_over {
            state.images.remove(at);
            state.released.push(request.manifest);
        }
        drop(state);
        if is_over {
            // The next pull searches the image again instead of using the kept result.
            self.finding.forget(&key.image);
            self.forget(&request.mountpoint);
        } else {
            self.note(&request);
        }
        true
    }
}

/// The image whose use is counted, if several of one name have the layer: one in use, else the newest.
fn counted(images: &[Entry], key: &LayerKey, change: Use) -> Option<usize> {
    let has = |entry: &Entry| entry.reference == key.image && entry.offered.find(&key.digest).is_some();
    let used = images.iter().rposition(|entry| has(entry) && entry.uses_of(&key.digest) > 0);
    match change {
        Use::Less => used,
        Use::More => used.or_else(|| images.iter().rposition(has)),
    }
}
