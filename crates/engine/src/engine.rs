//! [`Engine`]: one store, and the entry point to all operations on images in it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tarpon_client::protocol::ScrubStatus;
use tarpon_client::rootfs::Folders;
use tarpon_client::{Client, prepare_to_mount, traces};
use tarpon_images::sources::{InProcess, Sources};
use tarpon_images::{ImageRequest, Images, Inspection, Prepared, Progress, Pulled, Result, Survey, TreeView};
use tarpon_oci::Digest;
use tarpon_podman::Podman;
use tarpon_store::{Isolation, Store, StoredTrace};
use tarpon_trace::Trace;
use tarpon_worker::{WorkerPreparer, Workers};

use crate::why::{self, Explanation};
use tarpon_containers::Containers;

/// The store, and how its server is started.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The store's directory, created if missing.
    pub store: PathBuf,
    /// The command line that runs [`crate::serve`] on this store. Empty: this program starts no servers.
    pub server_command: Vec<OsString>,
    /// The command line that runs [`crate::serve_worker`], the confined process in which bytes are received and decoded for this
    /// program. Empty: they are received and decoded in this process, with all its rights.
    pub worker_command: Vec<OsString>,
}

/// An open store and what can be done with images in it.
#[derive(Debug, Clone)]
pub struct Engine {
    images: Images,
    client: Client,
    pub(crate) containers: Containers,
    rootfs_folders: Arc<Folders>,
    sources: Arc<dyn Sources>,
    worker_command: Vec<OsString>,
}

impl Engine {
    /// Opens the store. Cheap: nothing is scanned, no request is made.
    pub fn open(options: EngineOptions) -> Result<Self> {
        let EngineOptions { store, server_command, worker_command } = options;
        let mut images = Images::open(&store)?;
        if !worker_command.is_empty() {
            images = images.prepared_by(Arc::new(WorkerPreparer::new(worker_command.clone())));
        }
        let client = Client::new(images.store().clone(), server_command);
        let containers = Containers::new(images.clone(), client.clone());
        let rootfs_folders = Arc::new(Folders::of(images.store()));
        let sources: Arc<dyn Sources> = match worker_command.is_empty() {
            true => Arc::new(InProcess),
            false => Arc::new(Workers::new(worker_command.clone())),
        };
        Ok(Self { images, client, containers, rootfs_folders, sources, worker_command })
    }

    /// The images of the store.
    pub fn images(&self) -> &Images {
        &self.images
    }

    /// The store itself, which provides listing, checking and emptying.
    pub fn store(&self) -> &Store {
        self.images.store()
    }

    /// Folders of root file systems for which the user named no directory.
    pub(crate) fn rootfs_folders(&self) -> &Arc<Folders> {
        &self.rootfs_folders
    }

    /// How the server of this store opens images.
    pub(crate) fn sources(&self) -> &Arc<dyn Sources> {
        &self.sources
    }

    /// How this kernel confines the processes that receive bytes of strangers, in one line, and whether it limits the paths that they may
    /// open; `None` if they are received in this process.
    ///
    /// # Errors
    /// Such a process cannot be started or confined.
    pub async fn confinement(&self) -> std::io::Result<Option<(String, bool)>> {
        match self.worker_command.is_empty() {
            true => Ok(None),
            false => Workers::trial(&self.worker_command).await.map(Some),
        }
    }

    /// As [`Client::scrub_status`].
    pub fn scrub_status(&self) -> Result<Option<ScrubStatus>> {
        self.client.scrub_status()
    }

    /// The store's server.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// What Podman sees of the store.
    pub fn podman(&self) -> Podman {
        Podman::new(self.images.clone(), self.client.clone())
    }

    /// Leaves a trace where the server finds it, until the returned value is dropped.
    ///
    /// # Errors
    /// The store is not writable.
    pub fn leave_trace(&self, trace: &Trace) -> Result<impl AsRef<Path> + use<>> {
        traces::leave(self.store(), trace)
    }

    /// The traces that starts without a boot pack left in the store, the newest first.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn learned_traces(&self) -> Result<Vec<(StoredTrace, Trace)>> {
        traces::all_learned(self.store())
    }

    /// Removes one of [`Engine::learned_traces`]. `false`: there is none of this name.
    ///
    /// # Errors
    /// The store cannot be changed.
    pub fn forget_trace(&self, key: &Digest) -> Result<bool> {
        traces::forget_learned(self.store(), key)
    }

    /// As [`Images::prepare`].
    pub async fn prepare(&self, request: &ImageRequest, progress: &dyn Progress) -> Result<Prepared> {
        self.images.prepare(request, progress).await
    }

    /// As [`Images::prepare`], for a mount by the store's server, which starts to fetch the image's boot pack as soon as its place is known.
    pub async fn prepare_to_mount(&self, request: &ImageRequest, progress: &dyn Progress) -> Result<Prepared> {
        prepare_to_mount(&self.images, &self.client, request, progress).await
    }

    /// As [`Images::pull`].
    pub async fn pull(&self, request: &ImageRequest, progress: &dyn Progress) -> Result<Pulled> {
        self.images.pull(request, progress).await
    }

    /// As [`Images::inspect`].
    pub async fn inspect(&self, request: &ImageRequest) -> Result<Inspection> {
        self.images.inspect(request).await
    }

    /// As [`Images::survey`].
    ///
    /// # Errors
    /// The image cannot be read.
    pub async fn survey(&self, request: &ImageRequest, survey: &mut Survey, progress: &dyn Progress) -> Result<()> {
        self.images.survey(request, survey, progress).await
    }

    /// As [`Images::open_tree`].
    pub fn open_tree(&self, prepared: &Prepared) -> Result<TreeView> {
        self.images.open_tree(prepared)
    }

    /// As [`Images::chain_ids`].
    pub fn chain_ids(&self, prepared: &Prepared) -> Result<Vec<Digest>> {
        self.images.chain_ids(prepared)
    }

    /// As [`Images::lowest_layers`].
    pub async fn lowest_layers(
        &self,
        request: &ImageRequest,
        prepared: &Prepared,
        count: usize,
        progress: &dyn Progress,
    ) -> Result<Prepared> {
        self.images.lowest_layers(request, prepared, count, progress).await
    }

    /// As [`Images::isolation`].
    pub fn isolation(&self) -> Result<Isolation> {
        self.images.isolation()
    }

    /// As [`Images::set_isolation`].
    pub fn set_isolation(&self, isolation: Isolation) -> Result<()> {
        self.images.set_isolation(isolation)
    }

    /// As [`Images::may_serve_containerd`].
    pub fn may_serve_containerd(&self) -> Result<()> {
        self.images.may_serve_containerd()
    }

    /// As [`Images::admit_credentials`].
    pub fn admit_credentials(&self) -> Result<()> {
        self.images.admit_credentials()
    }

    /// Explains the mount at `mountpoint`: an absolute path without symbolic links.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) when nothing is mounted there, or no server is alive for it.
    pub fn why(&self, mountpoint: &Path) -> Result<Explanation> {
        why::why(&self.images, &self.client, mountpoint)
    }
}
