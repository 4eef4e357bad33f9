//! Events for mounts and unmounts, for observers of the server ([`super::Observer`]).

use std::path::{Path, PathBuf};

use tarpon_oci::Digest;
use tokio::sync::broadcast::{Receiver, Sender};

/// Maximum number of events that a listener may lag behind: more than occur while a listener is busy for a moment.
const BEHIND: usize = 1024;

/// A mount or an unmount, by any client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountChange {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// The image, as the user wrote it.
    pub image: String,
    /// Digest of its manifest.
    pub manifest: Digest,
    /// Whether it is mounted now.
    pub is_mounted: bool,
}

/// The sender of events.
#[derive(Clone)]
pub(crate) struct Changes(Sender<MountChange>);

impl Default for Changes {
    fn default() -> Self {
        Self(Sender::new(BEHIND))
    }
}

impl Changes {
    /// Sends an event to all listeners, without waiting for any.
    pub(crate) fn publish(&self, mountpoint: &Path, image: &str, manifest: Digest, is_mounted: bool) {
        let _no_receiver = self.0.send(MountChange {
            mountpoint: mountpoint.to_owned(),
            image: image.to_owned(),
            manifest,
            is_mounted,
        });
    }

    pub(super) fn listen(&self) -> Receiver<MountChange> {
        self.0.subscribe()
    }
}
