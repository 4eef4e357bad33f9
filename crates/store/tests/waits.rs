//! Locks of the store that another process does not release: every wait ends, and the error names the lock.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use common::{content, install, put};
use rustix::fs::FlockOperation;
use tarpon_blob::StoreError;
use tarpon_oci::Digest;
use tarpon_store::{
    Clock, FileLock, Isolation, IsolationError, MountRecord, OpenError, RemoveError, Store, StoreConfig,
};
use tarpon_testkit::storage::FaultyDisk;

/// A clock that advances by a second with each reading: no wait by it takes long.
#[derive(Debug, Default)]
struct HurriedClock(AtomicU64);

impl Clock for HurriedClock {
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn steady(&self) -> Duration {
        Duration::from_secs(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

fn config() -> StoreConfig {
    StoreConfig { clock: Arc::new(HurriedClock::default()), free_floor: Some(0), ..StoreConfig::default() }
}

/// Takes the lock like another process: by its own descriptor.
fn hold(path: &Path) -> FileLock {
    let file = File::options().create(true).truncate(false).read(true).write(true).open(path).unwrap();
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    FileLock::of(file)
}

fn assert_busy<T: std::fmt::Debug>(what: &str, outcome: Result<T, StoreError>, held: &str) {
    let Err(error @ StoreError::Busy { .. }) = outcome else { panic!("{what}: {outcome:?}") };
    let text = error.to_string();
    assert!(text.contains("another tarpon process") && text.contains(held), "{what}: {text}");
}

fn of_removal<T>(outcome: Result<T, RemoveError>) -> Result<T, StoreError> {
    outcome.map_err(|error| match error {
        RemoveError::Store(error) => error,
        RemoveError::Mounted(_) => panic!("nothing is mounted"),
    })
}

#[test]
fn a_wait_for_the_eviction_lock_ends_with_an_error_that_names_it() {
    let folder = common::folder().unwrap();
    let store = Store::open(folder.path(), config()).unwrap();
    let image = install(&store, "image", &[]).unwrap();
    let held = hold(&folder.path().join("run/eviction.lock"));

    let busy = |what: &str, outcome: Result<(), StoreError>| assert_busy(what, outcome, "run/eviction.lock");
    busy("install", install(&store, "image", &[]).map(drop));
    busy("keep forms", store.keep_image_forms(&image, b"forms"));
    busy("set layers", store.set_layers(&image, Vec::new()));
    busy("collect", store.gc().map(drop));
    busy("remove", of_removal(store.remove_image(&image).map(drop)));
    busy("remove record", of_removal(store.remove_record(&image)));
    busy("clear", store.clear().map(drop));
    // These proceed without the lock.
    drop(store.pin().unwrap());
    store.record_mount(Path::new("/mnt"), &image, "image", "").unwrap();
    store.forget_mount(Path::new("/mnt")).unwrap();
    store.maintain().unwrap();

    drop(held);
    assert!(store.load_image(&image).unwrap().is_some());
    store.set_layers(&image, Vec::new()).unwrap();
    store.clear().unwrap();
}

#[test]
fn a_record_of_a_mount_is_updated_without_a_wait_for_an_eviction_and_only_if_it_protects_the_image() {
    let folder = common::folder().unwrap();
    let clock = Arc::new(HurriedClock::default());
    let store = Store::open(folder.path(), StoreConfig { clock: clock.clone(), ..config() }).unwrap();
    let (image, other) = (install(&store, "image", &[]).unwrap(), install(&store, "other", &[]).unwrap());
    let update = |at: &str, image: &Digest| store.update_mount_record(Path::new(at), image, "mounted").unwrap();
    assert_eq!(update("/mnt", &image), None, "there is no record");

    let first = store.record_mount(Path::new("/mnt"), &image, "image", "asked").unwrap();
    let _held = hold(&folder.path().join("run/eviction.lock"));
    let before = clock.0.load(Ordering::Relaxed);
    let updated = update("/mnt", &image).unwrap();
    let looks = clock.0.load(Ordering::Relaxed) - before;
    assert!(looks < 5, "it does not wait: {looks} looks at the clock");
    assert_eq!(updated, MountRecord { request: "mounted".to_owned(), ..first });
    assert_eq!(update("/mnt", &other), None, "that image is not protected");
    assert_eq!(store.mounts().unwrap()[0].record, updated);
    store.forget_mount(Path::new("/mnt")).unwrap();
    assert_eq!(update("/mnt", &image), None, "it was forgotten");
    assert!(store.mounts().unwrap().is_empty());
}

#[test]
fn a_writer_without_room_waits_once_for_another_eviction_and_then_bypasses_the_store() {
    let folder = common::folder().unwrap();
    let clock = Arc::new(HurriedClock::default());
    let config = StoreConfig { budget: Some(1), clock: clock.clone(), ..config() };
    let store = Store::open(folder.path(), config).unwrap();
    let _held = hold(&folder.path().join("run/eviction.lock"));
    let looks = || {
        let before = clock.0.load(Ordering::Relaxed);
        assert!(matches!(put(&store, b"object"), Err(StoreError::Full)));
        clock.0.load(Ordering::Relaxed) - before
    };
    let (first, second) = (looks(), looks());
    assert!(first >= 10 && second < 5, "it waits once, and not again at once: {first} and {second} looks at the clock");
}

#[test]
fn a_store_that_another_process_begins_or_isolates_for_ever_is_an_error() {
    let folder = common::folder().unwrap();
    let held = hold(&folder.path().join("lock"));
    let Err(OpenError::Store(error)) = Store::open(folder.path(), config()) else { panic!("opened") };
    assert_busy::<()>("open", Err(error), "lock");
    drop(held);

    let store = Store::open(folder.path(), config()).unwrap();
    let _held = hold(&folder.path().join("lock"));
    let Err(IsolationError::Store(error)) = store.set_isolation(Isolation::Tenant) else { panic!("isolated") };
    assert_busy::<()>("isolate", Err(error), "lock");
}

#[test]
fn objects_are_not_kept_while_another_process_holds_the_clean_mark() {
    let folder = common::folder().unwrap();
    let store = Store::open(folder.path(), config()).unwrap();
    let held = hold(&folder.path().join("publishing"));
    assert!(matches!(put(&store, b"object"), Err(StoreError::Full)));
    drop(held);
    let stored = (0..64).find_map(|_| put(&store, b"object").ok());
    assert_eq!(stored, Some(Digest::of(b"object")), "tried again later");
}

#[test]
fn a_locked_usage_file_blocks_no_operation() {
    let folder = common::folder().unwrap();
    let store = Store::open(folder.path(), config()).unwrap();
    let _held = hold(&folder.path().join("usage"));
    for seed in 0..20 {
        put(&store, &content(seed, 200_000)).unwrap();
    }
    drop(Store::open(folder.path(), config()).unwrap());
}

#[test]
fn a_pin_whose_file_another_process_has_locked_takes_another_name() {
    let folder = common::folder().unwrap();
    let (held, is_first) = (parking_lot::Mutex::new(None), AtomicBool::new(true));
    // A sweep of a process that was stopped before removing an apparently dead pin.
    let disk = FaultyDisk::hooked(move |what, path| {
        let is_pin = path.parent().is_some_and(|folder| folder.ends_with("pins"));
        if what == "open" && is_pin && is_first.swap(false, Ordering::Relaxed) {
            *held.lock() = Some(hold(path));
        }
        Ok(())
    });
    let store = Store::open(folder.path(), StoreConfig { storage: Arc::new(disk), ..config() }).unwrap();
    drop(store.pin().unwrap());
}
