//! What a power cut may have lost, and how the store handles it.
//!
//! Nothing is synced when it is published: a `kill -9` loses nothing that is in the page cache, and a sync for each
//! object would cost more than it is worth. Instead the file `state` records the kernel's boot id and the time of the
//! last sync of the whole file system. If the boot id still matches, everything is intact. After another boot, everything
//! that changed after that time is *suspect*: it is hashed before it is used, and what is incomplete is removed; it is
//! torn, which is no damage. The file `clean` states that nothing changed after that time. It is removed before the first change, and that removal is the only operation that is synced
//! at once.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use crate::StoreError;
use crate::clock::Clock;
use crate::file_lock::FileLock;
use crate::files::{self, FILE_MODE, io_error, read_record};
use crate::health::PROBE_INTERVAL;
use crate::layout::{Layout, TENANTS};
use crate::locks::{self, Locks};
use crate::sealed;
use crate::storage::{Access, Storage};

/// File times come from a coarser clock than ours: a change this much before a sync counts as after it.
const CLOCK_SLACK: Duration = Duration::from_secs(1);

/// The lock file of publishers, and of a process that marks the store clean.
const PUBLISHING: &str = "publishing";

/// Longest wait for a process that marks the store clean: it syncs everything first. A writer can continue without
/// keeping the object.
const CLEAN_WAIT: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize, Deserialize)]
struct State {
    boot: String,
    synced_seconds: u64,
}

#[derive(Debug)]
pub(crate) struct Durability {
    storage: Arc<dyn Storage>,
    clock: Arc<dyn Clock>,
    root: PathBuf,
    boot: String,
    /// Everything that changed since then must be hashed before it is used.
    suspect_since: RwLock<Option<SystemTime>>,
    synced: Mutex<SystemTime>,
    changing: AtomicBool,
    publishing: Mutex<Publishing>,
}

#[derive(Debug, Default)]
struct Publishing {
    /// Shared lock that keeps other processes from marking the store clean.
    lock: Option<FileLock>,
    /// Another process held the lock for too long: do not wait again before this time.
    busy_until: Duration,
}

impl Durability {
    pub(crate) fn open(storage: Arc<dyn Storage>, clock: Arc<dyn Clock>, layout: &Layout) -> Result<Self, StoreError> {
        let boot =
            storage.boot_id().map_err(|error| StoreError::Io { doing: "asking for the boot id".into(), error })?;
        let durability = Self {
            storage,
            clock,
            root: layout.root().to_owned(),
            boot,
            suspect_since: RwLock::new(None),
            synced: Mutex::new(UNIX_EPOCH),
            changing: AtomicBool::new(false),
            publishing: Mutex::default(),
        };
        durability.compare_boots()?;
        Ok(durability)
    }

    /// Compares the recorded state with the current boot.
    fn compare_boots(&self) -> Result<(), StoreError> {
        let storage = &*self.storage;
        let Some(text) = read_record(storage, &self.root.join("state"))? else {
            // A new store has no suspects. If its state was lost, `objects` is not empty.
            let is_empty = |folder| Ok::<_, StoreError>(files::list(storage, &self.root.join(folder))?.is_empty());
            if is_empty("objects")? && is_empty(TENANTS)? {
                self.try_write_state();
                return Ok(());
            }
            *self.suspect_since.write() = Some(UNIX_EPOCH);
            return Ok(());
        };
        let state = sealed::unseal::<State>(&text).unwrap_or(State { boot: String::new(), synced_seconds: 0 });
        let synced = UNIX_EPOCH.checked_add(Duration::from_secs(state.synced_seconds)).unwrap_or(UNIX_EPOCH);
        *self.synced.lock() = synced;
        if state.boot == self.boot {
            return Ok(());
        }
        if storage.metadata(&self.root.join("clean")).is_ok() {
            self.try_write_state();
            return Ok(());
        }
        *self.suspect_since.write() = Some(synced);
        Ok(())
    }

    /// Writes the state, ignoring errors: a full disk must not prevent opening the store; the next open tries again.
    fn try_write_state(&self) {
        if let Err(error) = self.write_state(self.clock.wall()) {
            tracing::warn!(%error, "the state of the store cannot be noted");
        }
    }

    /// The kernel's boot id.
    pub(crate) fn boot(&self) -> &str {
        &self.boot
    }

    /// Objects that changed at this time or later must be hashed before they are used; `None` if all can be trusted.
    pub(crate) fn suspect_since(&self) -> Option<SystemTime> {
        *self.suspect_since.read()
    }

    /// Prepares for a change; must be called before anything is published.
    pub(crate) fn before_change(&self) -> Result<(), StoreError> {
        if self.clock.wall() < *self.synced.lock() {
            // The clock was set back: later writes would look as if they had been synced.
            self.write_state(self.clock.wall())?;
        }
        if self.changing.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut publishing = self.publishing.lock();
        if publishing.lock.is_some() {
            return Ok(());
        }
        let busy = || StoreError::Busy {
            doing: "mark the store as in use".to_owned(),
            lock: self.root.join(PUBLISHING),
            waited: CLEAN_WAIT,
        };
        if self.clock.steady() < publishing.busy_until {
            return Err(busy());
        }
        let lock = self.mark_unclean().map_err(io_error("marking as in use", &self.root))?;
        if lock.is_none() {
            publishing.busy_until = self.clock.steady() + PROBE_INTERVAL;
        }
        publishing.lock = Some(lock.ok_or_else(busy)?);
        self.changing.store(true, Ordering::Release);
        Ok(())
    }

    /// Removes the mark `clean`. `None`: another process holds the lock for too long.
    fn mark_unclean(&self) -> io::Result<Option<FileLock>> {
        let storage = &*self.storage;
        let file = storage.open(&self.root.join(PUBLISHING), Access::OpenOrCreate(FILE_MODE))?;
        let locks = Locks { storage, clock: &*self.clock };
        let Some(lock) = locks.hold_within(file, false, CLEAN_WAIT)? else { return Ok(None) };
        match storage.unlink(&self.root.join("clean")) {
            Ok(()) => storage.sync(&storage.open(&self.root, Access::Read)?)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(Some(lock))
    }

    /// Syncs everything to the disk and records the time. Does nothing while suspects are unchecked.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        if self.suspect_since().is_some() {
            return Ok(());
        }
        let before = self.clock.wall();
        self.sync_filesystem()?;
        self.write_state(before)
    }

    /// Records that all suspects up to `since` were checked: from now on everything is trusted.
    pub(crate) fn settled(&self, since: SystemTime) -> Result<(), StoreError> {
        self.sync_filesystem()?;
        self.write_state(since)?;
        *self.suspect_since.write() = None;
        Ok(())
    }

    /// Marks the store clean, if no other process is about to change something.
    pub(crate) fn mark_clean(&self) -> Result<(), StoreError> {
        if self.suspect_since().is_some() {
            return Ok(());
        }
        if !self.changing.load(Ordering::Acquire) && self.storage.metadata(&self.root.join("clean")).is_ok() {
            return Ok(());
        }
        let mut publishing = self.publishing.lock();
        let path = self.root.join(PUBLISHING);
        drop(publishing.lock.take());
        self.changing.store(false, Ordering::Release);
        let Some(_lock) = locks::try_lock(&*self.storage, &path)? else {
            return self.sync();
        };
        self.sync()?;
        files::replace(&*self.storage, &self.root, "clean", b"")
    }

    fn sync_filesystem(&self) -> Result<(), StoreError> {
        let outcome = self.storage.open(&self.root, Access::Read).and_then(|root| self.storage.sync_filesystem(&root));
        outcome.map_err(io_error("syncing", &self.root))
    }

    fn write_state(&self, synced: SystemTime) -> Result<(), StoreError> {
        let synced = synced.checked_sub(CLOCK_SLACK).unwrap_or(UNIX_EPOCH);
        let seconds = synced.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let state = State { boot: self.boot.clone(), synced_seconds: seconds };
        let text = sealed::seal(&state).map_err(|error| io_error("writing", &self.root)(error.into()))?;
        files::replace(&*self.storage, &self.root, "state", &text)?;
        *self.synced.lock() = UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH);
        Ok(())
    }
}
