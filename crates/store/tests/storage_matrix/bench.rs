//! One operation in one state: the undisturbed run, and the comparison of a disturbed one with it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tarpon_store::{Clock, OpenError, Store, StoreConfig};
use tarpon_testkit::storage::FaultyDisk;
use tempfile::TempDir;

use crate::common;
use crate::operations::{Operation, Scene};
use crate::picture::{check_images, check_objects, difference, files, picture, without_leftovers};
use crate::states::{Image, State, renew};

/// A clock whose steady time stands still until it is set.
#[derive(Debug, Default)]
pub(crate) struct HandClock(pub(crate) Mutex<Duration>);

impl Clock for HandClock {
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn steady(&self) -> Duration {
        *self.0.lock()
    }
}

/// An operation in a state, with contents made from a seed.
pub(crate) struct Bench<'a> {
    pub(crate) operation: &'a Operation,
    pub(crate) state: State,
    pub(crate) seed: u64,
    expected: Expected,
}

/// What an undisturbed run leaves.
struct Expected {
    picture: BTreeSet<String>,
    /// The files after a collection.
    collected: BTreeSet<String>,
}

/// What was lost besides the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    Nothing,
    /// What was not synced.
    Unsynced,
    /// Objects that the disk did not return.
    Unreadable,
    /// Anything: the disk did not sync.
    Anything,
}

pub(crate) const FIRST: &str = "first boot";
pub(crate) const SECOND: &str = "second boot";

impl<'a> Bench<'a> {
    pub(crate) fn new(operation: &'a Operation, state: State, seed: u64) -> Result<Self, String> {
        let empty = Expected { picture: BTreeSet::new(), collected: BTreeSet::new() };
        let mut bench = Self { operation, state, seed, expected: empty };
        let folder = bench.prepared();
        let scene = bench.scene(bench.healthy(folder.path(), FIRST), folder.path());
        (operation.run)(&scene).map_err(|error| format!("undisturbed: {error}"))?;
        let (estimate, usage) = (scene.store.estimated_usage(), scene.store.usage().unwrap());
        if estimate.abs_diff(usage.total()) > ESTIMATE {
            return Err(format!("undisturbed: {estimate} bytes are believed to be used, and these are: {usage:?}"));
        }
        drop(scene);
        let store = bench.healthy(folder.path(), FIRST);
        store.sweep().unwrap();
        bench.expected.picture = picture(&store, folder.path());
        store.gc().unwrap();
        bench.expected.collected = files(folder.path());
        Ok(bench)
    }

    /// A folder in the state before the operation, synced.
    pub(crate) fn prepared(&self) -> TempDir {
        let folder = common::folder().unwrap();
        if self.state != State::NoStore {
            let scene = self.scene(self.healthy(folder.path(), FIRST), folder.path());
            self.state.prepare(&scene.store, &scene.image, &scene.other).unwrap();
            scene.store.stop_clean().unwrap();
            (self.operation.before)(&scene);
        }
        folder
    }

    pub(crate) fn scene(&self, store: Store, folder: &Path) -> Scene {
        let (image, other) = (Image::new("image", self.seed), Image::new("other", self.seed + 1));
        Scene { store, folder: folder.to_owned(), image, other }
    }

    pub(crate) fn open(
        &self,
        disk: &Arc<FaultyDisk>,
        folder: &Path,
        clock: Arc<dyn Clock>,
    ) -> Result<Store, OpenError> {
        let storage: Arc<FaultyDisk> = Arc::clone(disk);
        let budget = self.operation.budget;
        Store::open(folder, StoreConfig { budget, free_floor: Some(0), storage, clock, renew_tree: Some(renew) })
    }

    /// The store on a sound disk, without a limit: the limit is part of the operation.
    pub(crate) fn healthy(&self, folder: &Path, boot: &str) -> Store {
        let storage = Arc::new(FaultyDisk::healthy().booted_as(boot).without_log());
        let config = StoreConfig { storage, free_floor: Some(0), renew_tree: Some(renew), ..StoreConfig::default() };
        Store::open(folder, config).unwrap()
    }

    /// Runs the operation to its end on this disk. Returns the number of operations of the disk before it.
    pub(crate) fn run(&self, disk: &Arc<FaultyDisk>, folder: &Path) -> Start {
        let Ok(store) = self.open(disk, folder, Arc::new(HandClock::default())) else { return Start::default() };
        let start = Start { operations: disk.operations(), changes: disk.changes() };
        let _ = (self.operation.run)(&self.scene(store, folder));
        if self.operation.is_opening { Start::default() } else { start }
    }

    /// Whether the operation begins with damage that it may leave.
    fn has_damage(&self) -> bool {
        self.operation.name.contains("damage")
    }

    /// Checks what is visible after a disturbed run, to a process that opens the store now.
    pub(crate) fn check(&self, folder: &Path, boot: &str, lost: Lost) -> Result<(), String> {
        let store = self.healthy(folder, boot);
        if lost != Lost::Unsynced {
            check_objects(&store, folder, lost == Lost::Nothing && !self.has_damage())?;
        } else {
            let is_content = |line: &String| line.starts_with("set-aside/") && line.contains("objects/");
            if self.state == State::NoStore && files(folder).iter().any(is_content) {
                return Err("the store forgot its version".to_owned());
            }
            let was_settled = store.is_settled();
            store.settle(|_| {}).map_err(|error| format!("settling: {error}"))?;
            if !store.is_settled() {
                return Err("never settled".to_owned());
            }
            check_objects(&store, folder, !self.has_damage())?;
            let (estimate, usage) = (store.estimated_usage(), store.usage().unwrap());
            if !was_settled && estimate != usage.total() {
                return Err(format!("{estimate} bytes are believed to be used, and these are: {usage:?}"));
            }
        }
        if lost == Lost::Anything {
            store.verify(|_| {}).map_err(|error| format!("verifying: {error}"))?;
            check_objects(&store, folder, true)?;
        }
        if lost == Lost::Anything { Ok(()) } else { check_images(&store, folder) }
    }

    /// Repeats the operation, and compares the result with that of an undisturbed run, and after a collection.
    pub(crate) fn heal(&self, scene: Scene, boot: &str, lost: Lost) -> Result<(), String> {
        let folder = scene.folder.clone();
        if lost != Lost::Nothing && self.state != State::NoStore {
            // Without the limit of the operation.
            let unlimited = self.scene(self.healthy(&folder, boot), &folder);
            let again = self.state.prepare(&unlimited.store, &unlimited.image, &unlimited.other);
            again.map_err(|error| format!("preparing it again: {error}"))?;
            (self.operation.before)(&unlimited);
        }
        // A scrub continues where the disturbed one stopped; the next one finds what was damaged before that place.
        for _ in 0..if self.has_damage() { 2 } else { 1 } {
            (self.operation.run)(&scene).map_err(|error| format!("the same again: {error}"))?;
        }
        drop(scene);
        let store = self.healthy(&folder, boot);
        store.sweep().map_err(|error| format!("sweeping: {error}"))?;
        check_objects(&store, &folder, true)?;
        if self.operation.is_approximate {
            return Ok(());
        }
        let found = picture(&store, &folder);
        if lost == Lost::Nothing {
            // The same files: what a collection leaves of them is the same, too.
            return difference(&found, &self.expected.picture);
        }
        difference(&without_leftovers(&found), &without_leftovers(&self.expected.picture))?;
        store.gc().map_err(|error| format!("collecting: {error}"))?;
        difference(&files(&folder), &self.expected.collected).map_err(|why| format!("after a collection: {why}"))
    }

    /// Removes everything, and checks that nothing is left.
    pub(crate) fn clear(&self, folder: &Path, boot: &str) -> Result<(), String> {
        let store = self.healthy(folder, boot);
        // Whatever the kernel shows: the store opens nothing wrong, before anything is checked.
        check_objects(&store, folder, false)?;
        store.settle(|_| {}).map_err(|error| format!("settling: {error}"))?;
        store.sweep().map_err(|error| format!("sweeping: {error}"))?;
        for mount in store.mounts().unwrap() {
            store.forget_mount(&mount.record.mountpoint).unwrap();
        }
        store.clear().map_err(|error| format!("clearing: {error}"))?;
        let is_kept = |line: &str| line.starts_with("version ") || line.starts_with("settings ");
        let left: BTreeSet<String> = files(folder).into_iter().filter(|line| !is_kept(line)).collect();
        if !left.is_empty() {
            return Err(format!("nothing removes {left:?}"));
        }
        let (estimate, usage) = (store.estimated_usage(), store.usage().unwrap());
        if (estimate, usage.total()) == (0, 0) {
            Ok(())
        } else {
            Err(format!("{estimate} bytes are left, and {usage:?}"))
        }
    }
}

/// The operations of the disk before those of a case.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Start {
    pub(crate) operations: u64,
    pub(crate) changes: u64,
}

/// Bytes by which a process may misjudge what it changed itself: blocks of sparse files.
const ESTIMATE: u64 = 64 << 10;
