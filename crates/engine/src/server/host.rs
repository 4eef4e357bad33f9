//! [`ExhibitHost`]: the store of a server, opened to mount images and to expose them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use tarpon_client::Client;
use tarpon_fetch::Fetcher;
use tarpon_mount::{Host, MountError, Protected};
use tarpon_store::Store;
use tokio::runtime::Handle;

use super::changes::Changes;
use super::domain::Domain;
use crate::{Error, ErrorKind, Result};

/// The parts of the server that an [`super::Exhibit`] uses.
#[derive(Clone)]
pub struct ExhibitHost {
    /// The store, its images and their mounts.
    pub(crate) domain: Arc<Domain>,
    /// Where it reports what it exposes.
    pub(crate) changes: Changes,
    pub(crate) runtime: Handle,
    /// The command line that runs the server's program.
    pub(crate) server_command: Vec<OsString>,
}

impl ExhibitHost {
    /// Opens the store for a server.
    pub(crate) fn new(client: &Client, runtime: Handle) -> Result<Self> {
        let store = client.store().clone();
        let fetcher = Fetcher::new(Arc::new(store.clone()), runtime.clone(), tarpon_fetch::Config::default());
        let scratch = store.run_folder().join("mounts");
        let host = Host::new(Arc::new(fetcher.clone()), runtime.clone(), scratch).map_err(cannot_mount)?;
        let host = host.of_store(store.folder());
        host.protect(protected(&store));
        let domain = Arc::new(Domain::new(store, fetcher, host, runtime.clone()));
        Ok(Self { domain, changes: Changes::default(), runtime, server_command: client.server_command().to_vec() })
    }
}

pub(crate) fn cannot_mount(error: MountError) -> Error {
    Error::new(ErrorKind::CannotMount, "mount", error)
}

/// Paths that a mount must neither hide nor change: the store, and the sockets of our services.
pub(crate) fn protected(store: &Store) -> Protected {
    const SOCKETS: [&str; 2] = ["/run/tarpon/tarpon.sock", "/run/tarpon/snapshotter.sock"];
    const CLOSED: [&str; 9] =
        ["objects", "partial", "images", "layers", "refs", "mounts", "pins", "commits", "tenants"];
    let mut reachable = vec![store.run_folder().join("mounts"), store.containers_folder(), store.objects_folder()];
    reachable.extend(SOCKETS.map(PathBuf::from));
    Protected { reachable, closed: CLOSED.map(|name| store.folder().join(name)).into() }
}
