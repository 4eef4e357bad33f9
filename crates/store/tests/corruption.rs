//! Corrupted files: bits flipped, truncated, exchanged, replaced by old ones.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::slice;

use common::{content, get, install, open, put};
use tarpon_oci::Digest;
use tarpon_store::{DamagedObject, Store, StoreError};

fn path_of(folder: &Path, object: &Digest) -> PathBuf {
    let hex = object.hex();
    folder.join("objects").join(&hex[..2]).join(&hex[2..])
}

type Change = fn(&mut Vec<u8>);

/// Overwrites a file of the store in place, as a bad disk does.
fn damage(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o444)).unwrap();
}

#[test]
fn verify_finds_every_damaged_object_moves_it_out_and_leaves_the_others() {
    let folder = common::folder().unwrap();
    let store = open(folder.path());
    let objects: Vec<Digest> = (0..6).map(|seed| put(&store, &content(seed, 10_000)).unwrap()).collect();
    let path = |at: usize| path_of(folder.path(), &objects[at]);
    damage(&path(0), |bytes| bytes[5000] ^= 1);
    damage(&path(1), |bytes| bytes.truncate(9_999));
    damage(&path(2), |bytes| bytes.push(0));
    let third = fs::read(path(4)).unwrap();
    damage(&path(3), |bytes| *bytes = third);
    let mut seen = 0;
    let mut corrupt = store.verify(|progress| seen = progress.objects).unwrap().corrupt;
    corrupt.sort_unstable();
    let mut expected = objects[..4].to_vec();
    expected.sort_unstable();
    assert_eq!(corrupt, expected);
    assert_eq!(seen, 6);
    assert!(objects[..4].iter().all(|object| get(&store, object).is_none()));
    assert!(objects[4..].iter().all(|object| get(&store, object).is_some()));
    assert_eq!(fs::read_dir(folder.path().join("corrupt")).unwrap().count(), 4);
    put(&store, &content(0, 10_000)).unwrap();
    assert_eq!(store.verify(|_| {}).unwrap().corrupt, []);
}

#[test]
fn a_damaged_file_of_a_record_makes_the_image_absent_and_importing_it_again_mends_it() {
    for part in ["manifest", "config", "tree.erofs", "chunks", "objects", "record.json"] {
        let cases: [(&str, Change); 3] = [
            ("flipped", |bytes| {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 4;
            }),
            ("cut", |bytes| bytes.truncate(bytes.len() - 2)),
            ("emptied", Vec::clear),
        ];
        for (how, change) in cases {
            let folder = common::folder().unwrap();
            let store = open(folder.path());
            let object = put(&store, b"object").unwrap();
            let manifest = install(&store, "image", &[object]).unwrap();
            damage(&folder.path().join("images").join(manifest.hex()).join(part), change);
            // The list of objects is read by eviction only; a mount does not need it.
            assert_eq!(store.load_image(&manifest).unwrap().is_some(), part == "objects", "{part} {how}");
            assert_eq!(store.verify(|_| {}).unwrap().damaged_images, [manifest], "{part} {how}");
            if part != "objects" {
                install(&store, "image", &[object]).unwrap();
                assert!(store.load_image(&manifest).unwrap().is_some(), "{part} {how}");
            }
            store.gc().unwrap();
            assert_eq!(store.verify(|_| {}).unwrap().damaged_images, [], "{part} {how}");
        }
    }
}

#[test]
fn a_record_under_the_name_of_another_image_is_not_believed() {
    let folder = common::folder().unwrap();
    let store = open(folder.path());
    let (one, other) = (install(&store, "one", &[]).unwrap(), install(&store, "other", &[]).unwrap());
    let path = |manifest: &Digest| folder.path().join("images").join(manifest.hex());
    fs::remove_dir_all(path(&one)).unwrap();
    fs::rename(path(&other), path(&one)).unwrap();
    assert!(store.load_image(&one).unwrap().is_none());
    assert!(store.image(&other).unwrap().is_none());
}

#[test]
fn a_mounted_image_that_cannot_tell_its_objects_keeps_everything_from_being_evicted() {
    let folder = common::folder().unwrap();
    let store = open(folder.path());
    let object = put(&store, b"object").unwrap();
    let manifest = install(&store, "image", &[object]).unwrap();
    store.record_mount(Path::new("/mnt"), &manifest, "image", "").unwrap();
    damage(&folder.path().join("images").join(manifest.hex()).join("objects"), |bytes| bytes[0] ^= 1);
    store.gc().unwrap();
    assert!(store.contains(&object));
}

#[test]
fn damaged_references_and_mount_records_are_absent() {
    let folder = common::folder().unwrap();
    let store = open(folder.path());
    let manifest = install(&store, "image", &[]).unwrap();
    store.record_mount(Path::new("/mnt"), &manifest, "image", "").unwrap();
    for kind in ["refs", "mounts"] {
        for entry in fs::read_dir(folder.path().join(kind)).unwrap() {
            damage(&entry.unwrap().path(), |bytes| bytes[40] ^= 1);
        }
    }
    assert_eq!(store.reference("image", "linux/amd64").unwrap(), None);
    assert_eq!(store.mounts().unwrap(), []);
    store.sweep().unwrap();
    assert_eq!(fs::read_dir(folder.path().join("mounts")).unwrap().count(), 0);
}

#[test]
fn a_damaged_state_file_means_that_everything_is_checked_again() {
    let folder = common::folder().unwrap();
    let store = open(folder.path());
    let (sound, bad) = (put(&store, b"sound").unwrap(), put(&store, b"bad").unwrap());
    damage(&path_of(folder.path(), &bad), |bytes| bytes[0] ^= 1);
    store.stop_clean().unwrap();
    damage(&folder.path().join("state"), |bytes| bytes[30] ^= 1);
    fs::remove_file(folder.path().join("clean")).unwrap();
    let store = open(folder.path());
    assert!(!store.is_settled());
    assert!(get(&store, &sound).is_some() && get(&store, &bad).is_none());
}

/// A store, and an object of these bytes that was found to be damaged in one byte.
fn with_damaged(right: &[u8]) -> (tempfile::TempDir, Store, DamagedObject) {
    let folder = common::folder().unwrap();
    let store = open(folder.path());
    let object = put(&store, right).unwrap();
    damage(&path_of(folder.path(), &object), |bytes| bytes[1000] ^= 1);
    assert_eq!(store.verify(|_| {}).unwrap().corrupt, [object]);
    let damaged = store.damaged_objects().unwrap().remove(0);
    (folder, store, damaged)
}

#[test]
fn a_damaged_file_counts_as_mended_only_when_all_of_it_matches() {
    let right = content(1, 3000);
    let (_folder, store, damaged) = with_damaged(&right);
    let file = store.mend(&damaged).unwrap().unwrap();
    for (bytes, size) in [(&b"wrong"[..], 3000), (&right, 2999), (&right, 3001)] {
        file.write_at(bytes, 0).unwrap();
        assert!(matches!(file.finish(size), Err(StoreError::Corrupt(object)) if object == damaged.object));
        assert_eq!(store.damaged_objects().unwrap(), slice::from_ref(&damaged));
    }
    file.write_at(&right, 0).unwrap();
    file.finish(3000).unwrap();
    assert_eq!(file.digest().unwrap(), damaged.object);
    assert_eq!(store.damaged_objects().unwrap(), []);
    assert!(store.mend(&damaged).unwrap().is_none(), "it has no name any more");
}

#[test]
fn a_damaged_file_is_compared_to_its_end_and_can_be_left_as_it_is() {
    let right = content(1, 3000);
    let mut wrong = right.clone();
    wrong[1000] ^= 1;
    let (folder, store, damaged) = with_damaged(&right);
    let file = store.mend(&damaged).unwrap().unwrap();
    let beside = folder.path().join("beside");
    let longer = [&wrong[..], b"x"].concat();
    for (other, same) in [(&wrong[..], true), (&right, false), (&wrong[..2999], false), (&longer, false)] {
        fs::write(&beside, other).unwrap();
        assert_eq!(file.is_same_as(&fs::File::open(&beside).unwrap()).unwrap(), same);
    }
    let is_protected = || {
        let entry = fs::read_dir(folder.path().join("corrupt")).unwrap().next().unwrap().unwrap();
        entry.metadata().unwrap().permissions().readonly()
    };
    assert!(!is_protected());
    file.keep().unwrap();
    assert!(is_protected());
    assert_eq!(store.damaged_objects().unwrap(), [damaged]);
    file.leave().unwrap();
    assert_eq!(store.damaged_objects().unwrap(), []);
    assert_eq!(file.digest().unwrap(), Digest::of(&wrong));
}

#[test]
fn foreign_files_are_left_unchanged() {
    let folder = common::folder().unwrap();
    let store = open(folder.path());
    put(&store, b"object").unwrap();
    for name in ["objects/README", "objects/00", "images/notes", "partial/zz", "pins/.keep"] {
        let path = folder.path().join(name);
        if !path.exists() {
            fs::write(path, "not ours").unwrap();
        }
    }
    store.usage().unwrap();
    store.gc().unwrap();
    store.verify(|_| {}).unwrap();
    assert!(folder.path().join("objects/README").exists() && folder.path().join("images/notes").exists());
}

#[test]
fn seeds_of_the_record_parser_keep_its_invariants() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/fuzz/record_json");
    let mut seeds = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let seed = fs::read(entry.unwrap().path()).unwrap();
        tarpon_testkit::fuzz::record_json(&seed);
        (0..seed.len().min(300)).for_each(|end| tarpon_testkit::fuzz::record_json(&seed[..end]));
        seeds += 1;
    }
    assert!(seeds >= 10, "{seeds} seeds");
}
