//! [`Entry`]: an image whose layers Podman can use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tarpon_client::protocol::{LayersPart, MountRequest};
use tarpon_oci::{Digest, Reference};
use tarpon_server::LoadedImage;

use crate::layer_store_fs::Use;
use crate::offered::Offered;

/// An image of the store of layers.
pub(super) struct Entry {
    pub(super) reference: Reference,
    pub(super) request: MountRequest,
    pub(super) image: Arc<LoadedImage>,
    pub(super) offered: Arc<Offered>,
    /// When Podman last found a layer of it.
    pub(super) asked: Mutex<Instant>,
}

impl Entry {
    fn used(&self) -> Option<&BTreeMap<Digest, u64>> {
        match &self.request.layers {
            Some(LayersPart::Image { uses }) => Some(uses),
            _ => None,
        }
    }

    /// Number of uses of all its layers together.
    pub(super) fn uses(&self) -> u64 {
        self.used().into_iter().flat_map(BTreeMap::values).fold(0, |sum, uses| sum.saturating_add(*uses))
    }

    pub(super) fn uses_of(&self, digest: &Digest) -> u64 {
        self.used().and_then(|uses| uses.get(digest)).copied().unwrap_or(0)
    }

    pub(super) fn change(&mut self, digest: &Digest, change: Use) {
        let Some(LayersPart::Image { uses }) = &mut self.request.layers else { return };
        let count = uses.entry(*digest).or_default();
        *count = match change {
            Use::More => count.saturating_add(1),
            Use::Less => count.saturating_sub(1),
        };
        uses.retain(|_, count| *count > 0);
    }
}
