//! [`Entry`]: an image that Podman sees.

use std::collections::BTreeMap;
use std::sync::Arc;

use tarpon_client::protocol::MountRequest;
use tarpon_oci::Digest;
use tarpon_server::LoadedImage;

use crate::layer_numbers::Diff;
use crate::listed::Listed;

/// An image of the store.
pub(super) struct Entry {
    pub(super) request: MountRequest,
    pub(super) image: Arc<LoadedImage>,
    pub(super) listed: Listed,
}

/// Images by id.
pub(super) type Images = BTreeMap<Digest, Entry>;

impl Entry {
    pub(super) fn names(&self) -> &[String] {
        self.request.podman.as_ref().map_or(&[], |podman| &podman.names)
    }

    pub(super) fn added(&self) -> u64 {
        self.request.podman.as_ref().map_or(0, |podman| podman.added)
    }

    /// Its layers in all forms, shown or not.
    pub(super) fn layers(&self) -> impl Iterator<Item = &Diff> {
        self.listed.alone.iter().chain([&self.listed.merged])
    }
}
