//! The store's size limit and its current size.
//!
//! The file `usage` holds the sum of all processes (eight bytes, little-endian). Each process adds its own changes in
//! steps of [`STEP`], so a killed process falsifies the sum by less than that; `gc` and `verify` recount. The figure only
//! steers eviction and need not be exact.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::files::{self, FILE_MODE};
use crate::hashed::is_settled;
use crate::layout::{Layout, SETTINGS};
use crate::locks::{Locks, SHORT_WAIT};
use crate::settings::Settings;
use crate::storage::{Access, Metadata, Storage};

/// Change that a process may withhold from the file.
const STEP: u64 = 1 << 20;
/// Unit in which file sizes are counted: the block size of the usual file systems.
const BLOCK: u64 = 4096;

/// Default share of the disk that the store may fill, in percent …
const DEFAULT_BUDGET_PERCENT: u64 = 80;
/// … but no more than this.
const DEFAULT_BUDGET_BYTES: u64 = 20 << 30;
/// Default share of the disk that stays free, in percent …
const DEFAULT_FLOOR_PERCENT: u64 = 5;
/// … but no more than this. The lesser of the two: a small disk stays usable, and little of a large one is reserved.
const DEFAULT_FLOOR_BYTES: u64 = 1 << 30;

/// Bytes that a file of `size` bytes is counted as.
pub(crate) fn on_disk(size: u64) -> u64 {
    size.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX)
}

#[derive(Debug)]
pub(crate) struct Budget {
    storage: Arc<dyn Storage>,
    clock: Arc<dyn Clock>,
    layout: Layout,
    file: PathBuf,
    asked_limit: Option<u64>,
    asked_floor: Option<u64>,
    /// The limit in force.
    limit: AtomicU64,
    /// Free space that the store must leave.
    floor: AtomicU64,
    /// Free space at the last check, less what was written since.
    available: AtomicI64,
    /// Sum of all processes at the last check.
    shared: AtomicI64,
    /// Change of this process that is not in the file yet.
    pending: AtomicI64,
    /// The limit of the user's settings, and the metadata of the file that it was read from.
    settings: Mutex<Option<(Option<Metadata>, Option<u64>)>>,
}

impl Budget {
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        clock: Arc<dyn Clock>,
        layout: &Layout,
        limit: Option<u64>,
        floor: Option<u64>,
    ) -> Self {
        let budget = Self {
            storage,
            clock,
            layout: layout.clone(),
            file: layout.name("usage"),
            asked_limit: limit,
            asked_floor: floor,
            limit: AtomicU64::new(limit.unwrap_or(DEFAULT_BUDGET_BYTES)),
            floor: AtomicU64::new(floor.unwrap_or(DEFAULT_FLOOR_BYTES)),
            available: AtomicI64::new(i64::MAX),
            shared: AtomicI64::new(0),
            pending: AtomicI64::new(0),
            settings: Mutex::default(),
        };
        budget.refresh();
        budget
    }

    /// Maximum size of the store in bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Free bytes that the store leaves to others.
    pub(crate) fn floor(&self) -> u64 {
        self.floor.load(Ordering::Relaxed)
    }

    /// Size of the store in bytes, as far as this process knows.
    pub(crate) fn used(&self) -> u64 {
        let sum = self.shared.load(Ordering::Relaxed).saturating_add(self.pending.load(Ordering::Relaxed));
        u64::try_from(sum).unwrap_or(0)
    }

    /// Bytes to free before `wanted` more fit; 0 if they fit now.
    pub(crate) fn lacking(&self, wanted: u64) -> u64 {
        let over = self.used().saturating_add(wanted).saturating_sub(self.limit());
        let available = u64::try_from(self.available.load(Ordering::Relaxed)).unwrap_or(0);
        let under = self.floor().saturating_add(wanted).saturating_sub(available);
        over.max(under)
    }

    /// Counts `bytes` more (or fewer).
    pub(crate) fn add(&self, bytes: i64) {
        self.available.fetch_sub(bytes, Ordering::Relaxed);
        let pending = self.pending.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if pending.unsigned_abs() >= STEP {
            self.refresh();
        }
    }

    /// Exchanges changes with the other processes and checks the free space of the disk.
    pub(crate) fn refresh(&self) {
        let change = self.pending.swap(0, Ordering::Relaxed);
        match self.exchange(|sum| sum.saturating_add(change)) {
            Ok(sum) => self.shared.store(sum, Ordering::Relaxed),
            Err(error) => {
                tracing::debug!(%error, "the usage file cannot be updated");
                self.shared.fetch_add(change, Ordering::Relaxed);
            }
        }
        match self.storage.space(self.layout.root()) {
            Ok(space) => {
                let limit = (space.total / 100).saturating_mul(DEFAULT_BUDGET_PERCENT).min(DEFAULT_BUDGET_BYTES);
                let floor = (space.total / 100).saturating_mul(DEFAULT_FLOOR_PERCENT).min(DEFAULT_FLOOR_BYTES);
                let settled = self.asked_limit.or_else(|| self.settled_limit());
                self.limit.store(settled.unwrap_or(limit), Ordering::Relaxed);
                self.floor.store(self.asked_floor.unwrap_or(floor), Ordering::Relaxed);
                self.available.store(i64::try_from(space.available).unwrap_or(i64::MAX), Ordering::Relaxed);
            }
            Err(error) => tracing::debug!(%error, "cannot read the free space"),
        }
    }

    /// The limit of the user's settings. They are read only if the file has changed since, because a download asks for each [`STEP`].
    fn settled_limit(&self) -> Option<u64> {
        let (mut known, now) = (self.settings.lock(), self.clock.wall());
        // Looked at before it is read: if it is replaced in between, it is read again the next time.
        let found = match self.storage.metadata(&self.layout.name(SETTINGS)) {
            Ok(file) => Some(Some(file)),
            // As sure: a file that appears later changes that.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(None),
            Err(_) => None,
        };
        if let Some((file, limit)) = *known
            && found == Some(file)
        {
            return limit;
        }
        let read = Settings::try_read(&*self.storage, &self.layout).ok();
        let limit = read.as_ref().and_then(|settings| settings.budget);
        // Another change within a tick of the kernel's clock may leave the same metadata.
        let is_kept = |file: &Option<Metadata>| read.is_some() && file.is_none_or(|file| is_settled(file.changed, now));
        *known = found.filter(is_kept).map(|file| (file, limit));
        limit
    }

    /// Replaces the sum by a counted one.
    pub(crate) fn recount(&self, sum: u64) {
        self.pending.store(0, Ordering::Relaxed);
        let sum = i64::try_from(sum).unwrap_or(i64::MAX);
        self.shared.store(sum, Ordering::Relaxed);
        if let Err(error) = self.exchange(|_| sum) {
            tracing::debug!(%error, "the usage file cannot be updated");
        }
        self.refresh();
    }

    fn exchange(&self, change: impl FnOnce(i64) -> i64) -> io::Result<i64> {
        let storage = &*self.storage;
        let file = storage.open(&self.file, Access::OpenOrCreate(FILE_MODE))?;
        let locks = Locks { storage, clock: &*self.clock };
        let file = locks.hold_within(file, true, SHORT_WAIT)?.ok_or(io::ErrorKind::TimedOut)?;
        let mut bytes = [0; 8];
        files::read_full_at(storage, &file, &mut bytes, 0)?;
        let before = i64::from_le_bytes(bytes);
        let after = change(before).max(0);
        if after != before {
            files::write_all_at(storage, &file, &after.to_le_bytes(), 0)?;
        }
        Ok(after)
    }
}

/// Bytes that are charged before they are written, and refunded unless [`Charge::keep`] is called.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Charge {
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), bytes: 0 }
    }

    /// Raises the charge to `total` bytes.
    pub(crate) fn grow_to(&mut self, total: u64) {
        let more = total.saturating_sub(self.bytes);
        self.bytes += more;
        self.budget.add(signed(more));
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes the charge permanent: the bytes stay on the disk.
    pub(crate) fn keep(&mut self) {
        self.bytes = 0;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.add(-signed(self.bytes));
        }
    }
}

pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
