//! The state after the process or the machine stops. `storage_matrix` stops it at every call.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use common::{content, get, install, put, put_by_pieces};
use tarpon_oci::Digest;
use tarpon_store::{Store, StoreConfig};
use tarpon_testkit::storage::{Fault, FaultyDisk, Left};

struct Workload {
    name: &'static str,
    /// Creates the initial, synced state.
    prepare: fn(&Store),
    run: fn(&Store),
    budget: Option<u64>,
}

const LARGE: usize = 70_000;

fn workloads() -> Vec<Workload> {
    let nothing: fn(&Store) = |_| {};
    let with_images: fn(&Store) = |store| {
        for name in ["old", "new"] {
            let objects = [0, 1, 2].map(|at| put(store, &content(name.len() as u64 * 10 + at, 20_000)).unwrap());
            install(store, name, &objects).unwrap();
        }
        put(store, b"unreferenced").unwrap();
        store.stop_clean().unwrap();
    };
    vec![
        Workload { name: "publish objects", prepare: nothing, run: publish_objects, budget: None },
        Workload { name: "publish onto a clean store", prepare: with_images, run: publish_objects, budget: None },
        Workload { name: "fill and publish partial objects", prepare: nothing, run: fill_partials, budget: None },
        Workload { name: "install an image", prepare: nothing, run: install_image, budget: None },
        Workload {
            name: "install an image without objects onto a clean store",
            prepare: with_images,
            run: install_bare,
            budget: None,
        },
        Workload { name: "evict", prepare: with_images, run: |store| drop(store.gc()), budget: Some(80_000) },
        Workload { name: "clear", prepare: with_images, run: |store| drop(store.clear()), budget: None },
        Workload { name: "sync and stop", prepare: nothing, run: sync_and_stop, budget: None },
    ]
}

fn publish_objects(store: &Store) {
    let _ = put(store, b"small");
    let _ = put(store, &content(1, LARGE));
    let _ = put(store, b"small");
}

fn fill_partials(store: &Store) {
    let _ = put_by_pieces(store, &content(2, 3000), 1000);
    let _ = put_by_pieces(store, &content(3, LARGE), 40_000);
}

fn install_image(store: &Store) {
    let Ok(_pin) = store.pin() else { return };
    let Ok(object) = put(store, b"of the image") else { return };
    let _ = install(store, "image", &[object]);
    let _ = store.record_mount(Path::new("/mnt"), &object, "image", "native");
    let _ = store.forget_mount(Path::new("/mnt"));
}

fn install_bare(store: &Store) {
    let _ = install(store, "bare", &[]);
}

fn sync_and_stop(store: &Store) {
    let _ = put(store, &content(4, LARGE));
    let _ = store.maintain();
    let _ = put(store, &content(5, LARGE));
    let _ = store.stop_clean();
    let _ = put(store, &content(6, LARGE));
}

fn open_on(disk: &Arc<FaultyDisk>, folder: &Path, budget: Option<u64>) -> Option<Store> {
    let storage: Arc<FaultyDisk> = Arc::clone(disk);
    Store::open(folder, StoreConfig { budget, storage, free_floor: Some(0), ..StoreConfig::default() }).ok()
}

fn prepared(workload: &Workload) -> tempfile::TempDir {
    let folder = common::folder().unwrap();
    if workload.name != "open" {
        let store = open_on(&Arc::new(FaultyDisk::healthy()), folder.path(), None).unwrap();
        (workload.prepare)(&store);
    }
    folder
}

fn run_on(disk: &Arc<FaultyDisk>, folder: &Path, workload: &Workload) {
    if let Some(store) = open_on(disk, folder, workload.budget) {
        (workload.run)(&store);
    }
}

fn operations(workload: &Workload) -> u64 {
    let folder = prepared(workload);
    let disk = Arc::new(FaultyDisk::healthy());
    run_on(&disk, folder.path(), workload);
    disk.changes()
}

fn temporary_files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.file_name().to_str().unwrap().starts_with(".new-") {
                found.push(entry.path().display().to_string());
            }
            if entry.file_type().unwrap().is_dir() {
                pending.push(entry.path());
            }
        }
    }
    found
}

#[test]
fn what_a_power_cut_kept_from_the_disk_is_removed_and_is_no_damage() {
    let mut torn = 0;
    for workload in workloads() {
        for at in 1..=operations(&workload) {
            for (left, settles_first) in [(Left::Zeros, false), (Left::Half, true)] {
                let folder = prepared(&workload);
                let disk = Arc::new(FaultyDisk::new(at, Fault::Stop));
                run_on(&disk, folder.path(), &workload);
                disk.lose_unsynced(folder.path(), left);
                let rebooted = Arc::new(FaultyDisk::healthy().booted_as("second boot"));
                let store = open_on(&rebooted, folder.path(), None).unwrap();
                let first = if settles_first { store.settle(|_| {}) } else { store.verify(|_| {}) }.unwrap();
                let case = format!("{}, stop at {at}: {:?}", workload.name, disk.log().last());
                assert_eq!((first.bad_objects(), first.damaged_images), (0, vec![]), "{case}");
                torn += first.torn_objects.len() + first.torn_images.len();
                let second = store.verify(|_| {}).unwrap();
                assert_eq!((second.bad_objects(), second.damaged_images), (0, vec![]), "{case}");
                assert_eq!((second.torn_objects, second.torn_images), (vec![], vec![]), "{case}");
            }
        }
    }
    println!("{torn} objects and images removed");
    assert!(torn > 100, "the power cuts took nothing: this test has lost its teeth");
}

#[test]
fn an_image_record_that_a_power_cut_tore_is_removed_also_if_it_was_mounted_then_and_not_if_it_is_mounted_now() {
    for is_mounted_again in [false, true] {
        let folder = common::folder().unwrap();
        let disk = Arc::new(FaultyDisk::healthy());
        let store = open_on(&disk, folder.path(), None).unwrap();
        let image = install(&store, "mounted", &[]).unwrap();
        store.record_mount(Path::new("/mnt"), &image, "mounted", "native").unwrap();
        drop(store);
        let mounts: Vec<_> =
            fs::read_dir(folder.path().join("mounts")).unwrap().map(|file| file.unwrap().path()).collect();
        let kept = fs::read(&mounts[0]).unwrap();
        disk.lose_unsynced(folder.path(), Left::Zeros);
        fs::write(&mounts[0], kept).unwrap();
        let rebooted = Arc::new(FaultyDisk::healthy().booted_as("second boot"));
        let store = open_on(&rebooted, folder.path(), None).unwrap();
        if is_mounted_again {
            store.record_mount(Path::new("/mnt"), &image, "mounted", "native").unwrap();
        }
        let checked = store.verify(|_| {}).unwrap();
        let expected = if is_mounted_again { (vec![image], vec![]) } else { (vec![], vec![image]) };
        assert_eq!((checked.damaged_images, checked.torn_images), expected);
    }
}

#[test]
fn damage_of_flushed_content_is_reported_after_a_power_cut_as_well() {
    let folder = common::folder().unwrap();
    let store = open_on(&Arc::new(FaultyDisk::healthy()), folder.path(), None).unwrap();
    let object = put(&store, b"flushed").unwrap();
    let image = install(&store, "flushed", &[object]).unwrap();
    store.maintain().unwrap();
    drop(store);
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    let (hex, image_folder) = (object.hex(), folder.path().join("images").join(image.hex()));
    let object_file = folder.path().join("objects").join(&hex[..2]).join(&hex[2..]);
    for path in [&object_file, &image_folder.join("chunks")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(path, b"spoiled").unwrap();
    }
    for path in [&object_file, &image_folder] {
        fs::File::open(path).unwrap().set_modified(long_ago).unwrap();
    }
    let rebooted = open_on(&Arc::new(FaultyDisk::healthy().booted_as("second")), folder.path(), None).unwrap();
    let checked = rebooted.verify(|_| {}).unwrap();
    assert_eq!((checked.corrupt, checked.damaged_images), (vec![object], vec![image]));
    assert_eq!((checked.torn_objects, checked.torn_images), (vec![], vec![]));
}

#[test]
fn stored_objects_are_trusted_without_hashing_after_a_kill_and_not_after_a_power_cut() {
    let folder = common::folder().unwrap();
    let first = Arc::new(FaultyDisk::healthy());
    let store = open_on(&first, folder.path(), None).unwrap();
    let object = put(&store, &content(1, LARGE)).unwrap();
    drop(store);
    assert!(open_on(&Arc::new(FaultyDisk::healthy()), folder.path(), None).unwrap().is_settled());
    let rebooted = open_on(&Arc::new(FaultyDisk::healthy().booted_as("second")), folder.path(), None).unwrap();
    assert!(!rebooted.is_settled());
    assert_eq!(rebooted.settle(|_| {}).unwrap().hashed.objects, 1);
    assert_eq!(get(&rebooted, &object), Some(content(1, LARGE)));
    rebooted.stop_clean().unwrap();
    drop(rebooted);
    let third = open_on(&Arc::new(FaultyDisk::healthy().booted_as("third")), folder.path(), None).unwrap();
    assert!(third.is_settled(), "a clean stop leaves nothing to check");
}

#[test]
fn a_store_is_not_marked_clean_while_another_process_stores_things() {
    let folder = common::folder().unwrap();
    let disk = Arc::new(FaultyDisk::healthy());
    let (one, other) = (open_on(&disk, folder.path(), None).unwrap(), open_on(&disk, folder.path(), None).unwrap());
    put(&one, b"one").unwrap();
    put(&other, b"other").unwrap();
    one.stop_clean().unwrap();
    assert!(!folder.path().join("clean").exists());
    other.stop_clean().unwrap();
    assert!(folder.path().join("clean").exists());
    put(&one, b"more").unwrap();
    assert!(!folder.path().join("clean").exists());
}

/// Runs `work` on the store in `folder`, killed before a rename to a path with this part.
fn kill_before_rename(folder: &Path, part: &str, work: impl Fn(&Store)) {
    drop(open_on(&Arc::new(FaultyDisk::healthy()), folder, None).unwrap());
    let sound = Arc::new(FaultyDisk::healthy());
    work(&open_on(&sound, folder, None).unwrap());
    let log = sound.log();
    let is_change = |call: &&String| !call.starts_with("read") && !call.starts_with("look");
    let at = log.iter().filter(is_change).position(|call| call.starts_with("rename") && call.contains(part)).unwrap();
    let disk = FaultyDisk::new(u64::try_from(at + 1).unwrap(), Fault::Stop);
    work(&open_on(&Arc::new(disk), folder, None).unwrap());
}

#[test]
fn a_record_whose_writer_was_killed_before_it_was_complete_is_no_record() {
    let folder = common::folder().unwrap();
    let image = Digest::of(b"image");
    kill_before_rename(folder.path(), "/refs/", |store| drop(store.set_reference("name", "linux/amd64", &image)));
    kill_before_rename(folder.path(), "/mounts/", |store| {
        drop(store.record_mount(Path::new("/mnt"), &image, "name", "native"));
    });
    assert_eq!(temporary_files(folder.path()).len(), 2);
    let store = open_on(&Arc::new(FaultyDisk::healthy()), folder.path(), None).unwrap();
    assert_eq!((store.references().unwrap().len(), store.mounts().unwrap().len()), (1, 1), "of the runs before");
}

#[test]
fn a_sweep_removes_what_a_killed_change_of_a_record_left_in_it() {
    let folder = common::folder().unwrap();
    let store = open_on(&Arc::new(FaultyDisk::healthy()), folder.path(), None).unwrap();
    let image = install(&store, "image", &[]).unwrap();
    kill_before_rename(folder.path(), "/forms", |store| drop(store.keep_image_forms(&image, b"forms")));
    assert_eq!(temporary_files(folder.path()).len(), 1);
    assert_eq!(store.sweep().unwrap().temporary, 1);
    assert_eq!(temporary_files(folder.path()), Vec::<String>::new());
    assert!(store.load_image(&image).unwrap().is_some());
}

#[test]
fn a_reference_that_a_power_cut_tore_is_removed() {
    let folder = common::folder().unwrap();
    let disk = Arc::new(FaultyDisk::healthy());
    let store = open_on(&disk, folder.path(), None).unwrap();
    store.set_reference("name", "linux/amd64", &Digest::of(b"image")).unwrap();
    drop(store);
    disk.lose_unsynced(folder.path(), Left::Half);
    let store = open_on(&Arc::new(FaultyDisk::healthy().booted_as("second boot")), folder.path(), None).unwrap();
    assert_eq!(store.reference("name", "linux/amd64").unwrap(), None);
    store.sweep().unwrap();
    assert_eq!(fs::read_dir(folder.path().join("refs")).unwrap().count(), 0);
}

#[test]
fn the_size_of_the_store_is_counted_again_after_a_power_cut() {
    let folder = common::folder().unwrap();
    let disk = Arc::new(FaultyDisk::healthy());
    let store = open_on(&disk, folder.path(), None).unwrap();
    put(&store, &content(1, LARGE)).unwrap();
    store.maintain().unwrap();
    put(&store, &content(2, LARGE)).unwrap();
    store.stop_clean().unwrap();
    put(&store, &content(3, LARGE)).unwrap();
    drop(store);
    fs::write(folder.path().join("usage"), [0; 8]).unwrap();
    let store = open_on(&Arc::new(FaultyDisk::healthy().booted_as("second boot")), folder.path(), None).unwrap();
    assert_eq!(store.estimated_usage(), 0);
    store.settle(|_| {}).unwrap();
    assert_eq!(store.estimated_usage(), store.usage().unwrap().total());
    assert!(store.estimated_usage() > 0);
}
