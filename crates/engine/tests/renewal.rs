//! Stores of an older version of tarpon: old trees are rewritten when they are used, without a registry.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tarpon_blob::ObjectStore as _;
use tarpon_engine::open_store;
use tarpon_oci::{Digest, Verified};
use tarpon_store::{ImageRecord, LayerKind, LayerRecord, Part, Store, StoreConfig, Verification};
use tarpon_tree::erofs;

fn open(folder: &Path) -> Store {
    open_store(folder).unwrap()
}

fn put(store: &Store, bytes: &[u8]) -> Digest {
    let mut writer = store.writer(bytes.len() as u64).unwrap();
    writer.write_all(bytes).unwrap();
    writer.publish(Verified::seal(bytes).proof()).unwrap();
    Digest::of(bytes)
}

/// Installs an image of this object and returns the digest of its manifest.
fn install(store: &Store, name: &str, object: Digest) -> Digest {
    let manifest = format!("manifest of {name}");
    let digest = Digest::of(manifest.as_bytes());
    let layer = LayerRecord {
        digest: Digest::of(name.as_bytes()),
        size: 1234,
        format: LayerKind::TarGzip,
        verification: Verification::DiffId,
        prefetch: None,
        index: None,
    };
    let mut staging = store.stage_image(ImageRecord::new(digest, name, "linux/amd64", vec![layer])).unwrap();
    staging.put(Part::Manifest, manifest.as_bytes()).unwrap();
    staging.put(Part::Config, b"{}").unwrap();
    staging.put(Part::Tree, b"a tree").unwrap();
    staging.put(Part::Chunks, b"chunks").unwrap();
    staging.put_objects(vec![object]).unwrap();
    staging.install().unwrap();
    digest
}

/// A tree as version 1 wrote it.
fn old_tree() -> Vec<u8> {
    let path = "../../fixtures/fuzz/erofs_image/003-stack";
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn new_tree() -> Vec<u8> {
    erofs::renew(&old_tree()).unwrap().expect("it is old")
}

/// A store with a record of version 1.
struct Old {
    folder: tempfile::TempDir,
    store: Store,
    object: Digest,
    manifest: Digest,
}

impl Old {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let object = put(&store, b"object");
        let manifest = install(&store, "image", object);
        let old = Self { folder, store, object, manifest };
        let tree = old_tree();
        fs::write(old.path("tree.erofs"), &tree).unwrap();
        let mut record = old.record();
        record["version"] = json!(1);
        let parts = record["parts"].as_array_mut().unwrap();
        let part = parts.iter_mut().find(|part| part["part"] == "tree").unwrap();
        (part["digest"], part["size"]) = (json!(Digest::of(&tree).to_string()), json!(tree.len()));
        let text = serde_json::to_string(&record).unwrap();
        let sealed = format!(r#"{{"digest":"{}","value":{text}}}"#, Digest::of(text.as_bytes()));
        fs::write(old.path("record.json"), sealed).unwrap();
        old
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("images").join(self.manifest.hex()).join(name)
    }

    fn record(&self) -> Value {
        let envelope: Value = serde_json::from_slice(&fs::read(self.path("record.json")).unwrap()).unwrap();
        envelope["value"].clone()
    }

    /// The loaded tree. Also checks that nothing of the record is damaged afterwards.
    fn loaded(&self) -> Option<Vec<u8>> {
        let tree = self.store.load_image(&self.manifest).unwrap()?.tree.as_ref().to_vec();
        assert_eq!(self.store.verify(|_| {}).unwrap().damaged_images, []);
        Some(tree)
    }
}

#[test]
fn a_tree_of_an_older_version_is_rewritten_when_it_is_loaded_and_then_stays() {
    let old = Old::new();
    assert_eq!(old.record()["version"], 1);
    assert!(old.loaded().unwrap() == new_tree());
    assert_eq!(old.record()["version"], 2);
    assert_eq!(old.store.image(&old.manifest).unwrap().unwrap().references, ["image"]);
    let inode = fs::metadata(old.path("tree.erofs")).unwrap().ino();
    let again = open(old.folder.path());
    assert!(again.load_image(&old.manifest).unwrap().unwrap().tree.as_ref() == new_tree());
    assert_eq!(fs::metadata(old.path("tree.erofs")).unwrap().ino(), inode, "it is written once");
}

#[test]
fn the_record_names_the_new_tree_before_anything_is_compared_with_it() {
    let old = Old::new();
    let record = old.store.image(&old.manifest).unwrap().unwrap();
    let part = record.part(tarpon_store::Part::Tree).unwrap();
    assert_eq!((part.digest, part.size), (Digest::of(&new_tree()), new_tree().len() as u64));
}

#[test]
fn a_process_that_ended_between_the_record_and_the_tree_is_succeeded() {
    let old = Old::new();
    old.store.image(&old.manifest).unwrap().unwrap();
    fs::write(old.path("tree.erofs"), old_tree()).unwrap();
    assert!(old.loaded().unwrap() == new_tree());
}

#[test]
fn a_damaged_tree_of_an_older_version_is_no_image_and_can_be_installed_again() {
    let old = Old::new();
    let mut tree = old_tree();
    let middle = tree.len() / 2;
    tree[middle] ^= 1;
    fs::write(old.path("tree.erofs"), tree).unwrap();
    assert!(old.store.image(&old.manifest).unwrap().is_none());
    assert!(old.store.load_image(&old.manifest).unwrap().is_none());
    install(&old.store, "image", old.object);
    assert!(old.loaded().is_some());
}

#[test]
fn an_image_of_an_older_version_is_installed_again_listed_and_protected_while_it_is_mounted() {
    let old = Old::new();
    assert_eq!(old.store.images().unwrap().len(), 1);
    old.store.record_mount(Path::new("/mnt"), &old.manifest, "image", "").unwrap();
    old.store.gc().unwrap();
    assert!(old.store.contains(&old.object));
    assert_eq!(old.record()["version"], 1, "only use renews it");
    let manifest = install(&old.store, "other name", old.object);
    assert!(old.store.load_image(&manifest).unwrap().is_some());
    let anew = install(&old.store, "image", old.object);
    assert_eq!(anew, old.manifest);
    assert_eq!(old.record()["version"], 2);
    assert!(old.store.load_image(&anew).unwrap().is_some());
}

#[test]
fn a_store_without_a_writer_of_trees_keeps_old_ones() {
    let old = Old::new();
    let plain = Store::open(old.folder.path(), StoreConfig::default()).unwrap();
    assert!(plain.image(&old.manifest).unwrap().is_none());
    assert_eq!(old.record()["version"], 1);
    assert!(old.loaded().unwrap() == new_tree());
}
