//! Each call of the disk fails, once or for ever after; or the disk is slow.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tarpon_blob::StoreError;
use tarpon_store::{OpenError, PROBE_INTERVAL};
use tarpon_testkit::storage::{EDQUOT, EIO, EMFILE, ENOSPC, EROFS, Fault, FaultyDisk};

use crate::bench::{Bench, FIRST, HandClock, Lost};
use crate::picture::files;

/// The faults of one call.
pub(crate) const FAULTS: [Fault; 12] = [
    Fault::Once(ENOSPC),
    Fault::Once(EDQUOT),
    Fault::Once(EROFS),
    Fault::Once(EIO),
    Fault::Once(EMFILE),
    Fault::FromNowOn(ENOSPC),
    Fault::FromNowOn(EDQUOT),
    Fault::FromNowOn(EROFS),
    Fault::EverFrom(EIO),
    Fault::OpensFrom(EMFILE),
    Fault::Interrupted,
    Fault::Short,
];

/// Calls of one kind on different files of which the first, the second and the last are tested: a walk lists 256 folders.
const ALIKE: usize = 8;

/// A fault at a call.
pub(crate) struct Case<'a> {
    pub(crate) bench: &'a Bench<'a>,
    pub(crate) fault: Fault,
    /// The number of the call.
    pub(crate) at: u64,
    pub(crate) call: &'a str,
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bench { operation, state, .. } = self.bench;
        write!(f, "{} / {state:?} / {:?} / call {}: {}", operation.name, self.fault, self.at, self.call)
    }
}

/// Whether the call can fail in this way.
pub(crate) fn applies(fault: Fault, call: &str) -> bool {
    let is_read = call.starts_with("read");
    let changes = !is_read && !call.starts_with("look");
    match fault {
        Fault::Once(EIO) | Fault::EverFrom(_) => true,
        Fault::Once(EMFILE) | Fault::OpensFrom(_) => call.contains("open") || call.starts_with("look: list"),
        Fault::Once(_) | Fault::FromNowOn(_) => changes,
        _ => ["read ", "write "].iter().any(|kind| call.starts_with(kind)),
    }
}

/// The numbers of the calls to test, of those after the first `skipped`.
pub(crate) fn calls(log: &[String], skipped: u64) -> Vec<u64> {
    // Without the name of the file or the folder.
    let kind = |call: &str| call.trim_end_matches(|letter: char| letter != '/').to_owned();
    let mut by_kind: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (call, number) in log.iter().zip(1..).skip(usize::try_from(skipped).unwrap()) {
        by_kind.entry(if call.contains('/') { kind(call) } else { format!("{number}") }).or_default().push(number);
    }
    let some = by_kind.into_values().flat_map(|numbers| match numbers[..] {
        [first, second, .., last] if numbers.len() > ALIKE => vec![first, second, last],
        _ => numbers,
    });
    let mut some: Vec<u64> = some.collect();
    some.sort_unstable();
    some
}

impl Case<'_> {
    pub(crate) fn run(&self) -> Result<(), String> {
        let folder = self.bench.prepared();
        let (disk, clock) = (Arc::new(FaultyDisk::new(self.at, self.fault)), Arc::new(HandClock::default()));
        let is_passing = matches!(self.fault, Fault::Interrupted | Fault::Short);
        let scene = match self.bench.open(&disk, folder.path(), clock.clone()) {
            Ok(store) => Some(self.bench.scene(store, folder.path())),
            Err(OpenError::Store(error)) if !is_passing => check_error(&error).map(|()| None)?,
            Err(error) => return Err(format!("an error that the fault does not explain: {error}")),
        };
        match scene.as_ref().map(|scene| (self.bench.operation.run)(scene)) {
            Some(Err(error)) if is_passing => return Err(format!("not continued: {error}")),
            Some(Err(error)) => check_error(&error)?,
            Some(Ok(())) | None => {}
        }
        self.check_leftovers(&files(folder.path()))?;
        self.bench.check(folder.path(), FIRST, Lost::Nothing)?;
        disk.end_fault();
        *clock.0.lock() += PROBE_INTERVAL;
        let scene = match scene {
            Some(scene) => scene,
            None => {
                let store = self.bench.open(&disk, folder.path(), clock);
                self.bench.scene(store.map_err(|error| format!("opening it again: {error}"))?, folder.path())
            }
        };
        let is_of_medium = matches!(self.fault, Fault::Once(EIO) | Fault::EverFrom(EIO));
        self.bench.heal(scene, FIRST, if is_of_medium { Lost::Unreadable } else { Lost::Nothing })
    }
}

impl Case<'_> {
    /// After an error that passed, the process itself removes what it had begun.
    fn check_leftovers(&self, files: &BTreeSet<String>) -> Result<(), String> {
        let removes = self.call.starts_with("unlink") || self.call.starts_with("remove");
        let is_passing = matches!(self.fault, Fault::Once(_)) && !removes && !self.call.starts_with("look");
        match files.iter().find(|line| is_passing && line.contains(".new-")) {
            Some(line) => Err(format!("left until the next sweep: {line}")),
            None => Ok(()),
        }
    }
}

/// An error of the store names what was being done.
fn check_error(error: &StoreError) -> Result<(), String> {
    match error {
        StoreError::Full => Ok(()),
        StoreError::Io { doing, error } => {
            // A verb, and a file or an object.
            let names_a_step =
                doing.split_once(' ').is_some_and(|(verb, what)| verb.ends_with("ing") && !what.is_empty());
            let is_typed = error.raw_os_error().is_some();
            if names_a_step && is_typed {
                Ok(())
            } else {
                Err(format!("an error that does not name the step: {doing}: {error}"))
            }
        }
        StoreError::Corrupt(_) | StoreError::Busy { .. } => {
            Err(format!("an error that the fault does not explain: {error}"))
        }
    }
}

/// Runs the operation on a disk on which each call takes this long.
pub(crate) fn run_slowly(bench: &Bench<'_>, time: Duration) -> Result<(), String> {
    let folder = bench.prepared();
    let clock = Arc::new(HandClock::default());
    let ticking = Arc::clone(&clock);
    let disk = Arc::new(FaultyDisk::healthy().with_delay(move || *ticking.0.lock() += time));
    let store = bench.open(&disk, folder.path(), clock).map_err(|error| format!("opening: {error}"))?;
    let scene = bench.scene(store, folder.path());
    (bench.operation.run)(&scene).map_err(|error| error.to_string())?;
    bench.check(folder.path(), FIRST, Lost::Nothing)?;
    bench.heal(scene, FIRST, Lost::Nothing)
}
