//! The process or the machine stops before or after each call that changes something.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use tarpon_testkit::storage::{Fault, FaultyDisk, Left};

use tempfile::TempDir;

use crate::bench::{Bench, FIRST, Lost, SECOND};
use crate::common;

/// How the run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// `kill -9`: nothing is lost.
    Kill,
    /// `kill -9` in the middle of a write.
    TornWrite,
    /// A power cut: names are kept, content that was not synced is lost.
    PowerCut(Left),
    /// As [`Stop::PowerCut`], and the names in the folder of the store are as at its last sync.
    PowerCutWithNames,
    /// A power cut, and the disk had reported syncs that it did not do.
    PowerCutOfLyingDisk,
}

/// All of them.
pub(crate) fn stops(seed: u64) -> [Stop; 8] {
    [
        Stop::Kill,
        Stop::TornWrite,
        Stop::PowerCut(Left::Zeros),
        Stop::PowerCut(Left::Half),
        Stop::PowerCut(Left::Nothing),
        Stop::PowerCut(Left::Some(seed)),
        Stop::PowerCutWithNames,
        Stop::PowerCutOfLyingDisk,
    ]
}

/// A stop at a call. The state after a call is that before the next one.
pub(crate) struct Case<'a> {
    pub(crate) bench: &'a Bench<'a>,
    pub(crate) stop: Stop,
    /// The number of the call, among those that change something.
    pub(crate) at: u64,
    /// The call, or none: after the last one.
    pub(crate) call: Option<&'a str>,
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bench { operation, state, .. } = self.bench;
        let call = self.call.unwrap_or("the end");
        write!(f, "{} / {state:?} / {:?} / change {}: {call}", operation.name, self.stop, self.at)
    }
}

impl Case<'_> {
    /// Whether the stop differs from a kill at this call.
    pub(crate) fn applies(&self) -> bool {
        self.stop != Stop::TornWrite || self.call.is_some_and(|call| call.starts_with("write"))
    }

    pub(crate) fn run(&self) -> Result<(), String> {
        let folder = self.bench.prepared();
        let fault = if self.stop == Stop::TornWrite { Fault::Torn } else { Fault::Stop };
        let disk = FaultyDisk::new(self.at, fault).with_names_of(folder.path());
        let disk = if self.stop == Stop::PowerCutOfLyingDisk { disk.with_lies_about_syncs() } else { disk };
        let disk = Arc::new(disk);
        self.bench.run(&disk, folder.path());
        let (boot, lost) = self.lose(&disk, folder.path());
        if self.leaves_most() {
            let abandoned = copied(folder.path());
            self.bench.clear(abandoned.path(), boot).map_err(|why| format!("without a second run: {why}"))?;
        }
        self.bench.check(folder.path(), boot, lost)?;
        let store = self.bench.healthy(folder.path(), boot);
        self.bench.heal(self.bench.scene(store, folder.path()), boot, lost)
    }

    /// Whether other stops at this call leave no other files.
    fn leaves_most(&self) -> bool {
        matches!(self.stop, Stop::Kill | Stop::TornWrite | Stop::PowerCut(Left::Zeros | Left::Nothing))
    }

    /// Takes what the stop takes from the disk.
    fn lose(&self, disk: &FaultyDisk, folder: &Path) -> (&'static str, Lost) {
        match self.stop {
            Stop::Kill | Stop::TornWrite => return (FIRST, Lost::Nothing),
            Stop::PowerCut(left) => disk.lose_unsynced(folder, left),
            Stop::PowerCutWithNames => {
                disk.lose_names();
                disk.lose_unsynced(folder, Left::Zeros);
            }
            Stop::PowerCutOfLyingDisk => {
                disk.lose_unsynced(folder, Left::Zeros);
                return (SECOND, Lost::Anything);
            }
        }
        (SECOND, Lost::Unsynced)
    }
}

/// A copy of a folder with the times and permissions of its files.
fn copied(folder: &Path) -> TempDir {
    let copy = common::folder().unwrap();
    let mut pending = vec![folder.to_owned()];
    while let Some(path) = pending.pop() {
        for entry in fs::read_dir(&path).unwrap().flatten() {
            let (path, metadata) = (entry.path(), entry.metadata().unwrap());
            let target = copy.path().join(path.strip_prefix(folder).unwrap());
            if metadata.is_dir() {
                fs::create_dir(&target).unwrap();
                pending.push(path);
            } else {
                fs::copy(&path, &target).unwrap();
                fs::File::open(&target).unwrap().set_modified(metadata.modified().unwrap()).unwrap();
            }
        }
    }
    copy
}
