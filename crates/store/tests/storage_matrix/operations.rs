//! The operations that change a store. Each can be repeated: the result of a second run is that of the first.

use std::fs;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tarpon_blob::{ObjectStore as _, StoreError};
use tarpon_oci::Digest;
use tarpon_store::{Isolation, IsolationError, RemoveError, ScrubRun, Scrubber, Store};

use crate::common::{LIST, content, put, put_by_pieces, verified};
use crate::states::{Image, PIECE, State, damage, make_old, mount_point, path_of};

/// An open store, and what is in it.
pub(crate) struct Scene {
    pub(crate) store: Store,
    pub(crate) folder: PathBuf,
    pub(crate) image: Image,
    pub(crate) other: Image,
}

/// An operation that changes a store.
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    /// Runs on a sound disk before it, each time.
    pub(crate) before: fn(&Scene),
    pub(crate) run: fn(&Scene) -> Result<(), StoreError>,
    /// Maximum size of the store.
    pub(crate) budget: Option<u64>,
    /// Part of the operation happens when the store is opened.
    pub(crate) is_opening: bool,
    /// How much it removes depends on what is there: results are compared after a collection.
    pub(crate) is_approximate: bool,
}

const fn operation(name: &'static str, run: fn(&Scene) -> Result<(), StoreError>) -> Operation {
    Operation { name, before: |_| {}, run, budget: None, is_opening: false, is_approximate: false }
}

const fn after(before: fn(&Scene), operation: Operation) -> Operation {
    Operation { before, ..operation }
}

impl Operation {
    /// Whether it is tried in this state.
    pub(crate) fn is_in(&self, state: State) -> bool {
        let creates = matches!(self.name, "create a store" | "isolate the tenants of a store");
        creates == (state == State::NoStore)
    }
}

pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation { is_opening: true, ..operation("create a store", |_| Ok(())) },
        operation("isolate the tenants of a store", isolate),
        after(of_another_version, Operation { is_opening: true, ..operation("set a store aside", |_| Ok(())) }),
        operation("publish a small object", |scene| put(&scene.store, &scene.image.objects[0]).map(drop)),
        operation("publish a large object", |scene| put(&scene.store, &scene.image.objects[2]).map(drop)),
        operation("publish onto a clean store", publish_and_stop),
        operation("fill and publish a small object", |scene| fill(scene, 1)),
        operation("fill and publish a large object", |scene| fill(scene, 2)),
        operation("fill a part of an object", |scene| scene.image.write_pieces(&scene.store, 2)),
        operation("keep a part of a small object", keep_small_part),
        operation("install an image", |scene| scene.image.install(&scene.store, scene.image.name)),
        operation("install an image again", |scene| scene.other.install(&scene.store, "a second name")),
        operation("prepare an image", prepare),
        operation("set a reference", set_reference),
        operation("keep a layer index", |scene| {
            scene.store.keep_layer_index(&scene.image.index_key(), &content(10, 3_000))
        }),
        operation("keep the beginning of a layer", |scene| {
            scene.image.begin_layer(&scene.store);
            Ok(())
        }),
        operation("drop the beginning of a layer", |scene| {
            scene.store.layer_part(scene.image.layer()).into_iter().for_each(tarpon_store::LayerPart::discard);
            Ok(())
        }),
        operation("pin", |scene| scene.store.pin().map(drop)),
        operation("discard a failed import", discard),
        Operation { budget: Some(90_000), is_approximate: true, ..operation("evict", evict) },
        after(put_unreferenced, operation("collect", |scene| scene.store.gc().map(drop))),
        operation("remove an image", |scene| unless_mounted(scene.store.remove_image(&scene.image.manifest()))),
        operation("remove another image", |scene| unless_mounted(scene.store.remove_image(&scene.other.manifest()))),
        operation("remove a record", |scene| unless_mounted(scene.store.remove_record(&scene.other.manifest()))),
        operation("clear", |scene| scene.store.clear().map(drop)),
        after(damage_one, operation("scrub damage", scrub)),
        after(damage_one, operation("verify damage", |scene| scene.store.verify(|_| {}).map(drop))),
        after(
            damage_one,
            operation("open a damaged object", |scene| scene.store.open(&scene.other.digests()[1]).map(drop)),
        ),
        after(move_out_one, operation("mend a damaged object", mend)),
        after(
            age,
            operation("rewrite the tree of an older version", |scene| {
                scene.store.image(&scene.other.manifest()).map(drop)
            }),
        ),
        operation("keep the forms of layers", |scene| {
            scene.store.keep_image_forms(&scene.other.manifest(), &content(11, 2_000))
        }),
        operation("update the layers of a record", |scene| {
            scene.store.set_layers(&scene.other.manifest(), scene.image.layers())
        }),
        operation("record a mount", record_mount),
        after(
            |scene| record_mount(scene).unwrap(),
            operation("forget a mount", |scene| scene.store.forget_mount(&mount_point(&scene.other))),
        ),
        after(
            |scene| record_mount(scene).unwrap(),
            operation("update the record of a mount", |scene| {
                let (at, image) = (mount_point(&scene.other), scene.other.manifest());
                scene.store.update_mount_record(&at, &image, "mounted").map(drop)
            }),
        ),
        operation("sync", |scene| {
            put(&scene.store, &scene.image.objects[1])?;
            scene.store.maintain()
        }),
        operation("set the maximum size", |scene| scene.store.set_budget(50 << 20).map(drop)),
    ]
}

fn isolate(scene: &Scene) -> Result<(), StoreError> {
    match scene.store.set_isolation(Isolation::Tenant) {
        Err(IsolationError::Store(error)) => return Err(error),
        outcome => outcome.unwrap(),
    }
    let tenant = scene.store.tenant("registry/tenant")?;
    scene.image.make_complete(&tenant)
}

fn of_another_version(scene: &Scene) {
    fs::write(scene.folder.join("version"), "tarpon store 99\n").unwrap();
}

fn publish_and_stop(scene: &Scene) -> Result<(), StoreError> {
    put(&scene.store, &scene.image.objects[1])?;
    scene.store.stop_clean()?;
    put(&scene.store, &scene.image.objects[2])?;
    scene.store.stop_clean()
}

fn fill(scene: &Scene, number: usize) -> Result<(), StoreError> {
    put_by_pieces(&scene.store, &scene.image.objects[number], PIECE).map(drop)
}

fn keep_small_part(scene: &Scene) -> Result<(), StoreError> {
    let bytes = &scene.image.objects[1];
    let partial = scene.store.partial(&Digest::of(bytes), &LIST, bytes.len() as u64)?;
    partial.write_at(&verified(&bytes[..bytes.len() / 2]), 0)?;
    partial.persist()
}

fn prepare(scene: &Scene) -> Result<(), StoreError> {
    let _pin = scene.store.pin()?;
    scene.image.make_complete(&scene.store)
}

fn set_reference(scene: &Scene) -> Result<(), StoreError> {
    scene.store.set_reference("an alias", "linux/amd64", &scene.other.manifest())
}

fn discard(scene: &Scene) -> Result<(), StoreError> {
    let _pin = scene.store.pin()?;
    let objects = [put(&scene.store, &content(12, 5_000))?, put(&scene.store, &scene.other.objects[1])?];
    scene.store.discard(&objects).map(drop)
}

/// Writes an object into a full store. Where everything is in use, it is not kept.
fn evict(scene: &Scene) -> Result<(), StoreError> {
    match put(&scene.store, &content(13, 40_000)) {
        Err(StoreError::Full) => Ok(()),
        outcome => outcome.map(drop),
    }
}

fn put_unreferenced(scene: &Scene) {
    put(&scene.store, &content(14, 5_000)).unwrap();
    put(&scene.store, &content(15, 80_000)).unwrap();
}

fn unless_mounted<T>(removed: Result<T, RemoveError>) -> Result<(), StoreError> {
    match removed {
        Ok(_) | Err(RemoveError::Mounted(_)) => Ok(()),
        Err(RemoveError::Store(error)) => Err(error),
    }
}

fn damage_one(scene: &Scene) {
    damage(&path_of(&scene.folder, &scene.other.digests()[1]));
}

fn move_out_one(scene: &Scene) {
    damage_one(scene);
    scene.store.verify(|_| {}).unwrap();
}

fn mend(scene: &Scene) -> Result<(), StoreError> {
    let content = &scene.other.objects[1];
    for damaged in scene.store.damaged_objects()? {
        assert_eq!(damaged.object, Digest::of(content));
        let Some(file) = scene.store.mend(&damaged)? else { continue };
        file.write_at(content, 0)?;
        file.finish(content.len() as u64)?;
    }
    Ok(())
}

fn age(scene: &Scene) {
    let tree = scene.folder.join("images").join(scene.other.manifest().hex()).join("tree.erofs");
    if fs::read(tree).is_ok_and(|tree| tree.starts_with(b"old ")) {
        make_old(&scene.folder, &scene.other);
    }
}

fn record_mount(scene: &Scene) -> Result<(), StoreError> {
    let point = mount_point(&scene.other);
    scene.store.record_mount(Path::new(&point), &scene.other.manifest(), scene.other.name, "native").map(drop)
}

struct Unhurried;

impl Scrubber for Unhurried {
    fn pause(&self, _: Duration) -> bool {
        true
    }

    fn progress(&self, _: &ScrubRun) {}

    fn found(&self) {}
}

fn scrub(scene: &Scene) -> Result<(), StoreError> {
    scene.store.scrub(NonZeroU64::MAX, &Unhurried).map(drop)
}
