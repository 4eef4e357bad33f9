//! [`Store`]: opening one, and what all its parts share.

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
use crate::partial::{self, Partial};
use crate::storage::Storage;
use crate::{OpenError, StoreError};
use parking_lot::Mutex;
use tarpon_oci::Digest;

/// Writes the tree of an older version of tarpon as this version writes it; `None` if it is none, or damaged. The store knows nothing of
/// what is in trees.
pub type RenewTree = fn(&[u8]) -> Option<Vec<u8>>;

/// How a store is used.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Bytes that the store may hold, for this process; `None` is what was settled for the store
    /// ([`Store::settle_budget`]), else 80 % of the disk or 20 GiB, whichever is less.
    pub budget: Option<u64>,
    /// Bytes that stay free on the disk; `None` is 5 % of it or 1 GiB, whichever is less.
    pub free_floor: Option<u64>,
    /// The disk.
    pub storage: Arc<dyn Storage>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// What writes trees of older versions anew. Without it, images that have one are treated as damaged.
    pub renew_tree: Option<RenewTree>,
}

impl Default for StoreConfig {
    fn default() -> Self {
        let (storage, clock) = (Arc::new(Disk), Arc::new(SystemClock::default()));
        Self { budget: None, free_floor: None, storage, clock, renew_tree: None }
    }
}

/// An open store. Clones are the same store.
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
    pub(crate) hashed: Arc<HashedFiles>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) health: Arc<HealthCheck>,
    pub(crate) renew_tree: Option<RenewTree>,
    /// All users of one partial object and chunk list share it.
    pub(crate) partials: Mutex<HashMap<partial::Key, Weak<Partial>>>,
    pub(crate) eviction: Arc<Mutex<LastEviction>>,
    /// The store that this is a tenant of.
    pub(crate) whole: Option<Arc<Shared>>,
    /// Of a whole store: the tenants that somebody holds.
    pub(crate) tenants: Mutex<HashMap<Digest, Weak<Shared>>>,
}

/// When this process last made room, and to what avail.
#[derive(Debug, Default)]
pub(crate) struct LastEviction {
    /// Nothing could be evicted then: not worth another try before this time.
    pub(crate) fruitless_until: Duration,
}

impl Store {
    /// Opens the store in `folder`, and makes one there if there is none. Scans nothing.
    ///
    /// A store of an unknown version is set aside, not interpreted (see `layout`).
    pub fn open(folder: &Path, config: StoreConfig) -> Result<Self, OpenError> {
        let StoreConfig { budget, free_floor, storage, clock, renew_tree } = config;
        let layout = Layout::open(Locks { storage: &*storage, clock: &*clock }, folder)?;
        let durability = Arc::new(Durability::open(Arc::clone(&storage), Arc::clone(&clock), &layout)?);
        let budget = Arc::new(Budget::new(Arc::clone(&storage), Arc::clone(&clock), &layout, budget, free_floor));
        let health = Arc::new(HealthCheck::new(Arc::clone(&clock)));
        let hashed = Arc::new(HashedFiles::new(Arc::clone(&storage), Arc::clone(&clock), &layout, durability.boot()));
        let shared = Shared {
            storage,
            clock,
            layout,
            durability,
            hashed,
            budget,
            health,
            renew_tree,
            partials: Mutex::default(),
            eviction: Arc::default(),
            whole: None,
            tenants: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The folder, absolute and free of symbolic links.
    pub fn folder(&self) -> &Path {
        self.shared.layout.root()
    }

    /// Where Podman's view of the store is mounted; nothing else is kept there.
    pub fn podman_folder(&self) -> PathBuf {
        self.shared.layout.podman()
    }

    /// Where Podman's store of single layers is mounted; nothing else is kept there.
    pub fn podman_layers_folder(&self) -> PathBuf {
        self.shared.layout.podman_layers()
    }

    /// The folder of complete objects: a data-only lower layer for overlayfs.
    pub fn objects_folder(&self) -> PathBuf {
        self.shared.layout.name("objects")
    }

    /// The folder for sockets and scratch folders of the server.
    pub fn run_folder(&self) -> PathBuf {
        self.shared.layout.name("run")
    }

    /// The folder of containers, which is theirs who run some; not there before the first one.
    pub fn containers_folder(&self) -> PathBuf {
        self.shared.layout.name(CONTAINERS)
    }

    /// The folder of committed images, which is theirs who commit some; not there before the first one.
    pub fn commits_folder(&self) -> PathBuf {
        self.shared.layout.name(COMMITS)
    }

    /// Whether the disk takes what is written.
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

    /// A write for an object failed: the object is not kept, and that is no error of its reader.
    pub(crate) fn bypass(&self, doing: &str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
        move |error| {
            let doing = format!("{doing} {}", path.display());
            tracing::debug!(%error, "{doing}");
            self.health.failed(&doing, &error);
            StoreError::Full
        }
    }

    /// A write of a record failed: that must be told, except that a full disk has its own name.
    pub(crate) fn refuse(&self, error: StoreError) -> StoreError {
        let StoreError::Io { doing, error } = error else { return error };
        self.health.failed(&doing, &error);
        if is_full(&error) { StoreError::Full } else { StoreError::Io { doing, error } }
    }
}
