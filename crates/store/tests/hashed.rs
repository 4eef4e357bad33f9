//! Nothing that changed, or that an earlier boot left, is trusted before it is hashed, and nothing is hashed twice.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{content, get, install, put, put_by_pieces};
use tarpon_oci::Digest;
use tarpon_store::{Checked, ImageState, Isolation, Store, StoreConfig};
use tarpon_testkit::storage::{FaultyDisk, Ticks};

fn path_of(folder: &Path, object: &Digest) -> PathBuf {
    let hex = object.hex();
    folder.join("objects").join(&hex[..2]).join(&hex[2..])
}

/// Overwrites a file in place and resets its modification time, as far as possible.
fn damage(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let before = fs::metadata(path).unwrap();
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(path, bytes).unwrap();
    fs::File::options().write(true).open(path).unwrap().set_modified(before.modified().unwrap()).unwrap();
    fs::set_permissions(path, before.permissions()).unwrap();
}

struct Boot {
    disk: Arc<FaultyDisk>,
    store: Store,
}

impl Boot {
    fn new(folder: &Path, id: &str) -> Self {
        Self::on(FaultyDisk::healthy(), folder, id, StoreConfig::default())
    }

    /// A disk of a kernel that gives changes the time of its last tick.
    fn with_ticks(folder: &Path, id: &str, ticks: &Arc<Ticks>) -> Self {
        let config = StoreConfig { clock: ticks.clone(), ..StoreConfig::default() };
        Self::on(FaultyDisk::healthy().with_ticks(ticks.clone()), folder, id, config)
    }

    fn on(disk: FaultyDisk, folder: &Path, id: &str, config: StoreConfig) -> Self {
        let disk = Arc::new(disk.booted_as(id));
        let storage: Arc<FaultyDisk> = Arc::clone(&disk);
        let store = Store::open(folder, StoreConfig { storage, free_floor: Some(0), ..config }).unwrap();
        Self { disk, store }
    }

    /// Number of reads from files during `what`.
    fn reads(&self, what: impl FnOnce(&Store)) -> usize {
        let reads = || self.disk.log().iter().filter(|line| line.starts_with("read ")).count();
        let before = reads();
        what(&self.store);
        reads() - before
    }

    /// Whether `what` reads objects to hash them.
    fn hashes(&self, what: impl FnOnce(&Store)) -> bool {
        self.reads(what) > 0
    }

    fn opens(&self, object: &Digest) -> bool {
        tarpon_blob::ObjectStore::open(&self.store, object).unwrap().is_some()
    }
}

type Damage = fn(&Path, &Path);

const DAMAGES: [(&str, Damage); 6] = [
    ("flipped", |path, _| damage(path, |bytes| bytes[5_000] ^= 1)),
    ("cut", |path, _| damage(path, |bytes| bytes.truncate(9_000))),
    ("extended", |path, _| damage(path, |bytes| bytes.push(0))),
    ("zeroed", |path, _| damage(path, |bytes| bytes.fill(0))),
    ("emptied", |path, _| damage(path, Vec::clear)),
    ("swapped", |path, other| {
        let beside = path.with_extension("beside");
        fs::rename(path, &beside).unwrap();
        fs::rename(other, path).unwrap();
        fs::rename(&beside, other).unwrap();
    }),
];

#[test]
fn an_object_that_changed_since_it_was_stored_is_never_opened_in_the_same_boot() {
    for (how, change) in DAMAGES {
        for same_process in [true, false] {
            let folder = common::folder().unwrap();
            let boot = Boot::new(folder.path(), "boot");
            let bad = put(&boot.store, &content(1, 10_000)).unwrap();
            let other = put_by_pieces(&boot.store, &content(2, 10_000), 4_000).unwrap();
            let good = put(&boot.store, &content(3, 80_000)).unwrap();
            change(&path_of(folder.path(), &bad), &path_of(folder.path(), &other));
            let boot = if same_process { boot } else { Boot::new(folder.path(), "boot") };
            assert_eq!(get(&boot.store, &bad), None, "{how}");
            assert_eq!(get(&boot.store, &other).is_none(), how == "swapped", "{how}");
            assert_eq!(get(&boot.store, &good), Some(content(3, 80_000)), "{how}");
            assert!(!boot.store.contains(&bad), "{how}: the kernel would read it");
            put(&boot.store, &content(1, 10_000)).unwrap();
            assert_eq!(get(&boot.store, &bad), Some(content(1, 10_000)), "{how}: stored again");
        }
    }
}

#[test]
fn a_change_within_the_tick_in_which_a_file_was_hashed_is_noticed() {
    let (folder, ticks) = (common::folder().unwrap(), Arc::new(Ticks::default()));
    let boot = Boot::with_ticks(folder.path(), "first", &ticks);
    let object = put(&boot.store, &content(1, 10_000)).unwrap();
    let path = path_of(folder.path(), &object);
    drop(boot);
    let boot = Boot::with_ticks(folder.path(), "second", &ticks);
    ticks.tick();
    // Another process changes the file's metadata in this tick, and its content after it was hashed.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    assert!(boot.hashes(|_| assert!(boot.opens(&object))));
    damage(&path, |bytes| bytes[0] ^= 1);
    assert!(get(&boot.store, &object).is_none());
    put(&boot.store, &content(1, 10_000)).unwrap();
    drop(boot);
    let boot = Boot::with_ticks(folder.path(), "third", &ticks);
    assert!(boot.hashes(|_| assert!(boot.opens(&object))));
    assert!(boot.hashes(|_| assert!(boot.opens(&object))), "it is not known yet");
    ticks.tick();
    assert!(boot.hashes(|_| assert!(boot.opens(&object))));
    assert!(!boot.hashes(|_| assert!(boot.opens(&object))), "it is known from now on");
}

#[test]
fn a_write_within_the_tick_in_which_an_object_was_stored_is_noticed() {
    let (folder, ticks) = (common::folder().unwrap(), Arc::new(Ticks::default()));
    let boot = Boot::with_ticks(folder.path(), "boot", &ticks);
    let objects = [
        put(&boot.store, &content(1, 10_000)).unwrap(),
        put(&boot.store, &content(2, 200_000)).unwrap(),
        put_by_pieces(&boot.store, &content(3, 10_000), 4_000).unwrap(),
        put_by_pieces(&boot.store, &content(4, 200_000), 30_000).unwrap(),
    ];
    assert!(!boot.hashes(|_| objects.iter().for_each(|object| assert!(boot.opens(object)))));
    for object in &objects {
        let path = path_of(folder.path(), object);
        let mut bytes = fs::read(&path).unwrap();
        bytes[5_000] ^= 1;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, bytes).unwrap();
        assert!(get(&boot.store, object).is_none());
    }
}

#[test]
fn a_damaged_object_that_is_stored_again_is_replaced() {
    let folder = common::folder().unwrap();
    let boot = Boot::new(folder.path(), "boot");
    let objects = [content(1, 10_000), content(2, 80_000)];
    for bytes in &objects {
        let object = put(&boot.store, bytes).unwrap();
        damage(&path_of(folder.path(), &object), |bytes| bytes[0] ^= 1);
        put(&boot.store, bytes).unwrap();
        assert_eq!(fs::read(path_of(folder.path(), &object)).unwrap(), *bytes);
    }
}

#[test]
fn an_object_is_hashed_once_in_each_boot_whatever_process_uses_it() {
    let folder = common::folder().unwrap();
    let boot = Boot::new(folder.path(), "first");
    let objects: Vec<_> = (1..4)
        .map(|seed| match seed {
            1 => put(&boot.store, &content(seed, 100)).unwrap(),
            2 => put(&boot.store, &content(seed, 80_000)).unwrap(),
            _ => put_by_pieces(&boot.store, &content(seed, 80_000), 30_000).unwrap(),
        })
        .collect();
    let open_all = |boot: &Boot| objects.iter().for_each(|object| assert!(boot.opens(object)));
    assert!(!boot.hashes(|_| open_all(&boot)), "what was just stored was hashed as it came");
    put(&boot.store, &content(2, 80_000)).unwrap();
    assert!(!boot.hashes(|_| open_all(&boot)), "an import that relies on an object changes its time alone");
    boot.store.stop_clean().unwrap();
    drop(boot);
    let again = Boot::new(folder.path(), "first");
    assert_eq!(again.reads(|_| open_all(&again)), 2, "the list of what was hashed, to its end");
    assert!(!again.hashes(|_| open_all(&again)));
    drop(again);
    let second = Boot::new(folder.path(), "second");
    assert!(second.store.is_settled(), "it was left in order");
    assert!(second.hashes(|_| open_all(&second)), "and is hashed all the same");
    assert!(!second.hashes(|_| open_all(&second)), "once");
    second.store.sweep().unwrap();
    let lists = fs::read_dir(folder.path().join("run")).unwrap();
    let names: Vec<_> = lists.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    for prefix in ["hashed-", "records-"] {
        let count = names.iter().filter(|name| name.starts_with(prefix)).count();
        assert!(count <= 1, "that of the earlier boot is removed: {names:?}");
    }
}

#[test]
fn an_object_of_an_earlier_boot_is_named_without_being_read() {
    use tarpon_blob::{ObjectStore as _, Opened};
    let folder = common::folder().unwrap();
    let boot = Boot::new(folder.path(), "first");
    let object = put(&boot.store, &content(1, 10_000)).unwrap();
    assert!(matches!(boot.store.open_checked(&object).unwrap(), Opened::Sound(_)));
    drop(boot);
    let second = Boot::new(folder.path(), "second");
    let reads =
        second.reads(|store| assert!(matches!(store.open_checked(&object).unwrap(), Opened::Unchecked(10_000))));
    assert_eq!(reads, 0);
    assert!(second.opens(&object));
    assert!(matches!(second.store.open_checked(&object).unwrap(), Opened::Sound(_)));
    assert!(matches!(second.store.open_checked(&Digest::of(b"other")).unwrap(), Opened::Absent));
}

#[test]
fn an_image_is_checked_in_parallel_and_damaged_objects_are_moved_out() {
    let folder = common::folder().unwrap();
    let boot = Boot::new(folder.path(), "first");
    let objects: Vec<Digest> = (0..700).map(|seed| put(&boot.store, &content(seed, 200)).unwrap()).collect();
    let mut listed = objects.clone();
    listed.push(Digest::of(b"not here yet"));
    let manifest = install(&boot.store, "image", &listed).unwrap();
    assert!(!boot.store.knows_image(&manifest));
    assert_eq!(boot.store.check_image(&manifest, &|_| {}).unwrap().hashed.objects, 0);
    assert!(boot.store.knows_image(&manifest));
    for object in &objects[..60] {
        damage(&path_of(folder.path(), object), |bytes| bytes[7] ^= 1);
    }
    let mut checked = boot.store.check_image(&manifest, &|_| {}).unwrap();
    checked.corrupt.sort_unstable();
    let mut damaged = objects[..60].to_vec();
    damaged.sort_unstable();
    assert_eq!((checked.corrupt, checked.hashed.objects), (damaged, 60));
    drop(boot);
    let second = Boot::new(folder.path(), "second");
    assert!(!second.store.knows_image(&manifest));
    let (calls, most) = (AtomicU64::new(0), AtomicU64::new(0));
    let checked = second.store.check_image(&manifest, &|progress| {
        calls.fetch_add(1, Ordering::Relaxed);
        most.fetch_max(progress.objects, Ordering::Relaxed);
    });
    let checked = checked.unwrap();
    assert_eq!((checked.hashed.objects, checked.corrupt), (640, Vec::new()));
    assert_eq!((calls.into_inner(), most.into_inner()), (640, 640));
    assert_eq!(second.store.check_image(&manifest, &|_| {}).unwrap().hashed.objects, 0);
}

#[test]
fn an_image_is_loaded_without_being_hashed_again_until_a_file_of_it_changes() {
    let folder = common::folder().unwrap();
    let boot = Boot::new(folder.path(), "first");
    let manifest = install(&boot.store, "image", &[]).unwrap();
    let tree = folder.path().join("images").join(manifest.hex()).join("tree.erofs");
    let loads = |boot: &Boot| boot.store.load_image(&manifest).unwrap().is_some();
    let small = boot.reads(|_| assert!(loads(&boot)));
    drop(boot);

    let second = Boot::new(folder.path(), "second");
    let hashed = second.reads(|_| assert!(loads(&second)));
    assert!(hashed > small, "the first use after a boot hashes: {hashed} reads, then {small}");
    assert_eq!(second.reads(|_| assert!(loads(&second))), small, "the next one does not");
    let other = Boot::new(folder.path(), "second");
    assert!(other.reads(|_| assert!(loads(&other))) == small + 2, "another process reads the list, to its end");
    damage(&tree, |bytes| bytes[0] ^= 1);
    assert!(!loads(&second) && !loads(&other), "a change is noticed");
}

#[test]
fn a_record_that_verify_finds_damaged_is_not_loaded_although_its_file_seems_unchanged() {
    let folder = common::folder().unwrap();
    let ticks = Arc::new(Ticks::default());
    let boot = Boot::with_ticks(folder.path(), "first", &ticks);
    let manifest = install(&boot.store, "image", &[]).unwrap();
    let tree = folder.path().join("images").join(manifest.hex()).join("tree.erofs");
    damage(&tree, |bytes| bytes[0] ^= 1);
    assert!(boot.store.load_image(&manifest).unwrap().is_some(), "its times are as they were");
    assert_eq!(boot.store.verify(|_| {}).unwrap().damaged_images, [manifest]);
    assert!(boot.store.load_image(&manifest).unwrap().is_none());
    assert!(matches!(boot.store.image_state(&manifest).unwrap(), ImageState::Damaged { .. }));
}

#[test]
fn a_check_of_one_tenants_image_does_not_count_for_another_tenants_image() {
    let folder = common::folder().unwrap();
    let boot = Boot::new(folder.path(), "first");
    boot.store.set_isolation(Isolation::Tenant).unwrap();
    let [one, other] = ["one", "other"].map(|name| boot.store.tenant(name).unwrap());
    let manifest = install(&one, "image", &[]).unwrap();
    install(&other, "image", &[]).unwrap();
    one.check_image(&manifest, &|_| {}).unwrap();
    assert!(one.knows_image(&manifest) && !other.knows_image(&manifest));
}

#[test]
fn an_image_with_a_damaged_list_of_objects_is_reported_and_does_not_count_as_checked() {
    let folder = common::folder().unwrap();
    let boot = Boot::new(folder.path(), "boot");
    let object = put(&boot.store, &content(1, 200)).unwrap();
    let manifest = install(&boot.store, "image", &[object]).unwrap();
    damage(&path_of(folder.path(), &object), |bytes| bytes[7] ^= 1);
    let list = folder.path().join("images").join(manifest.hex()).join("objects");
    let changes: [fn(&Path); 3] = [
        |list| damage(list, |bytes| bytes[0] ^= 1),
        |list| damage(list, Vec::clear),
        |list| fs::remove_file(list).unwrap(),
    ];
    for change in changes {
        change(&list);
        let checked = boot.store.check_image(&manifest, &|_| {}).unwrap();
        assert_eq!(checked, Checked { damaged_images: vec![manifest], ..Checked::default() });
        assert!(!boot.store.knows_image(&manifest));
    }
}

#[test]
fn a_list_of_hashed_files_that_is_damaged_costs_hashing_and_nothing_else() {
    let folder = common::folder().unwrap();
    let boot = Boot::new(folder.path(), "boot");
    let object = put(&boot.store, &content(1, 10_000)).unwrap();
    drop(boot);
    let run = folder.path().join("run");
    let list = fs::read_dir(&run).unwrap().map(|entry| entry.unwrap().path());
    let list =
        list.into_iter().find(|path| path.file_name().unwrap().to_string_lossy().starts_with("hashed-")).unwrap();
    let cases: [fn(&mut Vec<u8>); 3] = [|bytes| bytes[0] ^= 1, |bytes| bytes.truncate(5), Vec::clear];
    for change in cases {
        damage(&list, change);
        let boot = Boot::new(folder.path(), "boot");
        assert!(boot.opens(&object) && !boot.hashes(|_| assert!(boot.opens(&object))));
        drop(boot);
        let next = Boot::new(folder.path(), "boot");
        assert_eq!(next.reads(|_| assert!(next.opens(&object))), 2, "it is known again");
    }
}

#[test]
fn every_damaged_file_of_a_record_is_named_and_storing_the_image_again_replaces_it() {
    for name in ["manifest", "config", "tree.erofs", "chunks", "objects", "record.json"] {
        for (how, change) in DAMAGES.iter().take(5) {
            let folder = common::folder().unwrap();
            let boot = Boot::new(folder.path(), "boot");
            let objects: Vec<Digest> = (0..400_u32).map(|seed| Digest::of(&seed.to_le_bytes())).collect();
            let manifest = install(&boot.store, "image", &objects).unwrap();
            let state = || boot.store.image_state(&manifest).unwrap();
            assert!(matches!(state(), ImageState::Sound(_)));
            let part_reads = boot.reads(|_| assert!(matches!(state(), ImageState::Sound(_))));
            assert_eq!(part_reads, 2, "the record, to its end; all else was hashed");
            let path = folder.path().join("images").join(manifest.hex()).join(name);
            match fs::metadata(&path).unwrap().len() {
                10_000.. => change(&path, &path),
                _ if *how == "emptied" => change(&path, &path),
                _ => damage(&path, |bytes| bytes[0] ^= 1),
            }
            let damaged = ImageState::Damaged { usable: None, files: vec![name] };
            assert_eq!(state(), damaged, "{name} {how}");
            fs::remove_file(&path).unwrap();
            assert_eq!(state(), damaged, "{name} removed");
            install(&boot.store, "image", &objects).unwrap();
            assert!(matches!(state(), ImageState::Sound(_)), "{name} {how}, stored again");
        }
    }
}

#[test]
fn an_image_that_is_not_here_is_absent() {
    let folder = common::folder().unwrap();
    let boot = Boot::new(folder.path(), "boot");
    assert_eq!(boot.store.image_state(&Digest::of(b"other")).unwrap(), ImageState::Absent);
}
