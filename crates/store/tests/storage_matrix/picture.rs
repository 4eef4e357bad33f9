//! What a store holds, as text: two stores with the same picture hold the same.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use tarpon_oci::Digest;
use tarpon_store::{ImageState, Isolation, Store};

use crate::common::get;

/// Files whose content is a time, a cache or a lock. Their names are not part of a picture.
const VOLATILE: [&str; 7] = ["usage", "state", "clean", "lock", "publishing", "scrub", "run"];

/// The files of a store with their content, and what its records say. Unique parts of names are left out.
pub(crate) fn picture(store: &Store, folder: &Path) -> BTreeSet<String> {
    let mut lines = files(folder);
    let names = |names: Vec<String>| names.into_iter().collect::<BTreeSet<_>>();
    let images = store.images().unwrap().into_iter();
    lines.extend(images.map(|image| {
        format!("image {} {:?} {:?} {:?}", image.manifest, names(image.references), image.layers, image.platform)
    }));
    let references = store.references().unwrap().into_iter();
    lines.extend(references.map(|it| format!("reference {} {} {}", it.source, it.platform, it.manifest)));
    let mounts = store.mounts().unwrap().into_iter().map(|mount| mount.record);
    lines.extend(mounts.map(|mount| format!("mount {} {}", mount.mountpoint.display(), mount.image)));
    lines.insert(format!("is isolated: {}", store.isolation().unwrap() == Isolation::Tenant));
    lines
}

/// The files of a store with the digests of their content, except what [`VOLATILE`] names.
pub(crate) fn files(folder: &Path) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(path) = pending.pop() {
        for entry in fs::read_dir(&path).unwrap().flatten() {
            let path = entry.path();
            let relative = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
            if VOLATILE.contains(&&*relative) {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                pending.push(path);
                continue;
            }
            let content = Digest::of(&fs::read(&path).unwrap()).hex();
            // Records hold times: what they say is part of a picture, not their bytes.
            let is_record =
                relative.ends_with("record.json") || relative.contains("refs/") || relative.contains("mounts/");
            let name = without_unique_names(&relative);
            let is_volatile = name
                .strip_prefix("set-aside/…/")
                .is_some_and(|name| VOLATILE.iter().any(|volatile| Path::new(name).starts_with(volatile)));
            let is_unknown = is_record || is_volatile || relative.starts_with("partial");
            lines.insert(format!("{name} {}", if is_unknown { "" } else { &content[..8] }));
        }
    }
    lines
}

/// A path without the unique parts of its names: process, time and number.
fn without_unique_names(path: &str) -> String {
    let mut short = path.to_owned();
    if let Some((front, (object, _))) =
        path.split_once("corrupt/").and_then(|(front, name)| Some((front, name.split_once('-')?)))
    {
        short = format!("{front}corrupt/{object}-…");
    }
    if let Some((_, rest)) = path.strip_prefix("set-aside/").and_then(|name| name.split_once('/')) {
        short = format!("set-aside/…/{}", without_unique_names(rest));
    }
    if let Some(at) = short.find(".new-") {
        short.truncate(at + ".new-".len());
    }
    short
}

/// Without the files that were put aside because they were damaged, which a collection removes.
pub(crate) fn without_leftovers(picture: &BTreeSet<String>) -> BTreeSet<String> {
    let is_leftover = |line: &str| line.starts_with("set-aside/") || line.contains("corrupt/");
    picture.iter().filter(|line| !is_leftover(line)).cloned().collect()
}

/// What two pictures do not share.
pub(crate) fn difference(found: &BTreeSet<String>, expected: &BTreeSet<String>) -> Result<(), String> {
    let more: Vec<_> = found.difference(expected).collect();
    let less: Vec<_> = expected.difference(found).collect();
    if more.is_empty() && less.is_empty() { Ok(()) } else { Err(format!("too much: {more:#?}\nmissing: {less:#?}")) }
}

/// All complete objects, of all tenants, by their names.
pub(crate) fn objects_on_disk(folder: &Path) -> Vec<(Digest, std::path::PathBuf)> {
    let tenants = fs::read_dir(folder.join("tenants")).into_iter().flatten().flatten().map(|entry| entry.path());
    let parts = std::iter::once(folder.to_owned()).chain(tenants);
    let fans = parts.flat_map(|part| fs::read_dir(part.join("objects")).into_iter().flatten().flatten());
    let files = fans.flat_map(|fan| fs::read_dir(fan.path()).into_iter().flatten().flatten().map(|file| file.path()));
    let digest = |path: &Path| {
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        Digest::from_hex(&(name(path.parent().unwrap()) + &name(path))).unwrap()
    };
    files.map(|path| (digest(&path), path)).collect()
}

/// Checks that each object that the store opens, or shows to the kernel, is right.
pub(crate) fn check_objects(store: &Store, folder: &Path, shows_only_sound: bool) -> Result<(), String> {
    let objects = objects_on_disk(folder);
    // First: the store moves out what it finds damaged when it opens it.
    let is_wrong = |path: &Path, object| fs::read(path).is_ok_and(|bytes| Digest::of(&bytes) != object);
    if shows_only_sound && let Some((object, _)) = objects.iter().find(|(object, path)| is_wrong(path, *object)) {
        return Err(format!("a wrong object is visible to the kernel: {object}"));
    }
    let is_opened_wrong = |object| get(store, object).is_some_and(|bytes| Digest::of(&bytes) != *object);
    match objects.iter().find(|(object, _)| is_opened_wrong(object)) {
        Some((object, _)) => Err(format!("a wrong object was opened: {object}")),
        None => Ok(()),
    }
}

/// Checks that all image records are whole, and that each reference leads to one.
pub(crate) fn check_images(store: &Store, folder: &Path) -> Result<(), String> {
    for entry in fs::read_dir(folder.join("images")).into_iter().flatten().flatten() {
        let Ok(manifest) = Digest::from_hex(&entry.file_name().to_string_lossy()) else { continue };
        let is_loaded = matches!(store.load_image(&manifest), Ok(Some(_)));
        if !is_loaded || !matches!(store.image_state(&manifest), Ok(ImageState::Sound(_))) {
            return Err(format!("half an image record is visible: {manifest}"));
        }
    }
    for reference in store.references().unwrap() {
        if store.tenant_id().is_none() && store.isolation().unwrap() == Isolation::Tenant {
            continue;
        }
        if store.image(&reference.manifest).unwrap().is_none() {
            return Err(format!("the reference {} leads to no image", reference.source));
        }
    }
    Ok(())
}
