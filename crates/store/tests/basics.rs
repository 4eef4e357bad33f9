//! Behavior of a store without failures.

mod common;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use common::{LIST, content, get, install, open, put, put_by_pieces, verified};
use tarpon_blob::{ObjectStore as _, StoreError};
use tarpon_oci::Digest;
use tarpon_store::{LockError, OpenError, Store, StoreConfig};

#[test]
fn what_was_published_is_opened_by_its_digest_also_by_another_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for size in [0, 1, 4096, 64 << 10, (64 << 10) + 1, 3 << 20] {
        let bytes = content(size, usize::try_from(size).unwrap());
        let digest = put(&store, &bytes).unwrap();
        assert_eq!(get(&store, &digest).as_ref(), Some(&bytes), "{size}");
        assert_eq!(get(&open(folder.path()), &digest), Some(bytes), "{size}");
    }
    assert_eq!(get(&store, &Digest::of(b"absent")), None);
}

#[test]
fn an_object_is_a_read_only_file_under_the_name_of_its_digest() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let digest = put(&store, b"tarpon").unwrap();
    let path = store.objects_folder().join(&digest.hex()[..2]).join(&digest.hex()[2..]);
    let metadata = fs::metadata(path).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o444);
    assert_eq!(fs::metadata(store.objects_folder()).unwrap().permissions().mode() & 0o7777, 0o700);
}

#[test]
fn publishing_twice_keeps_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let first = put(&store, &content(7, 100_000)).unwrap();
    let file = store.open(&first).unwrap().unwrap();
    assert_eq!(put(&store, &content(7, 100_000)).unwrap(), first);
    let inode = |file: &fs::File| std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
    assert_eq!(inode(&file), inode(&store.open(&first).unwrap().unwrap()));
    assert_eq!(store.usage().unwrap().objects, 1);
    assert_eq!(store.estimated_usage(), store.usage().unwrap().total());
}

#[test]
fn a_writer_that_is_dropped_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut writer = store.writer(0).unwrap();
    writer.write_all(&content(1, 1 << 20)).unwrap();
    drop(writer);
    assert_eq!(store.usage().unwrap().total(), 0);
    assert_eq!(store.estimated_usage(), 0);
    assert_eq!(store.sweep().unwrap().temporary, 0);
}

#[test]
fn pieces_in_any_order_make_an_object() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for size in [10, 64 << 10, 300_000] {
        let bytes = content(3, size);
        let digest = put_by_pieces(&store, &bytes, 7_000).unwrap();
        assert_eq!(get(&store, &digest), Some(bytes));
    }
    let usage = store.usage().unwrap();
    assert_eq!((usage.objects, usage.partials), (3, 0));
    assert_eq!(store.estimated_usage(), usage.total());
}

#[test]
fn a_partial_object_is_shared_reads_zeros_where_nothing_was_written_and_knows_where() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for size in [1 << 16, 1 << 20] {
        let digest = Digest::of(&content(size, 8));
        let partial = store.partial(&digest, &LIST, size).unwrap();
        assert!(!partial.may_hold(0, size));
        store.partial(&digest, &LIST, size).unwrap().write_at(&verified(b"tarpon"), 8192).unwrap();
        assert!(partial.may_hold(8190, 3) && !partial.may_hold(0, 8192) && !partial.may_hold(8198, size));
        let mut buffer = [1; 10];
        partial.read_at(&mut buffer, 8190).unwrap();
        assert_eq!(&buffer, b"\0\0tarpon\0\0");
        partial.spool_at(b"spooled", 100).unwrap();
        partial.read_at(&mut buffer, 98).unwrap();
        assert_eq!(&buffer, b"\0\0spooled\0");
        assert!(partial.spool_at(b"xx", size - 1).is_err(), "beyond the end");
        assert!(partial.write_at(&verified(b"xx"), size - 1).is_err(), "beyond the end");
        assert!(partial.read_at(&mut buffer, u64::MAX).is_err());
    }
}

#[test]
fn what_a_partial_object_held_may_be_held_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = content(5, 1 << 20);
    let digest = Digest::of(&bytes);
    let store = open(folder.path());
    store.partial(&digest, &LIST, 1 << 20).unwrap().write_at(&verified(&bytes[..65536]), 0).unwrap();
    drop(store);
    let store = open(folder.path());
    let partial = store.partial(&digest, &LIST, 1 << 20).unwrap();
    assert!(partial.may_hold(0, 65536));
    assert!(!partial.may_hold(512 << 10, 4096), "a hole is certain");
    partial.write_at(&verified(&bytes[65536..]), 65536).unwrap();
    partial.publish().unwrap();
    assert_eq!(get(&store, &digest), Some(bytes));
}

#[test]
fn a_part_of_a_small_object_lasts_longer_than_the_process_if_it_is_to() {
    let bytes = content(6, 40_000);
    let digest = Digest::of(&bytes);
    for lasts in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let partial = store.partial(&digest, &LIST, 40_000).unwrap();
        partial.write_at(&verified(&bytes[10_000..20_000]), 10_000).unwrap();
        if lasts {
            partial.persist().unwrap();
        }
        drop((partial, store));
        let store = open(folder.path());
        let partial = store.partial(&digest, &LIST, 40_000).unwrap();
        assert_eq!(partial.may_hold(12_288, 4096), lasts);
        partial.write_at(&verified(&bytes[..10_000]), 0).unwrap();
        partial.write_at(&verified(&bytes[20_000..]), 20_000).unwrap();
        assert_eq!(partial.publish().is_ok(), lasts, "the part in the middle");
        assert_eq!(get(&store, &digest), lasts.then(|| bytes.clone()));
        drop(partial);
        assert_eq!(store.usage().unwrap().partials, 0);
    }
}

#[test]
fn a_partial_object_that_was_never_written_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    drop(store.partial(&Digest::of(b"never"), &LIST, 1 << 20).unwrap());
    assert_eq!(store.usage().unwrap().partials, 0);
}

#[test]
fn an_object_that_does_not_match_its_name_is_discarded() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for size in [1000_u64, 1 << 20] {
        let digest = Digest::of(&size.to_le_bytes());
        let partial = store.partial(&digest, &LIST, size).unwrap();
        partial.write_at(&verified(b"wrong"), 0).unwrap();
        assert!(matches!(partial.publish(), Err(StoreError::Corrupt(corrupt)) if corrupt == digest));
        assert!(!partial.may_hold(0, size));
        assert_eq!(get(&store, &digest), None);
    }
    assert_eq!(store.estimated_usage(), 0);
}

#[test]
fn a_partial_object_locked_by_another_process_is_bypassed() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (open(folder.path()), open(folder.path()));
    let digest = Digest::of(b"shared");
    let held = one.partial(&digest, &LIST, 1 << 20).unwrap();
    assert!(matches!(other.partial(&digest, &LIST, 1 << 20), Err(StoreError::Full)));
    drop(held);
    assert!(other.partial(&digest, &LIST, 1 << 20).is_ok());
}

#[test]
fn partial_objects_of_different_chunk_lists_share_no_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for size in [1 << 16, 1 << 20] {
        let bytes = content(size, usize::try_from(size).unwrap());
        let digest = Digest::of(&bytes);
        let (good, evil) = (Digest::of(b"good"), Digest::of(b"evil"));
        let partial = store.partial(&digest, &good, size).unwrap();
        partial.write_at(&verified(&bytes[..5000]), 0).unwrap();
        let other = store.partial(&digest, &evil, size).unwrap();
        assert!(!other.may_hold(0, size));
        other.spool_at(&vec![0xee; bytes.len()], 0).unwrap();
        assert!(matches!(other.publish(), Err(StoreError::Corrupt(_))));
        partial.write_at(&verified(&bytes[5000..]), 5000).unwrap();
        partial.publish().unwrap();
        assert_eq!(get(&store, &digest), Some(bytes));
    }
}

#[test]
fn partial_objects_of_all_lists_are_counted_and_removed_when_unreferenced() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let object = Digest::of(b"object");
    for list in [b"one", b"two"] {
        store.partial(&object, &Digest::of(list), 1 << 20).unwrap().write_at(&verified(b"tarpon"), 0).unwrap();
    }
    install(&store, "image", &[object]).unwrap();
    store.gc().unwrap();
    assert_eq!(store.usage().unwrap().partials, 2, "they belong to an object of an image");
    store.clear().unwrap();
    assert_eq!(store.usage().unwrap().partials, 0);
}

#[test]
fn a_published_object_is_never_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let bytes = content(9, 200_000);
    let digest = Digest::of(&bytes);
    let partial = store.partial(&digest, &LIST, 200_000).unwrap();
    partial.write_at(&verified(&bytes), 0).unwrap();
    partial.publish().unwrap();
    partial.write_at(&verified(b"late and wrong"), 0).unwrap();
    partial.publish().unwrap();
    assert_eq!(get(&store, &digest), Some(bytes));
}

#[test]
fn an_image_record_comes_back_whole_and_is_found_by_reference() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let objects = [put(&store, b"a").unwrap(), put(&store, b"b").unwrap()];
    let manifest = install(&store, "docker.io/library/debian:12", &objects).unwrap();
    let store = open(folder.path());
    let found = store.reference("docker.io/library/debian:12", "linux/amd64").unwrap().unwrap();
    assert_eq!(found.manifest, manifest);
    assert_eq!(store.reference("docker.io/library/debian:12", "linux/arm64").unwrap(), None);
    let image = store.load_image(&manifest).unwrap().unwrap();
    assert_eq!(image.manifest.as_ref(), b"manifest of docker.io/library/debian:12");
    assert_eq!(&*image.tree, content(1, 10_000));
    assert_eq!(&*image.chunks, content(2, 5_000));
    assert_eq!(image.record.compressed_size(), 1234);
    assert_eq!(fs::read(&image.tree_path).unwrap(), &*image.tree);
    assert_eq!(store.images().unwrap(), [image.record]);
}

#[test]
fn what_came_to_prepare_an_image_is_added_up_over_all_times() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let prepare = |bytes| {
        let manifest = Digest::of(b"manifest");
        let mut record = tarpon_store::ImageRecord::new(manifest, "one", "linux/amd64", vec![]);
        record.prepared_bytes = bytes;
        let mut staging = store.stage_image(record).unwrap();
        staging.put(tarpon_store::Part::Manifest, b"manifest").unwrap();
        for part in [tarpon_store::Part::Config, tarpon_store::Part::Tree, tarpon_store::Part::Chunks] {
            staging.put(part, b"").unwrap();
        }
        staging.put_objects(vec![]).unwrap();
        let installed = staging.install().unwrap();
        assert_eq!(installed.prepared_bytes, store.image(&manifest).unwrap().unwrap().prepared_bytes);
        installed.prepared_bytes
    };
    assert_eq!([prepare(1000), prepare(0), prepare(20)], [1000, 1000, 1020]);
    let tree = folder.path().join("images").join(Digest::of(b"manifest").hex()).join("tree.erofs");
    fs::write(tree, "damaged").unwrap();
    assert_eq!(prepare(300), 1320, "the record that was damaged says what came before");
}

#[test]
fn installing_an_image_again_adds_the_new_reference_only() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let manifest = install(&store, "one", &[]).unwrap();
    let loaded = store.load_image(&manifest).unwrap().unwrap();
    let record = tarpon_store::ImageRecord::new(manifest, "two", "linux/amd64", vec![]);
    let mut staging = store.stage_image(record).unwrap();
    staging.put(tarpon_store::Part::Manifest, b"manifest of one").unwrap();
    staging.put(tarpon_store::Part::Config, b"{}").unwrap();
    staging.put(tarpon_store::Part::Tree, b"").unwrap();
    staging.put(tarpon_store::Part::Chunks, b"").unwrap();
    staging.put_objects(vec![]).unwrap();
    staging.install().unwrap();
    let again = store.load_image(&manifest).unwrap().unwrap();
    assert_eq!(again.record.references, ["one", "two"]);
    assert_eq!(&*again.tree, &*loaded.tree);
    assert_eq!(fs::read_dir(folder.path().join("images")).unwrap().count(), 1);
}

#[test]
fn a_staged_image_that_is_incomplete_or_dropped_is_not_installed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let record = tarpon_store::ImageRecord::new(Digest::of(b"m"), "one", "linux/amd64", vec![]);
    let mut staging = store.stage_image(record).unwrap();
    staging.put(tarpon_store::Part::Manifest, b"another manifest").unwrap();
    assert!(staging.install().is_err());
    assert_eq!(fs::read_dir(folder.path().join("images")).unwrap().count(), 0);
}

#[test]
fn one_server_per_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let lock = store.server_lock().unwrap();
    let refused = open(folder.path()).server_lock().unwrap_err();
    assert!(matches!(refused, LockError::Held { pid: Some(pid) } if pid == std::process::id()), "{refused}");
    drop(lock);
    assert!(open(folder.path()).server_lock().is_ok());
}

#[test]
fn mounts_are_recorded_until_they_are_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let image = Digest::of(b"image");
    let record = store.record_mount(Path::new("/mnt/a b%"), &image, "debian", "{}").unwrap();
    store.record_mount(Path::new("/mnt/b"), &image, "debian", "{}").unwrap();
    let mounts = open(folder.path()).mounts().unwrap();
    assert_eq!(mounts.len(), 2);
    assert!(mounts[0].live && mounts[0].record == record);
    store.forget_mount(Path::new("/mnt/a b%")).unwrap();
    store.forget_mount(Path::new("/mnt/a b%")).unwrap();
    assert_eq!(store.mounts().unwrap().len(), 1);
}

#[test]
fn a_folder_with_foreign_files_is_not_made_a_store() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("thesis.tex"), "…").unwrap();
    let error = Store::open(folder.path(), StoreConfig::default()).unwrap_err();
    assert!(matches!(&error, OpenError::Foreign { found, .. } if found == "thesis.tex"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "the file and a lock");
}

#[test]
fn a_holder_in_a_user_namespace_is_found_while_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    assert_eq!(store.holder_in_user_namespace(), None);
    let run = store.server_folder().join("userns");
    std::fs::create_dir_all(&run).unwrap();
    tarpon_store::record_holder(&run.join("holder.sock")).unwrap();
    assert_eq!(store.holder_in_user_namespace().map(|holder| holder.pid), Some(std::process::id()));
    let record = run.join("holder.process");
    let bytes = std::fs::read(&record).unwrap();
    std::fs::write(&record, &bytes[..bytes.len() / 2]).unwrap();
    assert_eq!(store.holder_in_user_namespace(), None, "a torn record is that of no process");
}

#[test]
fn a_store_of_another_version_stays_if_the_lock_of_its_server_cannot_be_opened() {
    let folder = tempfile::tempdir().unwrap();
    let digest = put(&open(folder.path()), b"of another time").unwrap();
    let version = fs::read(folder.path().join("version")).unwrap();
    fs::write(folder.path().join("version"), "tarpon store 99\n").unwrap();
    let lock = folder.path().join("run/server.lock");
    let _ = fs::remove_file(&lock);
    fs::create_dir(&lock).unwrap();
    let error = Store::open(folder.path(), StoreConfig::default()).unwrap_err().to_string();
    assert!(error.contains("server.lock"), "{error}");
    fs::remove_dir(&lock).unwrap();
    fs::write(folder.path().join("version"), version).unwrap();
    assert!(get(&open(folder.path()), &digest).is_some(), "nothing was moved");
}

#[test]
fn a_store_of_another_version_is_set_aside_unless_a_server_runs_on_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let digest = put(&store, b"of another time").unwrap();
    fs::write(folder.path().join("version"), "tarpon store 99\n").unwrap();
    let lock = store.server_lock().unwrap();
    let error = Store::open(folder.path(), StoreConfig::default()).unwrap_err();
    assert!(matches!(&error, OpenError::OtherVersionInUse { version, .. } if version == "tarpon store 99"), "{error}");
    drop((lock, store));
    let store = open(folder.path());
    assert_eq!(get(&store, &digest), None);
    assert!(store.usage().unwrap().leftover_bytes > 0);
    assert_eq!(store.estimated_usage(), store.usage().unwrap().total(), "the budget knows of it");
    store.gc().unwrap();
    assert_eq!(store.usage().unwrap().leftover_bytes, 0);
}
