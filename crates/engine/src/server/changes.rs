//! What is mounted and unmounted, as it happens, for whoever wants to know.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use tarpon_fetch::Stats;
use tarpon_oci::Digest;
use tokio::sync::broadcast::{Receiver, Sender};
use tokio::sync::watch;

use super::Server;
use super::mounts::Mounts;

/// Changes that a listener may be behind: more than anybody makes while another one looks away for a moment.
const BEHIND: usize = 1024;

/// Something was mounted or unmounted, whoever asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountChange {
    /// Where.
    pub mountpoint: PathBuf,
    /// The image, as the user wrote it.
    pub image: String,
    /// Digest of its manifest.
    pub manifest: Digest,
    /// Whether it is there now.
    pub is_mounted: bool,
}

/// Where changes are told.
pub(super) struct Changes(Sender<MountChange>);

impl Default for Changes {
    fn default() -> Self {
        Self(Sender::new(BEHIND))
    }
}

impl Changes {
    /// Tells it to all who listen, and waits for none of them.
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

/// Looks at the server in this process, without keeping it: at the one that there is, or that there will be.
#[derive(Clone, Default)]
pub struct Observer(Arc<watch::Sender<Weak<Mounts>>>);

impl Observer {
    /// Looks at this server from now on.
    pub fn see(&self, server: &Server) {
        self.0.send_replace(Arc::downgrade(&server.mounts));
    }

    /// What it has counted since it started. `None`: there is none.
    pub fn stats(&self) -> Option<Stats> {
        self.0.borrow().upgrade().map(|mounts| mounts.domains.whole().images.fetcher().stats())
    }

    /// What is mounted and unmounted from now on, once there is a server. `None`: it has ended.
    pub async fn changes(&self) -> Option<Receiver<MountChange>> {
        let mut servers = self.0.subscribe();
        // A `Weak` without an allocation is that of no server yet. The sender lives in `self`.
        let server = servers.wait_for(|server| !Weak::ptr_eq(server, &Weak::new())).await.ok()?.clone();
        server.upgrade().map(|mounts| mounts.changes.listen())
    }
}
