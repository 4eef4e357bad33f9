//! Events for mounts and unmounts, for observers of the server.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use tarpon_fetch::Stats;
use tarpon_oci::Digest;
use tokio::sync::broadcast::{Receiver, Sender};
use tokio::sync::watch;

use super::Server;
use super::mounts::Mounts;

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
pub(super) struct Changes(Sender<MountChange>);

impl Default for Changes {
    fn default() -> Self {
        Self(Sender::new(BEHIND))
    }
}

impl Changes {
    /// Sends an event to all listeners, without waiting for any.
    pub(super) fn tell(&self, mountpoint: &Path, image: &str, manifest: Digest, is_mounted: bool) {
        let _nobody_listens = self.0.send(MountChange {
            mountpoint: mountpoint.to_owned(),
            image: image.to_owned(),
            manifest,
            is_mounted,
        });
    }

    fn listen(&self) -> Receiver<MountChange> {
        self.0.subscribe()
    }
}

/// Observes the server in this process, current or future, without keeping it alive.
#[derive(Clone, Default)]
pub struct Observer(Arc<watch::Sender<Weak<Mounts>>>);

impl Observer {
    /// Observes this server from now on.
    pub fn see(&self, server: &Server) {
        self.0.send_replace(Arc::downgrade(&server.mounts));
    }

    /// The server's counters since its start. `None`: there is no server.
    pub fn stats(&self) -> Option<Stats> {
        self.0.borrow().upgrade().map(|mounts| mounts.domains.whole().images.fetcher().stats())
    }

    /// The events from now on, once there is a server. `None`: it has ended.
    pub async fn changes(&self) -> Option<Receiver<MountChange>> {
        let mut servers = self.0.subscribe();
        // A `Weak` without an allocation means that there is no server yet. The sender lives in `self`.
        let server = servers.wait_for(|server| !Weak::ptr_eq(server, &Weak::new())).await.ok()?.clone();
        server.upgrade().map(|mounts| mounts.changes.listen())
    }
}
