//! Evictions compared with a naive model of the rule.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use common::{LIST, content, get, install, put};
use proptest::prelude::*;
use tarpon_blob::{ObjectStore as _, StoreError};
use tarpon_oci::Digest;
use tarpon_store::{Clock, Store, StoreConfig};
use tarpon_testkit::storage::FaultyDisk;

const OBJECTS: usize = 12;
/// Bytes that an image record of `install` takes: five files and the record, in blocks.
const RECORD: u64 = 12_288 + 8192 + 4 * 4096;

fn open(folder: &Path, budget: u64) -> Store {
    Store::open(folder, StoreConfig { budget: Some(budget), free_floor: Some(0), ..StoreConfig::default() }).unwrap()
}

fn path_of(folder: &Path, object: &Digest) -> PathBuf {
    let hex = object.hex();
    folder.join("objects").join(&hex[..2]).join(&hex[2..])
}

fn set_age(path: &Path, seconds: u64) {
    let time = SystemTime::now() - Duration::from_secs(seconds);
    File::open(path).unwrap().set_modified(time).unwrap();
}

#[derive(Debug, Clone)]
struct Scene {
    /// The objects that each image refers to.
    images: Vec<BTreeSet<usize>>,
    mounted: Vec<bool>,
    /// Objects stored since a running import began.
    pinned: BTreeSet<usize>,
    /// Blocks of 4096 bytes.
    budget: u64,
}

fn scenes() -> impl Strategy<Value = Scene> {
    let objects = prop::collection::btree_set(0..OBJECTS, 0..6);
    (prop::collection::vec((objects.clone(), prop::bool::weighted(0.3)), 0..6), prop::option::of(objects), 0_u64..60)
        .prop_map(|(images, pinned, budget)| {
            let (images, mounted) = images.into_iter().unzip();
            Scene { images, mounted, pinned: pinned.unwrap_or_default(), budget }
        })
}

fn size_of(object: usize) -> u64 {
    4096 * (object as u64 % 4 + 1)
}

/// The images and objects that stay, by the documented rule.
fn model(scene: &Scene) -> (BTreeSet<usize>, BTreeSet<usize>) {
    let stays = |images: &BTreeSet<usize>| -> BTreeSet<usize> {
        let referred = images.iter().flat_map(|&image| scene.images[image].iter().copied());
        referred.chain(scene.pinned.iter().copied()).collect()
    };
    let weight = |images: &BTreeSet<usize>| {
        let objects: u64 = stays(images).into_iter().map(size_of).sum();
        // An empty list of objects takes no block.
        let records = images.iter().map(|&image| RECORD - 4096 * u64::from(scene.images[image].is_empty()));
        objects + records.sum::<u64>()
    };
    let mut images: BTreeSet<usize> = (0..scene.images.len()).collect();
    for image in 0..scene.images.len() {
        if weight(&images) <= scene.budget * 4096 {
            break;
        }
        if !scene.mounted[image] {
            images.remove(&image);
        }
    }
    let objects = stays(&images);
    (images, objects)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_least_recently_used_go_until_the_budget_is_met_and_nothing_in_use_does(scene in scenes()) {
        let folder = common::folder().unwrap();
        let store = open(folder.path(), u64::MAX);
        let objects: Vec<Digest> = (0..OBJECTS)
            .map(|object| put(&store, &content(object as u64, usize::try_from(size_of(object)).unwrap())).unwrap())
            .collect();
        let mut manifests = BTreeMap::new();
        for (image, refers_to) in scene.images.iter().enumerate() {
            let ids: Vec<Digest> = refers_to.iter().map(|&object| objects[object]).collect();
            let manifest = install(&store, &format!("image {image}"), &ids).unwrap();
            set_age(&folder.path().join("images").join(manifest.hex()).join("record.json"), 1000 - image as u64);
            if scene.mounted[image] {
                store.record_mount(Path::new(&format!("/mnt/{image}")), &manifest, "image", "").unwrap();
            }
            manifests.insert(image, manifest);
        }
        objects.iter().for_each(|object| set_age(&path_of(folder.path(), object), 5000));
        let pin = store.pin().unwrap();
        for &object in &scene.pinned {
            put(&store, &content(object as u64, usize::try_from(size_of(object)).unwrap())).unwrap();
        }

        let store = open(folder.path(), scene.budget * 4096);
        store.gc().unwrap();

        let (images_stay, objects_stay) = model(&scene);
        for (image, manifest) in &manifests {
            let stayed = store.load_image(manifest).unwrap().is_some();
            prop_assert_eq!(stayed, images_stay.contains(image), "image {}", image);
            let found = store.reference(&format!("image {image}"), "linux/amd64").unwrap().is_some();
            prop_assert_eq!(found, stayed);
        }
        for (object, id) in objects.iter().enumerate() {
            prop_assert_eq!(store.contains(id), objects_stay.contains(&object), "object {}", object);
        }
        prop_assert_eq!(store.estimated_usage(), store.usage().unwrap().total());
        drop(pin);
    }
}

#[test]
fn a_write_into_a_full_store_makes_room_and_what_is_mounted_stays() {
    let folder = common::folder().unwrap();
    let store = open(folder.path(), 1 << 20);
    let store_image = |name: &str, seed: u64| {
        let ids: Vec<Digest> = (0..4).map(|at| put(&store, &content(seed + at, 70_000)).unwrap()).collect();
        (install(&store, name, &ids).unwrap(), ids)
    };
    let (mounted, kept) = store_image("mounted", 10);
    store.record_mount(Path::new("/mnt"), &mounted, "mounted", "").unwrap();
    let (old, gone) = store_image("old", 20);
    for seed in 100..130 {
        put(&store, &content(seed, 70_000)).unwrap();
    }
    assert!(store.load_image(&old).unwrap().is_some(), "what no image refers to goes first");
    let _pin = store.pin().unwrap();
    for seed in 200..206 {
        put(&store, &content(seed, 70_000)).unwrap();
    }
    assert!(store.usage().unwrap().total() <= 1 << 20);
    assert!(store.load_image(&old).unwrap().is_none());
    assert!(gone.iter().all(|id| get(&store, id).is_none()));
    assert!(store.load_image(&mounted).unwrap().is_some());
    assert!(kept.iter().all(|id| get(&store, id).is_some()));
}

#[test]
fn a_store_full_of_used_objects_is_bypassed_and_recovers() {
    let folder = common::folder().unwrap();
    let store = open(folder.path(), 300_000);
    let pin = store.pin().unwrap();
    let ids: Vec<Digest> = (0..3).map(|seed| put(&store, &content(seed, 70_000)).unwrap()).collect();
    assert!(matches!(put(&store, &content(9, 200_000)), Err(StoreError::Full)));
    assert!(matches!(store.partial(&Digest::of(b"more"), &LIST, 1 << 20).map(drop), Ok(()) | Err(StoreError::Full)));
    assert!(ids.iter().all(|id| get(&store, id).is_some()), "an import that runs keeps what it stored");
    drop(pin);
    let store = open(folder.path(), 300_000);
    put(&store, &content(9, 200_000)).unwrap();
}

#[test]
fn free_space_below_the_floor_is_left_to_others() {
    let folder = common::folder().unwrap();
    let store =
        Store::open(folder.path(), StoreConfig { free_floor: Some(u64::MAX / 2), ..StoreConfig::default() }).unwrap();
    assert!(matches!(put(&store, b"one more"), Err(StoreError::Full)));
}

#[test]
fn a_partial_object_in_use_is_not_evicted_and_a_forgotten_one_is() {
    let folder = common::folder().unwrap();
    let store = open(folder.path(), 1 << 30);
    let (used, forgotten) = (Digest::of(b"used"), Digest::of(b"forgotten"));
    let partial = store.partial(&used, &LIST, 1 << 20).unwrap();
    partial.write_at(&common::verified(b"tarpon"), 0).unwrap();
    store.partial(&forgotten, &LIST, 1 << 20).unwrap().write_at(&common::verified(b"tarpon"), 0).unwrap();
    assert_eq!(store.usage().unwrap().partials, 2);
    store.gc().unwrap();
    assert_eq!(store.usage().unwrap().partials, 1);
    let mut buffer = [0; 6];
    partial.read_at(&mut buffer, 0).unwrap();
    assert_eq!(&buffer, b"tarpon");
}

#[test]
fn objects_of_a_failed_import_are_removed_unless_others_may_use_them() {
    let folder = common::folder().unwrap();
    let store = open(folder.path(), 1 << 30);
    let ids: Vec<Digest> = (0..3).map(|seed| put(&store, &content(seed, 1000)).unwrap()).collect();
    install(&store, "other", &ids[1..2]).unwrap();
    let there = |store: &Store| ids.iter().map(|id| store.contains(id)).collect::<Vec<_>>();
    let pin = store.pin().unwrap();
    let another = store.pin().unwrap();
    store.discard(&ids[..2]).unwrap();
    assert_eq!(there(&store), [true, true, true], "another import may have found them here");
    drop(another);
    let before = store.estimated_usage();
    assert_eq!(store.discard(&ids[..2]).unwrap().objects, 1);
    assert_eq!(there(&store), [false, true, true], "the second belongs to an image, the third was not named");
    assert!(store.estimated_usage() < before);
    drop(pin);
}

#[test]
fn removing_an_image_removes_its_own_objects_and_is_refused_while_it_is_mounted() {
    let folder = common::folder().unwrap();
    let store = open(folder.path(), 1 << 30);
    let ids: Vec<Digest> = (0..3).map(|seed| put(&store, &content(seed, 1000)).unwrap()).collect();
    let (one, other) = (install(&store, "one", &ids[..2]).unwrap(), install(&store, "other", &ids[1..]).unwrap());
    store.record_mount(Path::new("/mnt"), &one, "one", "").unwrap();
    assert!(store.remove_image(&one).is_err());
    store.forget_mount(Path::new("/mnt")).unwrap();
    store.remove_image(&one).unwrap();
    assert_eq!(ids.iter().map(|id| store.contains(id)).collect::<Vec<_>>(), [false, true, true]);
    assert!(store.load_image(&other).unwrap().is_some());
    store.clear().unwrap();
    assert_eq!(store.usage().unwrap().total(), 0);
}

/// Overwrites the object's file in place, as a bad disk does.
fn damage(folder: &Path, object: &Digest) {
    let path = path_of(folder, object);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&path, b"damaged").unwrap();
}

#[test]
fn an_eviction_between_verify_and_mend_keeps_the_damaged_files_of_mounted_images() {
    let folder = common::folder().unwrap();
    let store = open(folder.path(), 1 << 20);
    let bytes = content(1, 70_000);
    let (mounted, other) = (put(&store, &bytes).unwrap(), put(&store, &content(2, 70_000)).unwrap());
    let image = install(&store, "mounted", &[mounted]).unwrap();
    install(&store, "other", &[other]).unwrap();
    store.record_mount(Path::new("/mnt"), &image, "mounted", "").unwrap();
    [mounted, other].iter().for_each(|object| damage(folder.path(), object));
    assert_eq!(store.verify(|_| {}).unwrap().corrupt.len(), 2);

    let unreferenced: Vec<Digest> = (10..23).map(|seed| put(&store, &content(seed, 70_000)).unwrap()).collect();
    store.maintain().unwrap();
    assert!(unreferenced.iter().any(|object| !store.contains(object)), "the budget forced no eviction");
    let damaged = store.damaged_objects().unwrap();
    assert_eq!(damaged.iter().map(|damaged| damaged.object).collect::<Vec<_>>(), [mounted]);

    let file = store.mend(&damaged[0]).unwrap().unwrap();
    file.write_at(&bytes, 0).unwrap();
    file.finish(bytes.len() as u64).unwrap();
    assert_eq!(store.damaged_objects().unwrap(), []);
}

#[test]
fn the_damaged_files_of_a_mounted_object_that_is_never_mended_are_bounded() {
    let folder = common::folder().unwrap();
    let store = open(folder.path(), 1 << 20);
    let image = install(&store, "mounted", &[Digest::of(b"object")]).unwrap();
    store.record_mount(Path::new("/mnt"), &image, "mounted", "").unwrap();
    for _ in 0..10 {
        let object = put(&store, b"object").unwrap();
        damage(folder.path(), &object);
        assert_eq!(store.verify(|_| {}).unwrap().corrupt, [object]);
    }
    store.gc().unwrap();
    assert_eq!(store.damaged_objects().unwrap().len(), 4);
    store.forget_mount(Path::new("/mnt")).unwrap();
    store.gc().unwrap();
    assert_eq!(store.damaged_objects().unwrap(), []);
}

/// A clock that stands still: no wait ends.
#[derive(Debug)]
struct StillClock;

impl Clock for StillClock {
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn steady(&self) -> Duration {
        Duration::ZERO
    }
}

/// An import relies on an object just before each operation of an eviction on its file.
#[test]
fn an_object_that_an_import_claims_while_it_is_evicted_stays_or_is_stored_again() {
    for operation in ["unlink", "open"] {
        let folder = common::folder().unwrap();
        let still = StoreConfig { clock: Arc::new(StillClock), free_floor: Some(0), ..StoreConfig::default() };
        let importer = Store::open(folder.path(), still).unwrap();
        let bytes = content(1, 1000);
        let object = put(&importer, &bytes).unwrap();
        let path = path_of(folder.path(), &object);
        set_age(&path, 5000);
        let _pin = importer.pin().unwrap();
        let claims = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let disk = {
            let (claims, path, bytes) = (Arc::clone(&claims), path.clone(), bytes.clone());
            FaultyDisk::hooked(move |what, at| {
                if (what, at) == (operation, &*path) {
                    let (importer, bytes) = (importer.clone(), bytes.clone());
                    let claim = thread::spawn(move || put(&importer, &bytes).unwrap());
                    // While the eviction holds the lock of the file, the claim cannot end.
                    while !claim.is_finished() && !is_locked(&path) {
                        thread::yield_now();
                    }
                    claims.lock().push(claim);
                }
                Ok(())
            })
        };
        let config = StoreConfig {
            budget: Some(1 << 30),
            free_floor: Some(0),
            storage: Arc::new(disk),
            ..StoreConfig::default()
        };
        let evictor = Store::open(folder.path(), config).unwrap();
        evictor.gc().unwrap();
        let claims = std::mem::take(&mut *claims.lock());
        assert_eq!(claims.len(), 1, "{operation}");
        for claim in claims {
            claim.join().unwrap();
        }
        assert!(get(&evictor, &object) == Some(bytes), "{operation}: an object of a running import was evicted");
    }
}

/// Whether an eviction has locked the file: exclusively, so that it cannot be shared.
fn is_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared).is_err()
}

#[test]
fn an_object_that_was_published_by_pieces_is_claimed_while_its_writer_has_it_open() {
    let folder = common::folder().unwrap();
    let (one, other) = (open(folder.path(), 1 << 30), open(folder.path(), 1 << 30));
    let bytes = content(1, 100_000);
    let object = Digest::of(&bytes);
    let partial = one.partial(&object, &LIST, bytes.len() as u64).unwrap();
    partial.write_at(&common::verified(&bytes), 0).unwrap();
    partial.publish().unwrap();
    assert_eq!(put(&other, &bytes).unwrap(), object);
    drop(partial);
}

#[test]
fn a_partial_object_whose_writer_died_after_linking_it_in_is_not_written_any_more() {
    let folder = common::folder().unwrap();
    let store = open(folder.path(), 1 << 30);
    let bytes = content(1, 100_000);
    let object = put(&store, &bytes).unwrap();
    let hex = object.hex();
    let partials = folder.path().join("partial").join(&hex[..2]);
    fs::create_dir_all(&partials).unwrap();
    fs::hard_link(path_of(folder.path(), &object), partials.join(format!("{}.{}", &hex[2..], LIST.hex()))).unwrap();
    let partial = store.partial(&object, &LIST, bytes.len() as u64).unwrap();
    partial.spool_at(&[0; 1000], 0).unwrap();
    assert!(get(&store, &object) == Some(bytes), "a complete object was written to");
}
