//! [`Store`]: opening a store, and the state that all its parts share.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::budget::Budget;
use crate::clock::{Clock, SystemClock};
use crate::disk::Disk;
use crate::durability::Durability;
use crate::hashed::HashedFiles;
use crate::health::{Health, HealthCheck, is_full};
use crate::layout::{COMMITS, CONTAINERS, Layout};
use crate::locks::Locks;
use crate::storage::Storage;
use crate::{OpenError, StoreError};
use parking_lot::Mutex;
use tarpon_blob::PartialObject;
use tarpon_oci::Digest;

/// Rewrites a tree of an older version of tarpon in the current version; `None` if the input is no such tree, or is
/// damaged. The store does not know the content of trees.
pub type RenewTree = fn(&[u8]) -> Option<Vec<u8>>;

/// Configuration of a store.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Maximum size of the store in bytes, for this process; `None` is the store's setting ([`Store::set_budget`]),
    /// else 80 % of the disk or 20 GiB, whichever is less.
    pub budget: Option<u64>,
    /// Bytes that stay free on the disk; `None` is 5 % of it or 1 GiB, whichever is less.
    pub free_floor: Option<u64>,
    /// The disk.
    pub storage: Arc<dyn Storage>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Rewrites trees of older versions. Without it, images with such a tree are treated as damaged.
    pub renew_tree: Option<RenewTree>,
}

impl Default for StoreConfig {
    fn default() -> Self {
        let (storage, clock) = (Arc::new(Disk), Arc::new(SystemClock::default()));
        Self { budget: None, free_floor: None, storage, clock, renew_tree: None }
    }
}

/// An open store. Clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) layout: Layout,
    pub(crate) durability: Arc<Durability>,
    /// Objects that were hashed since boot.
    pub(crate) hashed: Arc<HashedFiles>,
    /// Files of image records that were hashed since boot.
    pub(crate) hashed_records: Arc<HashedFiles>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) health: Arc<HealthCheck>,
    pub(crate) renew_tree: Option<RenewTree>,
    /// Shared by all users of one partial object and chunk list.
    pub(crate) partials: Mutex<HashMap<PartialKey, SharedPartial>>,
    pub(crate) eviction: Arc<Mutex<LastEviction>>,
    /// The whole store of this tenant.
    pub(crate) whole: Option<Arc<Shared>>,
    /// Of a whole store: the tenants with open handles.
    pub(crate) tenants: Mutex<HashMap<Digest, Weak<Shared>>>,
}

/// An object, and the chunk list that verifies its bytes.
pub(crate) type PartialKey = (Digest, Digest);

/// A partial object that users of one process share.
#[derive(Debug)]
pub(crate) struct SharedPartial {
    pub(crate) size: u64,
    pub(crate) partial: Weak<dyn PartialObject>,
}

/// The last eviction of this process, and its result.
#[derive(Debug, Default)]
pub(crate) struct LastEviction {
    /// Nothing could be evicted then: do not try again before this time.
    pub(crate) fruitless_until: Duration,
}

impl Store {
    /// Opens the store in `folder`, and creates one if there is none. Scans nothing.
    ///
    /// A store of an unknown version is set aside, not interpreted (see `layout`).
    pub fn open(folder: &Path, config: StoreConfig) -> Result<Self, OpenError> {
        let StoreConfig { budget, free_floor, storage, clock, renew_tree } = config;
        let layout = Layout::open(Locks { storage: &*storage, clock: &*clock }, folder)?;
        let durability = Arc::new(Durability::open(Arc::clone(&storage), Arc::clone(&clock), &layout)?);
        let is_uncounted = layout.is_uncounted(&*storage);
        let budget = Arc::new(Budget::new(Arc::clone(&storage), Arc::clone(&clock), &layout, budget, free_floor));
        let health = Arc::new(HealthCheck::new(Arc::clone(&clock)));
        let list = |of: fn(_, _, &Layout, &str) -> HashedFiles| {
            Arc::new(of(Arc::clone(&storage), Arc::clone(&clock), &layout, durability.boot()))
        };
        let (hashed, hashed_records) = (list(HashedFiles::objects), list(HashedFiles::records));
        let shared = Shared {
            storage,
            clock,
            layout,
            durability,
            hashed,
            hashed_records,
            budget,
            health,
            renew_tree,
            partials: Mutex::default(),
            eviction: Arc::default(),
            whole: None,
            tenants: Mutex::default(),
        };
        let store = Self { shared: Arc::new(shared) };
        if is_uncounted && let Err(error) = store.recount() {
            tracing::warn!(%error, "the size of the store cannot be counted");
        }
        Ok(store)
    }

    /// The folder, absolute and free of symbolic links.
    pub fn folder(&self) -> &Path {
        self.shared.layout.root()
    }

    /// Mount point of Podman's view of the store; holds nothing else.
    pub fn podman_folder(&self) -> PathBuf {
        self.shared.layout.podman()
    }

    /// Mount point of Podman's store of single layers; holds nothing else.
    pub fn podman_layers_folder(&self) -> PathBuf {
        self.shared.layout.podman_layers()
    }

    /// The folder of complete objects: a data-only lower layer for overlayfs.
    pub fn objects_folder(&self) -> PathBuf {
        self.shared.layout.name("objects")
    }

    /// The folder for the sockets, logs and scratch folders of the server in this user namespace: the mounts of an ordinary user's
    /// server on the host are of other namespaces than those of its containers.
    pub fn server_folder(&self) -> PathBuf {
        self.shared.layout.server()
    }

    /// Whether this process is in another user namespace than the host's.
    pub fn in_user_namespace(&self) -> bool {
        self.shared.layout.in_user_namespace()
    }

    /// The folder for locks and temporary files of all processes.
    pub fn run_folder(&self) -> PathBuf {
        self.shared.layout.name("run")
    }

    /// The folder of containers, which belongs to the callers that run them; missing before the first one.
    pub fn containers_folder(&self) -> PathBuf {
        self.shared.layout.name(CONTAINERS)
    }

    /// The folder of committed images, which belongs to the callers that commit them; missing before the first one.
    pub fn commits_folder(&self) -> PathBuf {
        self.shared.layout.name(COMMITS)
    }

    /// Whether the disk accepts writes.
    pub fn health(&self) -> Health {
        self.shared.health.state()
    }
}

impl Shared {
    pub(crate) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    pub(crate) fn locks(&self) -> Locks<'_> {
        Locks { storage: &*self.storage, clock: &*self.clock }
    }

    /// Handles a failed write of an object: the object is not kept, which is no error for its reader.
    pub(crate) fn bypass(&self, doing: &str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
        move |error| {
            let doing = format!("{doing} {}", path.display());
            tracing::debug!(%error, "{doing}");
            self.health.failed(&doing, &error);
            StoreError::Full
        }
    }

    /// Handles a failed write of a record: that must be reported, except that a full disk has its own error.
    pub(crate) fn refuse(&self, error: StoreError) -> StoreError {
        let StoreError::Io { doing, error } = error else { return error };
        self.health.failed(&doing, &error);
        if is_full(&error) { StoreError::Full } else { StoreError::Io { doing, error } }
    }
}
