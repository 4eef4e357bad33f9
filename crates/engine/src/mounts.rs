//! Operations of an [`Engine`] on the mounts of its store.

use std::path::Path;
use std::sync::Arc;

use tarpon_client::protocol::MountStatus;
use tarpon_images::Prepared;
use tarpon_server::ServerSetup;

use crate::{Engine, Error, ErrorKind, Result, Rootfs, RootfsRequest};

impl From<&Engine> for ServerSetup {
    fn from(engine: &Engine) -> Self {
        Self {
            client: engine.client(),
            rootfs_folders: engine.rootfs_folders().clone(),
            exhibits: &tarpon_podman::EXHIBITS,
            may_run_on: tarpon_containers::may_run_on,
            sources: engine.sources().clone(),
        }
    }
}

impl Engine {
    /// All mounts of this store: those of the running server, else those left by a dead one.
    pub fn mounts(&self) -> Result<Vec<MountStatus>> {
        self.client().mounts()
    }

    /// Creates a root file system of an image through the store's server. The server is started if none runs, and keeps running as long as
    /// this engine or a clone of it lives. Takes milliseconds and does not block the runtime. Many can be created concurrently. If the
    /// future is dropped, nothing stays mounted.
    ///
    /// # Errors
    /// [`ErrorKind::CannotMount`] if the kernel or the user's rights do not allow it, [`ErrorKind::Store`] if the server is unavailable.
    pub async fn rootfs(&self, prepared: &Prepared, request: &RootfsRequest) -> Result<Rootfs> {
        Rootfs::mount(self.rootfs_folders(), Arc::new(self.client()), prepared, request).await
    }

    /// Whether an image may be mounted on this directory: the host and the store must work afterwards. Checked before anything is fetched;
    /// the server checks again.
    ///
    /// # Errors
    /// [`ErrorKind::CannotMount`], with the reason.
    pub fn check_mountpoint(&self, path: &Path) -> Result<()> {
        tarpon_server::protected(self.store()).check(path).map_err(|problem| {
            Error::new(ErrorKind::CannotMount, format!("mount on {}", path.display()), problem)
                .hint("use a directory of its own, such as one in /mnt or /srv")
        })
    }
}
