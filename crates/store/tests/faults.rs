//! Behavior when the disk fails. `storage_matrix` fails every call of every operation.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use common::{LIST, content, get, install, put, verified};
use tarpon_blob::{ObjectStore, PartialObject, StoreError};
use tarpon_oci::Digest;
use tarpon_store::{Clock, Health, PROBE_INTERVAL, Part, Store, StoreConfig, SystemClock};
use tarpon_testkit::storage::{EIO, ENOSPC, Fault, FaultyDisk};

fn open_on(disk: FaultyDisk, folder: &Path) -> (Arc<FaultyDisk>, Result<Store, tarpon_store::OpenError>) {
    let disk = Arc::new(disk);
    let storage = Arc::clone(&disk);
    let config = StoreConfig { storage, free_floor: Some(0), ..StoreConfig::default() };
    (disk, Store::open(folder, config))
}

/// `EIO`, `ENOMEM`, `EMFILE`: errors that may pass.
const TRANSIENT: [i32; 3] = [EIO, 12, 24];

#[test]
fn a_record_that_cannot_be_read_for_once_is_an_error_and_neither_absent_nor_damaged() {
    let folder = common::folder().unwrap();
    let (_, store) = open_on(FaultyDisk::healthy(), folder.path());
    let manifest = install(&store.unwrap(), "image", &[]).unwrap();
    let (disk, store) = open_on(FaultyDisk::healthy(), folder.path());
    let opening = disk.operations();
    assert!(store.unwrap().load_image(&manifest).unwrap().is_some());
    let loaded = disk.operations();
    assert!(opening < loaded);
    let mut failed = 0;
    for at in opening + 1..=loaded {
        for error in TRANSIENT {
            let (disk, store) = open_on(FaultyDisk::new(at, Fault::Once(error)), folder.path());
            let store = store.unwrap();
            let case = |disk: &FaultyDisk| format!("error {error} at {at}: {:?}", disk.log().last());
            let found = store.load_image(&manifest);
            if disk.log().get(usize::try_from(at - 1).unwrap()).is_some_and(|what| what.starts_with("look")) {
                // The time of the last use, which only orders evictions.
                continue;
            }
            // A file is read twice before it counts as unreadable, and the list of hashed files is not needed.
            assert!(!matches!(found, Ok(None)), "{}", case(&disk));
            failed += usize::from(found.is_err());
            assert!(store.load_image(&manifest).unwrap().is_some());
        }
    }
    assert!(failed > 0);
}

#[test]
fn installing_an_image_again_never_removes_a_sound_record_that_cannot_be_read_for_once() {
    let again = |store: &Store| -> Result<(), StoreError> {
        let manifest = Digest::of(b"manifest of image");
        let mut record = store.image(&manifest)?.unwrap();
        (record.references, record.parts) = (vec!["another".to_owned()], Vec::new());
        let mut staging = store.stage_image(record)?;
        staging.put(Part::Manifest, b"manifest of image")?;
        staging.put(Part::Config, b"{}")?;
        staging.put(Part::Tree, &content(1, 10_000))?;
        staging.put(Part::Chunks, &content(2, 5_000))?;
        staging.put_objects(Vec::new())?;
        staging.install().map(drop)
    };
    let prepared = || {
        let folder = common::folder().unwrap();
        let (_, store) = open_on(FaultyDisk::healthy(), folder.path());
        let manifest = install(&store.unwrap(), "image", &[]).unwrap();
        (folder, manifest)
    };
    let (folder, _) = prepared();
    let (disk, store) = open_on(FaultyDisk::healthy(), folder.path());
    let opening = disk.operations();
    again(&store.unwrap()).unwrap();
    for at in opening + 1..=disk.operations() {
        for error in TRANSIENT {
            let (folder, manifest) = prepared();
            let (disk, store) = open_on(FaultyDisk::new(at, Fault::Once(error)), folder.path());
            let outcome = again(&store.unwrap());
            let (_, store) = open_on(FaultyDisk::healthy(), folder.path());
            let record = store.unwrap().load_image(&manifest).unwrap().map(|image| image.record.references);
            let operation = disk.log().get(usize::try_from(at - 1).unwrap()).cloned();
            let kept = record.is_some_and(|references| references.iter().any(|name| name == "image"));
            assert!(kept, "error {error} at {at}: {operation:?}: {outcome:?}");
        }
    }
}

#[test]
fn an_image_that_another_process_installs_at_the_same_moment_is_joined() {
    let folder = common::folder().unwrap();
    let (_, other) = open_on(FaultyDisk::healthy(), folder.path());
    let (other, installed) = (other.unwrap(), AtomicUsize::new(0));
    let disk = FaultyDisk::hooked(move |what, path| {
        // The record is complete, and is about to get its name.
        if what == "rename" && path.is_dir() && installed.fetch_add(1, Ordering::Relaxed) == 0 {
            install(&other, "image", &[]).unwrap();
        }
        Ok(())
    });
    let (_, store) = open_on(disk, folder.path());
    let store = store.unwrap();
    let manifest = install(&store, "image", &[]).unwrap();
    assert!(store.load_image(&manifest).unwrap().is_some());
    assert_eq!(std::fs::read_dir(folder.path().join("images")).unwrap().count(), 1, "nothing is left of the attempt");
}

/// A clock that stands still until it is set.
#[derive(Debug, Default)]
struct ManualClock(parking_lot::Mutex<Duration>);

impl Clock for ManualClock {
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn steady(&self) -> Duration {
        *self.0.lock()
    }
}

#[test]
fn a_disk_that_refused_a_write_is_retried_after_half_a_minute() {
    let folder = common::folder().unwrap();
    let (disk, store) = open_on(FaultyDisk::healthy(), folder.path());
    put(&store.unwrap(), b"before").unwrap();
    let opening = disk.operations();
    let clock = Arc::new(ManualClock::default());
    let disk = Arc::new(FaultyDisk::new(opening, Fault::Once(ENOSPC)));
    let config =
        StoreConfig { storage: Arc::clone(&disk) as _, clock: Arc::clone(&clock) as _, ..StoreConfig::default() };
    let store = Store::open(folder.path(), config).unwrap();
    let mut seed = 0;
    while store.health() == Health::Healthy {
        seed += 1;
        let _ = put(&store, &content(seed, 100));
    }
    let before = disk.operations();
    assert!(matches!(put(&store, b"after"), Err(StoreError::Full)));
    assert_eq!(disk.operations(), before, "the disk was not asked");
    *clock.0.lock() += PROBE_INTERVAL;
    put(&store, b"after").unwrap();
    assert_eq!(store.health(), Health::Healthy);
    assert_eq!(get(&store, &Digest::of(b"before")).as_deref(), Some(&b"before"[..]));
}

/// Writes a part of a small object that is to last.
fn keep_part(store: &Store) -> (Arc<dyn PartialObject>, Result<(), StoreError>) {
    let bytes = content(6, 40_000);
    let partial = store.partial(&Digest::of(&bytes), &LIST, 40_000).unwrap();
    partial.write_at(&verified(&bytes[..10_000]), 0).unwrap();
    let kept = partial.persist();
    (partial, kept)
}

#[test]
fn a_part_of_a_small_object_that_cannot_be_written_leaves_no_file() {
    let folder = common::folder().unwrap();
    let (disk, store) = open_on(FaultyDisk::healthy(), folder.path());
    let store = store.unwrap();
    let (_partial, kept) = keep_part(&store);
    kept.unwrap();
    assert_eq!(store.usage().unwrap().partials, 1);
    let at = 1 + disk.log().iter().rposition(|what| what.starts_with("write")).unwrap() as u64;
    for error in [EIO, ENOSPC] {
        let folder = common::folder().unwrap();
        let (disk, store) = open_on(FaultyDisk::new(at, Fault::Once(error)), folder.path());
        let store = store.unwrap();
        let (partial, kept) = keep_part(&store);
        assert!(kept.is_err(), "error {error} at {at}: {:?}", disk.log().last());
        assert_eq!(store.usage().unwrap().partials, 0);
        let mut bytes = vec![0; 10_000];
        partial.read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, content(6, 40_000)[..10_000], "it stays in memory");
    }
}

#[test]
fn a_small_object_that_was_published_meanwhile_gets_no_file_of_its_parts() {
    let folder = common::folder().unwrap();
    let store = open_on(FaultyDisk::healthy(), folder.path()).1.unwrap();
    let bytes = content(6, 40_000);
    let partial = store.partial(&Digest::of(&bytes), &LIST, 40_000).unwrap();
    partial.write_at(&verified(&bytes[..10_000]), 0).unwrap();
    put(&store, &bytes).unwrap();
    partial.persist().unwrap();
    assert_eq!(store.usage().unwrap().partials, 0);
}

/// A clock that is an hour ahead: nothing has changed within a tick of it.
#[derive(Debug, Default)]
struct LateClock(SystemClock);

impl Clock for LateClock {
    fn wall(&self) -> SystemTime {
        self.0.wall() + Duration::from_secs(3600)
    }

    fn steady(&self) -> Duration {
        self.0.steady()
    }
}

#[test]
fn a_download_does_not_read_the_settings_again_and_again_but_notices_a_change() {
    const OBJECT: usize = 1 << 20;
    let folder = common::folder().unwrap();
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let disk = FaultyDisk::hooked(move |what, path| {
        counted.fetch_add(usize::from(what == "open" && path.ends_with("settings")), Ordering::Relaxed);
        Ok(())
    });
    let config = StoreConfig { free_floor: Some(0), clock: Arc::new(LateClock::default()), ..StoreConfig::default() };
    let other = Store::open(folder.path(), config.clone()).unwrap();
    other.set_budget(100 << 20).unwrap();
    let store = Store::open(folder.path(), StoreConfig { storage: Arc::new(disk), ..config }).unwrap();
    let before = reads.load(Ordering::Relaxed);
    for seed in 0..8 {
        put(&store, &content(seed, OBJECT)).unwrap();
    }
    assert_eq!(reads.load(Ordering::Relaxed), before, "read when it was opened");
    other.set_budget(99 << 20).unwrap();
    put(&store, &content(9, OBJECT)).unwrap();
    assert_eq!(store.usage().unwrap().budget, 99 << 20);
}
