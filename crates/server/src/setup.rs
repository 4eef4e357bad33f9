//! [`ServerSetup`]: what a server is started with.

use std::path::Path;
use std::sync::Arc;

use tarpon_client::Client;
use tarpon_client::rootfs::Folders;
use tarpon_images::sources::Sources;
use tarpon_store::Store;

use super::exhibit::Exhibit;
use super::host::ExhibitHost;

/// Creates an exhibit of a server that starts.
pub type NewExhibit = fn(ExhibitHost) -> Arc<dyn Exhibit>;

/// The store of a server, and the parts that other crates contribute to it.
#[derive(Debug, Clone)]
pub struct ServerSetup {
    /// A client of the store, with the command line of its servers.
    pub client: Client,
    /// Folders of root file systems for which the user named no directory.
    pub rootfs_folders: Arc<Folders>,
    /// What it exposes besides mounts of images.
    pub exhibits: &'static [NewExhibit],
    /// How it opens images, and where their bytes are received and decoded.
    pub sources: Arc<dyn Sources>,
    /// Whether a process may still run on what a dead server left at a mount point.
    pub may_run_on: fn(&Store, &Path) -> bool,
}

#[cfg(test)]
impl ServerSetup {
    /// A server of these images that exposes nothing else and has no containers.
    pub(crate) fn of(images: &tarpon_images::Images) -> Self {
        Self {
            client: Client::new(images.store().clone(), Vec::new()),
            rootfs_folders: Arc::new(Folders::of(images.store())),
            exhibits: &[],
            sources: Arc::new(tarpon_images::sources::InProcess),
            may_run_on: |_, _| false,
        }
    }
}
