//! Isolated stores: a tenant's content is invisible to the others; figures of the whole store include all of them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use common::{LIST, content, get, install, open, put, verified};
use tarpon_blob::ObjectStore as _;
use tarpon_oci::Digest;
use tarpon_store::{
    IndexKey, Isolation, IsolationError, RemoveError, SCRUB_RATE, ScrubRun, Scrubber, Store, StoreConfig,
};
use tempfile::TempDir;

fn isolated() -> (TempDir, Store) {
    let folder = common::folder().unwrap();
    let store = open(folder.path());
    store.set_isolation(Isolation::Tenant).unwrap();
    (folder, store)
}

/// The file of an object.
fn path_of(store: &Store, object: &Digest) -> PathBuf {
    let hex = object.hex();
    store.objects_folder().join(&hex[..2]).join(&hex[2..])
}

fn damage(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(path, "other bytes").unwrap();
}

#[test]
fn a_tenant_finds_nothing_that_another_one_has() {
    let (_folder, store) = isolated();
    let (mine, other) = (store.tenant("registry/mine").unwrap(), store.tenant("registry/other").unwrap());
    let object = put(&mine, b"secret").unwrap();
    let image = install(&mine, "mine", &[object]).unwrap();
    let key = IndexKey { layer: Digest::of(b"layer"), claim: None };
    mine.keep_layer_index(&key, b"index").unwrap();
    let large = content(1, 100_000);
    let partial = mine.partial(&Digest::of(&large), &LIST, 100_000).unwrap();
    partial.write_at(&verified(&large[..4096]), 0).unwrap();
    for elsewhere in [&other, &store] {
        assert_eq!(get(elsewhere, &object), None);
        assert!(!elsewhere.contains(&object));
        assert!(elsewhere.image(&image).unwrap().is_none());
        assert!(elsewhere.load_image(&image).unwrap().is_none());
        assert!(elsewhere.reference("mine", "linux/amd64").unwrap().is_none());
        assert!(elsewhere.layer_index(&key).unwrap().is_none());
        assert!(elsewhere.damaged_objects().unwrap().is_empty());
        let part = elsewhere.partial(&Digest::of(&large), &LIST, 100_000).unwrap();
        let mut bytes = vec![0; 4096];
        assert!(part.read_at(&mut bytes, 0).is_err() || bytes != large[..4096], "bytes of another tenant's file");
    }
    let again = store.tenant("registry/mine").unwrap();
    assert_eq!(get(&again, &object).as_deref(), Some(&b"secret"[..]));
    assert_eq!(again.reference("mine", "linux/amd64").unwrap().unwrap().manifest, image);
    assert_eq!(other.images().unwrap(), []);
    assert_eq!(store.images().unwrap().len(), 1, "whoever looks after the store sees all of it");
    assert_eq!(store.references().unwrap().len(), 1);
}

#[test]
fn a_store_keeps_its_isolation_and_an_error_names_both() {
    let (folder, store) = isolated();
    store.set_isolation(Isolation::Tenant).unwrap();
    let error = open(folder.path()).set_isolation(Isolation::Shared).unwrap_err();
    assert!(matches!(error, IsolationError::Conflict { is: Isolation::Tenant, asked: Isolation::Shared }));
    let said = error.to_string();
    assert!(said.contains("\"tenant\"") && said.contains("\"shared\""), "{said}");
    fs::write(folder.path().join("settings"), "damaged").unwrap();
    assert_eq!(open(folder.path()).isolation().unwrap(), Isolation::Tenant, "whatever happens to a file of it");

    let folder = common::folder().unwrap();
    let store = open(folder.path());
    assert_eq!(store.isolation().unwrap(), Isolation::Shared);
    assert!(!store.is_explicitly_shared());
    store.set_budget(5 << 20).unwrap();
    store.set_isolation(Isolation::Shared).unwrap();
    assert!(store.is_explicitly_shared());
    assert_eq!(store.usage().unwrap().budget, 5 << 20, "one setting leaves the other alone");
    assert!(matches!(store.set_isolation(Isolation::Tenant), Err(IsolationError::Conflict { .. })));
}

#[test]
fn a_store_with_shared_content_does_not_become_isolated() {
    let folder = common::folder().unwrap();
    let store = open(folder.path());
    let object = put(&store, b"object").unwrap();
    let pin = store.pin().unwrap();
    assert!(matches!(store.set_isolation(Isolation::Tenant), Err(IsolationError::InUse)), "an import is under way");
    drop(pin);
    install(&store, "image", &[object]).unwrap();
    assert!(matches!(store.set_isolation(Isolation::Tenant), Err(IsolationError::InUse)));
    assert_eq!(get(&store.tenant("anybody").unwrap(), &object).as_deref(), Some(&b"object"[..]), "all share it");
    store.clear().unwrap();
    store.set_isolation(Isolation::Tenant).unwrap();
}

#[test]
fn an_existing_store_is_shared_and_stays_in_place() {
    let folder = common::folder().unwrap();
    let store = open(folder.path());
    let object = put(&store, b"object").unwrap();
    install(&store, "image", &[object]).unwrap();
    drop(store);
    let store = open(folder.path());
    assert_eq!(store.isolation().unwrap(), Isolation::Shared);
    assert_eq!(store.objects_folder(), folder.path().canonicalize().unwrap().join("objects"));
    assert_eq!(get(&store, &object).as_deref(), Some(&b"object"[..]));
    assert!(!folder.path().join("tenants").exists());
}

#[test]
fn all_tenants_are_counted_together_and_the_least_recently_used_image_of_any_is_evicted() {
    let folder = common::folder().unwrap();
    let config = StoreConfig { budget: Some(300_000), free_floor: Some(0), ..StoreConfig::default() };
    let store = Store::open(folder.path(), config).unwrap();
    store.set_isolation(Isolation::Tenant).unwrap();
    let tenants = ["a", "b", "c"].map(|name| store.tenant(name).unwrap());
    let mut images = Vec::new();
    for (age, tenant) in [30_u64, 90, 60].into_iter().zip(&tenants) {
        let object = put(tenant, &content(age, 40_000)).unwrap();
        let image = install(tenant, &format!("image {age}"), &[object]).unwrap();
        let record = tenant.objects_folder().with_file_name("images").join(image.hex()).join("record.json");
        let used = SystemTime::now() - Duration::from_secs(age);
        File::open(record).unwrap().set_modified(used).unwrap();
        images.push((object, image));
    }
    let usage = store.usage().unwrap();
    assert_eq!((usage.images, usage.objects), (3, 3));
    assert_eq!(tenants[0].usage().unwrap(), usage, "there is one budget");
    // A fourth tenant has no room for this, unless the others' content is evicted.
    let more = store.tenant("d").unwrap();
    put(&more, &content(7, 100_000)).unwrap();
    let left: Vec<bool> =
        tenants.iter().zip(&images).map(|(tenant, (_, image))| tenant.image(image).unwrap().is_some()).collect();
    assert_eq!(left, [true, false, true], "{:?}", store.usage().unwrap());
    assert!(!tenants[1].contains(&images[1].0));
    assert!(store.usage().unwrap().total() <= 300_000);
}

#[test]
fn an_image_is_protected_only_by_a_mount_of_its_own_tenant() {
    let (_folder, store) = isolated();
    let (mounted, other) = (store.tenant("mounted").unwrap(), store.tenant("other").unwrap());
    let mut image = None;
    for tenant in [&mounted, &other] {
        let object = put(tenant, b"the same object").unwrap();
        image = Some(install(tenant, "the same image", &[object]).unwrap());
    }
    let image = image.unwrap();
    mounted.record_mount("/mnt".as_ref(), &image, "the same image", "{}").unwrap();
    assert!(matches!(mounted.remove_image(&image), Err(RemoveError::Mounted(_))));
    assert!(matches!(store.remove_image(&image), Err(RemoveError::Mounted(_))));
    other.remove_image(&image).unwrap();
    assert!(other.image(&image).unwrap().is_none() && mounted.image(&image).unwrap().is_some());
    let evicted = store.clear().unwrap();
    assert_eq!(evicted.images, []);
    assert!(mounted.contains(&Digest::of(b"the same object")));
    store.forget_mount("/mnt".as_ref()).unwrap();
    assert_eq!(store.clear().unwrap().images, [image]);
    assert_eq!(store.usage().unwrap().total(), 0);
}

#[test]
fn damage_is_found_in_all_tenants_and_stays_with_its_own() {
    let (_folder, store) = isolated();
    let (one, two) = (store.tenant("one").unwrap(), store.tenant("two").unwrap());
    let objects = [&one, &two].map(|tenant| {
        let object = put(tenant, &content(3, 5000)).unwrap();
        install(tenant, "image", &[object]).unwrap();
        object
    });
    damage(&path_of(&two, &objects[1]));
    let checked = store.verify(|_| {}).unwrap();
    assert_eq!((checked.hashed.objects, checked.corrupt), (2, vec![objects[1]]));
    assert_eq!(two.damaged_objects().unwrap().len(), 1);
    assert!(one.damaged_objects().unwrap().is_empty() && store.damaged_objects().unwrap().is_empty());
    assert!(one.contains(&objects[0]) && !two.contains(&objects[1]));
    store.gc().unwrap();
    assert!(two.damaged_objects().unwrap().is_empty(), "no mount needs it");
}

#[test]
fn what_dead_processes_left_with_a_tenant_is_swept_by_the_server_of_the_store() {
    let (_folder, store) = isolated();
    let tenant = store.tenant("tenant").unwrap();
    let images = tenant.objects_folder().with_file_name("images");
    // No process has this number.
    let left = images.join(".new-4194305-0-0");
    fs::create_dir(&left).unwrap();
    let swept = store.sweep().unwrap();
    assert_eq!((swept.temporary, left.exists()), (1, false));
}

/// Runs without pauses, and is never stopped.
struct AtOnce;

impl Scrubber for AtOnce {
    fn pause(&self, _: Duration) -> bool {
        true
    }

    fn progress(&self, _: &ScrubRun) {}

    fn found(&self) {}
}

#[test]
fn the_scrub_looks_at_the_objects_of_all_tenants() {
    let (_folder, store) = isolated();
    let (one, two) = (store.tenant("one").unwrap(), store.tenant("two").unwrap());
    let (same, own) = (content(5, 3000), content(6, 3000));
    let object = [&one, &two].map(|tenant| put(tenant, &same).unwrap())[0];
    put(&two, &own).unwrap();
    damage(&path_of(&two, &object));
    let run = store.scrub(SCRUB_RATE, &AtOnce).unwrap().unwrap();
    assert_eq!((run.objects, run.damaged), (3, 1));
    assert!(one.contains(&object) && !two.contains(&object));
    assert_eq!(two.damaged_objects().unwrap().len(), 1);
}
