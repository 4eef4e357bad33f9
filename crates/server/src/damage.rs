//! The damage that repairs of a server know, between their rounds.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tarpon_oci::Digest;
use tarpon_store::{DamagedObject, StoreError};
use tokio::sync::Semaphore;
use tokio::task::{Id, JoinSet};

/// Damaged files that are fetched concurrently.
const FETCHES: usize = 8;

/// The known damage under the mounts of a server.
#[derive(Default)]
pub(super) struct Damage {
    /// Rounds are serialized.
    pub(super) round: Mutex<Round>,
    /// Why a mount may show damage, by its mount point.
    pub(super) unmended: Mutex<BTreeMap<PathBuf, String>>,
}

impl Damage {
    /// Why the mount there may show damage.
    pub(super) fn of(&self, mountpoint: &Path) -> Option<String> {
        self.unmended.lock().get(mountpoint).cloned()
    }

    /// Removes the entry of an unmounted mount.
    pub(super) fn forget(&self, mountpoint: &Path) {
        self.unmended.lock().remove(mountpoint);
    }
}

/// State that persists between rounds.
pub(super) struct Round {
    /// Damaged files whose pages the kernel has dropped.
    forgotten: HashSet<DamagedObject>,
    /// The damaged files being repaired.
    pub(super) running: HashMap<Id, DamagedObject>,
    pub(super) jobs: JoinSet<std::result::Result<(), Trouble>>,
    pub(super) places: Arc<Semaphore>,
}

impl Default for Round {
    fn default() -> Self {
        let (forgotten, running, jobs) = (HashSet::new(), HashMap::new(), JoinSet::new());
        Self { forgotten, running, jobs, places: Arc::new(Semaphore::new(FETCHES)) }
    }
}

impl Round {
    /// The objects of those damaged files that were not in an earlier round.
    pub(super) fn fresh(&mut self, damaged: impl Iterator<Item = DamagedObject>) -> HashSet<Digest> {
        let damaged: HashSet<_> = damaged.collect();
        let fresh = damaged.difference(&self.forgotten).map(|damaged| damaged.object).collect();
        self.forgotten = damaged;
        fresh
    }
}

/// Why a damaged file is not repaired.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Programs that have it open may read damaged data.
    Failed(String),
    /// It holds another object, and these mounts show that object to programs that have the file open.
    Shown(Vec<PathBuf>),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.to_string())
    }
}
