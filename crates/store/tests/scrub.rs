//! The scrub finds damage, keeps to its rate, stops and continues, and is not disturbed by concurrent changes.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::cell::{Cell, RefCell};
use std::fs;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use common::{content, get, install, open, put};
use parking_lot::Mutex;
use tarpon_oci::Digest;
use tarpon_store::{Clock, SCRUB_INTERVAL, SCRUB_RATE, ScrubRun, Scrubber, Store, StoreConfig};
use tarpon_testkit::storage::{EIO, FaultyDisk};

/// A clock that only the test advances.
#[derive(Debug, Default)]
struct HandClock(Mutex<Duration>);

impl Clock for HandClock {
    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000) + self.steady()
    }

    fn steady(&self) -> Duration {
        *self.0.lock()
    }
}

/// Waits by advancing the clock, for a limited number of objects.
struct Watcher {
    clock: Arc<HandClock>,
    patience: Cell<u64>,
    run: Cell<ScrubRun>,
    found: Cell<u64>,
    pauses: RefCell<Vec<Duration>>,
}

impl Watcher {
    fn new(clock: &Arc<HandClock>) -> Self {
        Self {
            clock: clock.clone(),
            patience: Cell::new(u64::MAX),
            run: Cell::default(),
            found: Cell::default(),
            pauses: RefCell::default(),
        }
    }

    fn for_objects(clock: &Arc<HandClock>, objects: u64) -> Self {
        let watcher = Self::new(clock);
        watcher.patience.set(objects);
        watcher
    }
}

impl Scrubber for Watcher {
    fn pause(&self, time: Duration) -> bool {
        *self.clock.0.lock() += time;
        self.pauses.borrow_mut().push(time);
        self.run.get().objects < self.patience.get()
    }

    fn progress(&self, run: &ScrubRun) {
        self.run.set(*run);
    }

    fn found(&self) {
        self.found.set(self.found.get() + 1);
    }
}

struct Fixture {
    folder: tempfile::TempDir,
    clock: Arc<HandClock>,
}

impl Fixture {
    fn new() -> Self {
        Self { folder: common::folder().unwrap(), clock: Arc::default() }
    }

    fn store(&self) -> Store {
        self.store_on(FaultyDisk::healthy())
    }

    fn store_on(&self, disk: FaultyDisk) -> Store {
        let config = StoreConfig { storage: Arc::new(disk), clock: self.clock.clone(), ..StoreConfig::default() };
        Store::open(self.folder.path(), config).unwrap()
    }

    fn path(&self, object: &Digest) -> PathBuf {
        path_of(self.folder.path(), object)
    }

    fn corrupt(&self) -> usize {
        fs::read_dir(self.folder.path().join("corrupt")).map_or(0, Iterator::count)
    }

    fn scrub(&self, store: &Store) -> ScrubRun {
        store.scrub(SCRUB_RATE, &Watcher::new(&self.clock)).unwrap().unwrap()
    }
}

fn path_of(folder: &Path, object: &Digest) -> PathBuf {
    let hex = object.hex();
    folder.join("objects").join(&hex[..2]).join(&hex[2..])
}

fn damage(path: &Path, bytes: &[u8]) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o444)).unwrap();
}

fn put_all(store: &Store, sizes: &[usize]) -> Vec<Digest> {
    let numbered = sizes.iter().zip(1..);
    numbered.map(|(size, seed)| put(store, &content(seed, *size)).unwrap()).collect()
}

#[test]
fn a_scrub_moves_damaged_objects_out_and_leaves_a_record() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let objects = put_all(&store, &[10_000, 300_000, 1, 262_144, 4096]);
    assert_eq!((store.scrub_record().last, store.scrub_due()), (None, Duration::ZERO));
    for (object, bytes) in [(&objects[1], content(9, 300_000)), (&objects[4], content(5, 4095))] {
        damage(&fixture.path(object), &bytes);
    }
    let watcher = Watcher::new(&fixture.clock);
    let run = store.scrub(SCRUB_RATE, &watcher).unwrap().unwrap();
    assert_eq!((run.objects, run.damaged, run.unreadable, run.skipped), (5, 2, 0, 0));
    assert_eq!((run.bytes, fixture.corrupt(), watcher.found.get()), (576_240, 2, 2));
    assert!(run.ended.unwrap() >= run.began && run.began >= 1_700_000_000);
    assert!(get(&store, &objects[1]).is_none() && get(&store, &objects[0]).is_some());
    let again = open(fixture.folder.path());
    assert_eq!((again.scrub_record().last, again.scrub_record().under_way), (Some(run), None));
    assert_eq!(fixture.scrub(&store).damaged, 0);
}

#[test]
fn the_next_run_is_due_an_interval_later_and_at_once_when_the_clock_was_set_back() {
    let fixture = Fixture::new();
    let store = fixture.store();
    put_all(&store, &[1]);
    fixture.scrub(&store);
    let due = store.scrub_due();
    assert!(due <= SCRUB_INTERVAL && due > SCRUB_INTERVAL - Duration::from_secs(2), "{due:?}");
    *fixture.clock.0.lock() += due;
    assert_eq!(store.scrub_due(), Duration::ZERO);
    *fixture.clock.0.lock() = Duration::ZERO;
    fixture.scrub(&store);
    let elsewhere: Arc<HandClock> = Arc::default();
    let config = StoreConfig { clock: elsewhere.clone(), ..StoreConfig::default() };
    *fixture.clock.0.lock() += Duration::from_secs(10);
    fixture.scrub(&store);
    assert_eq!(Store::open(fixture.folder.path(), config).unwrap().scrub_due(), Duration::ZERO);
}

#[test]
fn a_store_that_was_empty_is_scrubbed_again_soon() {
    let fixture = Fixture::new();
    let store = fixture.store();
    assert_eq!(fixture.scrub(&store).objects, 0);
    let soon = store.scrub_due();
    assert!(!soon.is_zero() && soon < SCRUB_INTERVAL / 24, "{soon:?}");
    put_all(&store, &[1]);
    fixture.scrub(&store);
    assert!(store.scrub_due() > SCRUB_INTERVAL / 2);
}

#[test]
fn a_scrub_keeps_to_its_rate_whatever_the_sizes_of_objects_are_and_never_makes_up_for_a_wait() {
    const RATE: u64 = 1 << 20;
    let fixture = Fixture::new();
    // A disk on which each read takes a tenth of a second.
    let clock = fixture.clock.clone();
    let slow = FaultyDisk::hooked(move |what, path| {
        let is_object = path.components().any(|part| part.as_os_str() == "objects");
        *clock.0.lock() += Duration::from_millis(if what == "read" && is_object { 100 } else { 0 });
        Ok(())
    });
    let mut sizes = vec![1000; 40];
    sizes.push(3 << 20);
    let store = fixture.store();
    put_all(&store, &sizes);
    for store in [store, fixture.store_on(slow)] {
        let (watcher, began) = (Watcher::new(&fixture.clock), fixture.clock.steady());
        let run = store.scrub(NonZeroU64::new(RATE).unwrap(), &watcher).unwrap().unwrap();
        let took = fixture.clock.steady() - began;
        assert_eq!(run.objects, 41);
        // With the cost of each object besides its bytes, less what was not waited for at the end.
        let least = Duration::from_secs_f64((run.bytes + 41 * (64 << 10)) as f64 / RATE as f64);
        assert!(took >= least - Duration::from_millis(100), "{took:?} instead of {least:?}");
        let longest = watcher.pauses.borrow().iter().max().copied().unwrap();
        assert!(longest <= Duration::from_millis(400), "it stops within {longest:?}");
        assert!(watcher.pauses.borrow().iter().all(|pause| pause.is_zero() || *pause >= Duration::from_millis(50)));
    }
}

#[test]
fn a_stopped_scrub_continues_at_its_position_also_in_another_process() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let mut objects = put_all(&store, &[2000; 30]);
    objects.sort_unstable();
    damage(&fixture.path(&objects[2]), b"other");
    damage(&fixture.path(&objects[20]), b"other");
    assert_eq!(store.scrub(SCRUB_RATE, &Watcher::for_objects(&fixture.clock, 10)).unwrap(), None);
    let record = open(fixture.folder.path()).scrub_record();
    let under_way = record.under_way.unwrap();
    assert_eq!((record.last, under_way.objects, under_way.damaged, under_way.ended), (None, 10, 1, None));
    assert_eq!(store.scrub_due(), Duration::ZERO);
    // Checked objects are not checked again.
    damage(&fixture.path(&objects[5]), b"other");
    let run = fixture.scrub(&fixture.store());
    assert_eq!((run.objects, run.damaged, run.began), (30, 2, under_way.began));
    assert_eq!(fixture.scrub(&store).damaged, 1);
}

#[test]
fn a_scrub_stops_in_the_middle_of_a_large_object() {
    struct Impatient(Cell<u64>);
    impl Scrubber for Impatient {
        fn pause(&self, _time: Duration) -> bool {
            self.0.set(self.0.get() + 1);
            self.0.get() < 3
        }
        fn progress(&self, _run: &ScrubRun) {}
        fn found(&self) {}
    }
    let fixture = Fixture::new();
    let store = fixture.store();
    put_all(&store, &[4 << 20]);
    let impatient = Impatient(Cell::default());
    assert_eq!(store.scrub(NonZeroU64::MIN, &impatient).unwrap(), None);
    assert_eq!((impatient.0.get(), store.scrub_record().under_way.unwrap().objects), (3, 0));
}

#[test]
fn a_state_that_is_damaged_begins_a_new_run() {
    let fixture = Fixture::new();
    let store = fixture.store();
    put_all(&store, &[10; 3]);
    fixture.scrub(&store);
    fs::write(fixture.folder.path().join("scrub"), "{\"last\": 7}").unwrap();
    assert_eq!((store.scrub_record().last, store.scrub_due()), (None, Duration::ZERO));
    assert_eq!(fixture.scrub(&store).objects, 3);
}

#[test]
fn an_object_that_is_evicted_during_a_scrub_is_no_finding() {
    for (what, removed_at) in [("open", 0), ("read", 0), ("read", 1)] {
        let fixture = Fixture::new();
        let store = fixture.store();
        let object = put_all(&store, &[300_000])[0];
        let (path, reads) = (fixture.path(&object), Mutex::new(0));
        let evicted = path.clone();
        let disk = FaultyDisk::hooked(move |now, at| {
            if (now, at) == (what, &*evicted) {
                let mut reads = reads.lock();
                if *reads == removed_at {
                    fs::remove_file(&evicted)?;
                }
                *reads += 1;
            }
            Ok(())
        });
        let run = fixture.scrub(&fixture.store_on(disk));
        assert!(!path.exists());
        assert_eq!(
            (run.objects, run.damaged, run.skipped, fixture.corrupt()),
            (1, 0, 0, 0),
            "before {what} {removed_at}"
        );
    }
}

#[test]
fn a_gc_during_a_scrub_is_no_finding() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let kept = put_all(&store, &[5000; 8]);
    install(&store, "image", &kept).unwrap();
    let loose: Vec<_> = (100..120).map(|seed| put(&store, &content(seed, 5000)).unwrap()).collect();
    let (other, done) = (open(fixture.folder.path()), AtomicBool::new(false));
    let disk = FaultyDisk::hooked(move |what, path| {
        if what == "read" && path.starts_with(other.objects_folder()) && !done.swap(true, Ordering::Relaxed) {
            other.gc().unwrap();
        }
        Ok(())
    });
    let run = fixture.scrub(&fixture.store_on(disk));
    assert_eq!((run.damaged, run.unreadable, run.skipped, fixture.corrupt()), (0, 0, 0, 0));
    assert!(kept.iter().all(|object| store.contains(object)) && !loose.iter().any(|object| store.contains(object)));
}

#[test]
fn a_sound_object_that_takes_the_place_of_a_damaged_one_while_that_is_hashed_is_not_moved_out() {
    // Before the check of the name, and between that and the rename.
    for when in ["read", "rename"] {
        for verify in [false, true] {
            let fixture = Fixture::new();
            let store = fixture.store();
            let object = put_all(&store, &[10_000])[0];
            let path = fixture.path(&object);
            damage(&path, b"damaged");
            let (place, done) = (path.clone(), AtomicBool::new(false));
            let disk = FaultyDisk::hooked(move |what, at| {
                if (what, at) == (when, &*place) && !done.swap(true, Ordering::Relaxed) {
                    let beside = place.with_extension("new");
                    fs::write(&beside, content(1, 10_000))?;
                    fs::rename(beside, &place)?;
                }
                Ok(())
            });
            let store = fixture.store_on(disk);
            let corrupt = if verify {
                u64::try_from(store.verify(|_| {}).unwrap().corrupt.len()).unwrap()
            } else {
                fixture.scrub(&store).damaged
            };
            let case = format!("before {when}, verify: {verify}");
            assert_eq!((corrupt, fixture.corrupt()), (0, 0), "{case}");
            assert_eq!(get(&store, &object).unwrap(), content(1, 10_000), "{case}");
        }
    }
}

/// A disk that fails a number of reads of one file.
fn failing(path: PathBuf, error: i32, times: u64) -> FaultyDisk {
    failing_at("read", path, error, times)
}

/// A disk that fails a number of these operations on one file.
fn failing_at(operation: &'static str, path: PathBuf, error: i32, times: u64) -> FaultyDisk {
    let left = Mutex::new(times);
    FaultyDisk::hooked(move |what, at| {
        let mut left = left.lock();
        if (what, at) == (operation, &*path) && *left > 0 {
            *left -= 1;
            return Err(io::Error::from_raw_os_error(error));
        }
        Ok(())
    })
}

#[test]
fn an_object_on_a_bad_sector_is_reported_as_unreadable_with_the_error_and_moved_out() {
    for verify in [false, true] {
        let fixture = Fixture::new();
        let object = put_all(&fixture.store(), &[300_000, 10])[0];
        let store = fixture.store_on(failing(fixture.path(&object), EIO, u64::MAX));
        if verify {
            let checked = store.verify(|_| {}).unwrap();
            assert_eq!((checked.corrupt.len(), checked.bad_objects(), checked.hashed.objects), (0, 1, 2));
            assert_eq!(checked.unreadable[0].object, object);
            assert!(checked.unreadable[0].error.contains("os error 5"), "{:?}", checked.unreadable);
        } else {
            let run = fixture.scrub(&store);
            assert_eq!((run.objects, run.damaged, run.unreadable, run.skipped), (2, 0, 1, 0));
        }
        assert_eq!((fixture.corrupt(), store.contains(&object)), (1, false));
        // A fetched object is written elsewhere.
        put(&store, &content(1, 300_000)).unwrap();
        assert_eq!(get(&store, &object).unwrap(), content(1, 300_000));
    }
}

#[test]
fn an_error_of_the_disk_that_passes_is_no_finding() {
    for (verify, operation) in [(false, "read"), (true, "read"), (false, "open")] {
        let fixture = Fixture::new();
        let object = put_all(&fixture.store(), &[300_000])[0];
        let store = fixture.store_on(failing_at(operation, fixture.path(&object), EIO, 1));
        let bad = if verify {
            store.verify(|_| {}).unwrap().bad_objects()
        } else {
            let run = fixture.scrub(&store);
            usize::try_from(run.damaged + run.unreadable + run.skipped).unwrap()
        };
        assert_eq!((bad, fixture.corrupt(), store.contains(&object)), (0, 0, true));
    }
}

/// `ENOMEM`
const ENOMEM: i32 = 12;

#[test]
fn an_error_unrelated_to_the_disk_condemns_no_object() {
    let fixture = Fixture::new();
    let objects = put_all(&fixture.store(), &[300_000, 10]);
    let path = fixture.path(&objects[0]);
    let run = fixture.scrub(&fixture.store_on(failing(path.clone(), ENOMEM, u64::MAX)));
    assert_eq!((run.objects, run.damaged, run.unreadable, run.skipped), (2, 0, 0, 1));
    assert!(fixture.store_on(failing(path.clone(), ENOMEM, u64::MAX)).verify(|_| {}).is_err());
    assert!(fixture.store_on(failing_at("metadata", path.clone(), ENOMEM, u64::MAX)).verify(|_| {}).is_err());
    assert!(path.exists());
}

/// `ENOENT`
const ENOENT: i32 = 2;

#[test]
fn an_object_with_unreadable_metadata_is_reported_and_a_removed_one_is_not() {
    for (error, times, skipped, objects) in [(EIO, u64::MAX, 1, 2), (EIO, 1, 0, 2), (ENOENT, u64::MAX, 0, 1)] {
        let fixture = Fixture::new();
        let object = put_all(&fixture.store(), &[300_000, 10])[0];
        let disk = || failing_at("metadata", fixture.path(&object), error, times);
        let run = fixture.scrub(&fixture.store_on(disk()));
        let figures = (run.objects, run.damaged, run.unreadable, run.skipped);
        assert_eq!(figures, (objects, 0, 0, skipped), "scrub, error {error}, {times} times");
        let checked = fixture.store_on(disk()).verify(|_| {}).unwrap();
        let case = format!("verify, error {error}, {times} times");
        assert_eq!((checked.bad_objects() as u64, checked.hashed.objects), (skipped, objects - skipped), "{case}");
        for unreadable in checked.unreadable {
            assert_eq!(unreadable.object, object);
            assert!(
                unreadable.error.contains("examining") && unreadable.error.contains("os error 5"),
                "{unreadable:?}"
            );
        }
        assert_eq!(fixture.corrupt(), 0, "{case}");
    }
}

#[test]
fn an_eviction_and_a_count_skip_an_object_with_unreadable_metadata() {
    let fixture = Fixture::new();
    let objects = put_all(&fixture.store(), &[300_000, 10]);
    let store = fixture.store_on(failing_at("metadata", fixture.path(&objects[0]), EIO, u64::MAX));
    assert_eq!(store.usage().unwrap().objects, 1);
    assert_eq!(store.gc().unwrap().objects, 1);
    assert!(!store.contains(&objects[1]) && fixture.path(&objects[0]).exists());
}

#[test]
fn a_scrub_leaves_no_trace_at_the_objects() {
    // On a disk: in memory there is no page cache besides the files.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = open(folder.path());
    let object = put(&store, &content(1, 3_000_000)).unwrap();
    let path = path_of(folder.path(), &object);
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    fs::File::open(&path).unwrap().set_times(fs::FileTimes::new().set_accessed(old)).unwrap();
    let clock = Arc::default();
    assert_eq!(store.scrub(SCRUB_RATE, &Watcher::new(&clock)).unwrap().unwrap().objects, 1);
    assert_eq!(fs::metadata(&path).unwrap().atime(), 1);
}
