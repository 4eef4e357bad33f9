//! [`ExhibitHost`]: the store of a server, opened to mount images and to expose them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tarpon_client::Client;
use tarpon_client::protocol::{BackfillStatus, MountRequest};
use tarpon_fetch::{Config, Fetcher};
use tarpon_fs::Operations;
use tarpon_images::sources::{InProcess, Sources};
use tarpon_mount::{Host, Inheritance, MountError, Mounted, Protected};
use tarpon_oci::Digest;
use tarpon_store::Store;
use tokio::runtime::Handle;

use super::changes::Changes;
use super::counters::KeptCounters;
use super::domain::Domain;
use super::holding::{Holding, Lifetime};
use super::images::LoadedImage;
use crate::{Error, ErrorKind, Result};

/// The parts of the server that an [`super::Exhibit`] uses.
#[derive(Clone)]
pub struct ExhibitHost {
    /// The store, its images and their mounts.
    pub(crate) domain: Arc<Domain>,
    /// Where it reports what it exposes.
    pub(crate) changes: Changes,
    /// What outlives the server.
    pub(crate) holding: Arc<Holding>,
    runtime: Handle,
    server_command: Vec<OsString>,
}

impl ExhibitHost {
    /// Opens the store for a server whose mounts end with it.
    pub fn new(client: &Client, runtime: Handle) -> Result<Self> {
        let (holding, inheritance) =
            Holding::attach(&Client::new(client.store().clone(), Vec::new()), Lifetime::Process, None);
        Self::with_holding(client, runtime, holding, inheritance, Arc::new(InProcess))
    }

    /// Opens the store for a server whose connections are held, and takes those of its predecessor.
    pub(crate) fn with_holding(
        client: &Client,
        runtime: Handle,
        holding: Arc<Holding>,
        inheritance: Inheritance,
        sources: Arc<dyn Sources>,
    ) -> Result<Self> {
        let store = client.store().clone();
        let config = Config { decoder: sources.decoder(), ..Config::default() };
        let fetcher = Fetcher::new(Arc::new(store.clone()), runtime.clone(), config);
        let (counters, earlier) = KeptCounters::inherited(&holding);
        fetcher.continue_from(&earlier);
        let scratch = store.server_folder().join("mounts");
        let objects = Arc::new(fetcher.clone());
        let host = Host::with_holder(objects, runtime.clone(), scratch, holding.of_connections(), inheritance);
        let host = host.map_err(cannot_mount)?;
        let host = host.of_store(store.folder());
        host.protect(protected(&store));
        let domain = Arc::new(Domain::new(store, fetcher, host, runtime.clone(), Arc::new(counters), sources));
        let server_command = client.server_command().to_vec();
        Ok(Self { domain, holding, changes: Changes::default(), runtime, server_command })
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.domain.store
    }

    /// The runtime of the server.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// The command line that runs the server's program.
    pub fn server_command(&self) -> &[OsString] {
        &self.server_command
    }

    /// Loads an image from its record, or returns it if it is loaded.
    pub fn load(&self, request: &MountRequest) -> Result<Arc<LoadedImage>> {
        self.domain.images.load(request)
    }

    /// Makes the data that merged trees of the image hide fetchable too. `table` has its locations.
    pub fn show_hidden(&self, request: &MountRequest, image: &LoadedImage, table: Option<Bytes>) -> Result<()> {
        self.domain.images.show_hidden(request, image, table)
    }

    /// Mounts these files by FUSE.
    pub fn mount_files(
        &self,
        files: Arc<dyn Operations>,
        mountpoint: &Path,
    ) -> std::result::Result<Mounted, MountError> {
        self.domain.host.mount_files(files, mountpoint)
    }

    /// Serves the mount that a predecessor left at `folder` with these files. `None`: there is none.
    pub fn adopt_files(
        &self,
        files: Arc<dyn Operations>,
        folder: &Path,
    ) -> std::result::Result<Option<Mounted>, MountError> {
        self.domain.host.adopt_files(files, folder)
    }

    /// Keeps bytes beyond the death of this server, in place of earlier ones of this name.
    pub fn keep_state(&self, name: &str, bytes: &[u8]) {
        self.holding.keep_state(name, bytes);
    }

    /// What the predecessor kept under this name.
    pub fn inherited_state(&self, name: &str) -> Option<Vec<u8>> {
        self.holding.inherited_state(name)
    }

    /// Starts to complete an image in the background, if the request asks for it.
    pub fn begin_backfill(&self, request: &MountRequest, image: &Arc<LoadedImage>) {
        self.domain.backfills.begin(request, image);
    }

    /// How far the completion of an image is. `None`: there is none.
    pub fn backfill_status(&self, manifest: &Digest) -> Option<BackfillStatus> {
        self.domain.backfills.status(manifest)
    }

    /// Reports that an image is exposed, or no longer exposed, at a path.
    pub fn report(&self, mountpoint: &Path, image: &str, manifest: Digest, is_mounted: bool) {
        self.changes.publish(mountpoint, image, manifest, is_mounted);
    }
}

/// The error for a failed mount.
pub fn cannot_mount(error: MountError) -> Error {
    Error::new(ErrorKind::CannotMount, "mount", error)
}

/// Paths that a mount must neither hide nor change: the store, and the sockets of our services.
pub fn protected(store: &Store) -> Protected {
    const SOCKETS: [&str; 2] = ["/run/tarpon/tarpon.sock", "/run/tarpon/snapshotter.sock"];
    const CLOSED: [&str; 9] =
        ["objects", "partial", "images", "layers", "refs", "mounts", "pins", "commits", "tenants"];
    let mut reachable = vec![store.server_folder().join("mounts"), store.containers_folder(), store.objects_folder()];
    reachable.extend(SOCKETS.map(PathBuf::from));
    Protected { reachable, closed: CLOSED.map(|name| store.folder().join(name)).into() }
}
