//! [`Engine`]: one store, and the entry point to all operations on images in it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tarpon_store::{Isolation, IsolationError, OpenError, RenewTree, Store, StoreConfig};
use tarpon_tree::erofs;

use crate::client::Client;
use crate::prepare::Preparations;
use crate::protocol::ScrubStatus;
use crate::rootfs::Folders;
use crate::{Error, ErrorKind, Result};

/// The store, and how its server is started.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The store's directory, created if missing.
    pub store: PathBuf,
    /// The command line that runs [`crate::serve`] on this store. Empty: this program starts no servers.
    pub server_command: Vec<OsString>,
}

/// Opens the store in `folder`. Trees of older versions are rewritten when they are used.
pub fn open_store(folder: &Path) -> std::result::Result<Store, OpenError> {
    let renew_tree: RenewTree = |tree| erofs::renew(tree).ok().flatten();
    Store::open(folder, StoreConfig { renew_tree: Some(renew_tree), ..StoreConfig::default() })
}

/// An open store and what can be done with images in it.
#[derive(Debug, Clone)]
pub struct Engine {
    store: Store,
    server_command: Vec<OsString>,
    flights: Arc<Preparations>,
    rootfs_folders: Arc<Folders>,
}

impl Engine {
    /// Sets the isolation of the store, for all its users.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if it is isolated in another way, or has content that is shared.
    pub fn settle_isolation(&self, isolation: Isolation) -> Result<()> {
        self.store.settle_isolation(isolation).map_err(|error| {
            let kind = match error {
                IsolationError::Store(_) => ErrorKind::Store,
                IsolationError::Conflict { .. } | IsolationError::InUse => ErrorKind::Conflict,
            };
            Error::new(kind, format!("open the store {}", self.store.folder().display()), error)
                .hint("name another store with --store DIR, or leave --isolation and $TARPON_ISOLATION away")
        })
    }

    /// Opens the store. Cheap: nothing is scanned, no request is made.
    pub fn open(options: EngineOptions) -> Result<Self> {
        let EngineOptions { store, server_command } = options;
        let failed = |error| {
            Error::new(ErrorKind::Store, format!("open the store {}", store.display()), error)
                .hint("name another one with --store DIR or $TARPON_STORE")
        };
        let store = open_store(&store).map_err(failed)?;
        let rootfs_folders = Arc::new(Folders::of(&store));
        Ok(Self { store, server_command, flights: Arc::default(), rootfs_folders })
    }

    /// The store itself, which provides listing, checking and emptying.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// This engine with another part of the store.
    pub(crate) fn with_store(&self, store: Store) -> Self {
        Self { store, ..self.clone() }
    }

    /// Preparations under way in this engine and its clones.
    pub(crate) fn flights(&self) -> &Preparations {
        &self.flights
    }

    /// Folders of root file systems for which the user named no directory.
    pub(crate) fn rootfs_folders(&self) -> &Arc<Folders> {
        &self.rootfs_folders
    }

    /// The scrub of the store: as its server reports it, or as it was left. `None`: there never was any.
    pub fn scrub_status(&self) -> Result<Option<ScrubStatus>> {
        let status = self.client().scrub()?.unwrap_or_else(|| ScrubStatus::of_store(&self.store));
        Ok(Some(status).filter(ScrubStatus::is_known))
    }

    /// The store's server.
    pub fn client(&self) -> Client {
        Client::new(self.store.clone(), self.server_command.clone())
    }
}
