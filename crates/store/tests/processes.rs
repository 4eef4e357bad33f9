//! Several processes on one store, and a disk that is really full.
//!
//! The processes are this test program again; an environment variable selects their role.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{content, get, install, open, put, put_by_pieces};
use tarpon_blob::{ObjectStore as _, StoreError};
use tarpon_oci::Digest;
use tarpon_store::{Store, StoreConfig};

const ROLE: &str = "TARPON_TEST_ROLE";
const FOLDER: &str = "TARPON_TEST_FOLDER";

fn child(role: &str, folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role_of_a_child", "--nocapture"])
        .envs([(ROLE, role), (FOLDER, folder.to_str().unwrap())])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Not a test by itself: the role of the other processes.
#[test]
fn role_of_a_child() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let store = open(&folder);
    match role.to_str().unwrap() {
        "import" => import(&store),
        "evict" => (0..30).for_each(|_| drop(store.gc().unwrap())),
        "hold" => {
            let _pin = store.pin().unwrap();
            let _lock = store.server_lock().unwrap();
            store.record_mount(Path::new("/mnt"), &Digest::of(b"image"), "image", "").unwrap();
            println!("\nholding");
            std::io::read_to_string(std::io::stdin()).unwrap();
        }
        other => panic!("no role {other}"),
    }
}

/// Stores the same objects as every other importer, and an image of them.
fn import(store: &Store) {
    let _pin = store.pin().unwrap();
    let mut ids = Vec::new();
    for seed in 0..60 {
        let bytes = content(seed, if seed % 3 == 0 { 90_000 } else { 2_000 });
        let stored = if seed % 2 == 0 { put(store, &bytes) } else { put_by_pieces(store, &bytes, 30_000) };
        match stored {
            Ok(id) => ids.push(id),
            // Another process works on this very object: it becomes local, or is fetched again.
            Err(StoreError::Full) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let all_here = ids.iter().all(|id| get(store, id).is_some());
    assert!(all_here, "an object that was stored under a pin was evicted");
    install(store, "image", &ids).unwrap();
}

#[test]
fn importers_and_an_evictor_at_once_lose_and_corrupt_nothing() {
    let folder = common::folder().unwrap();
    drop(open(folder.path()));
    let roles = ["import", "evict", "import", "import"];
    let children: Vec<Child> = roles.iter().map(|role| child(role, folder.path())).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let store = open(folder.path());
    let checked = store.verify(|_| {}).unwrap();
    assert_eq!((checked.corrupt, checked.damaged_images), (vec![], vec![]));
    assert!(checked.hashed.objects > 0);
    let image = store.reference("image", "linux/amd64").unwrap().unwrap().manifest;
    assert!(store.load_image(&image).unwrap().is_some());
    assert_eq!(store.sweep().unwrap().temporary, 0);
}

#[test]
fn locks_of_a_killed_process_are_free_and_its_mounts_are_recorded_as_dead() {
    use std::io::{BufRead as _, BufReader};
    let folder = common::folder().unwrap();
    let store = open(folder.path());
    let mut holder = child("hold", folder.path());
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "holding"));
    assert!(store.server_lock().is_err());
    assert_eq!(store.server().unwrap().pid, holder.id());
    assert!(store.mounts().unwrap()[0].live);
    let pins = || std::fs::read_dir(folder.path().join("pins")).unwrap().count();
    assert_eq!(pins(), 1);

    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(store.server(), None);
    let _lock = store.server_lock().unwrap();
    store.sweep().unwrap();
    let dead = store.mounts().unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!(pins(), 0);
    store.forget_mount(&dead[0].record.mountpoint).unwrap();
    assert!(store.mounts().unwrap().is_empty());
}

#[test]
fn the_next_server_finds_mounts_of_a_server_that_still_runs() {
    let folder = common::folder().unwrap();
    let store = open(folder.path());
    let before = store.server_lock().unwrap();
    store.record_mount(std::path::Path::new("/mnt"), &Digest::of(b"m"), "image", "{}").unwrap();
    drop(before);
    let _now = store.server_lock().unwrap();
    store.sweep().unwrap();
    let left = store.mounts().unwrap();
    assert!(left.len() == 1 && left[0].live);
}

/// A file system of 4 MiB, for root; `None` (and a printed line) for others.
struct SmallDisk(PathBuf, #[expect(dead_code, reason = "removed when dropped")] tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m", "tarpon-test"]).arg(folder.path()).stderr(Stdio::null());
        if !mount.status().is_ok_and(|status| status.success()) {
            println!("skipped: mounting a small file system is not allowed here");
            return None;
        }
        Some(Self(folder.path().to_owned(), folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_disk_that_is_really_full_is_bypassed_and_everything_stored_stays_right() {
    let Some(disk) = SmallDisk::mount() else { return };
    let store =
        Store::open(&disk.0, StoreConfig { budget: Some(1 << 30), free_floor: Some(0), ..StoreConfig::default() });
    let store = store.unwrap();
    let pin = store.pin().unwrap();
    let mut stored = Vec::new();
    let mut refused = 0;
    for seed in 0..120 {
        let bytes = content(seed, if seed % 2 == 0 { 30_000 } else { 90_000 });
        let outcome = if seed % 3 == 0 { put_by_pieces(&store, &bytes, 30_000) } else { put(&store, &bytes) };
        match outcome {
            Ok(id) => stored.push((id, bytes)),
            Err(StoreError::Full) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 0 && stored.len() > 20, "{refused} refused, {} stored", stored.len());
    assert!(install(&store, "image", &[]).is_err());
    assert!(stored.iter().all(|(id, bytes)| get(&store, id).as_ref() == Some(bytes)));
    drop((store, pin));

    let store = Store::open(&disk.0, StoreConfig { free_floor: Some(1 << 20), ..StoreConfig::default() }).unwrap();
    store.sweep().unwrap();
    store.gc().unwrap();
    install(&store, "image", &[]).unwrap();
    assert_eq!(store.verify(|_| {}).unwrap().corrupt, []);
}

/// Each lock of the store is taken, copied as by a fork in another thread, dropped, and taken again.
#[test]
fn a_forked_process_that_has_copies_of_the_descriptors_keeps_no_lock_of_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut copies = Vec::new();
    let mut copy = || copies.extend(tarpon_testkit::descriptors::copies_below(folder.path()).unwrap());

    let server = store.server_lock().unwrap();
    copy();
    drop(server);
    drop(store.server_lock().expect("no server runs"));

    let pin = store.pin().unwrap();
    copy();
    drop(pin);
    store.gc().unwrap();

    let partial = |object| store.partial(&object, &common::LIST, 1 << 20);
    let begun = partial(Digest::of(b"object")).unwrap();
    begun.spool_at(b"bytes", 0).unwrap();
    copy();
    drop(begun);
    let again = partial(Digest::of(b"object")).expect("no process has it open");
    assert!(again.may_hold(0, 5));
    drop(copies);
}
