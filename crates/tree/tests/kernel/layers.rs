//! Stacks of layers, each unpacked into a folder as overlay runtimes do it, under overlayfs: the kernel's own merge.
//!
//! Omitted, because overlayfs cannot represent it: hard links to lower layers, link counts (it keeps those of the layer), missing
//! parents (an unpacker makes them with attributes of its own), content (there is none).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::symlink as make_symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, lsetxattr, makedev, mknodat,
    utimensat,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use tarpon_layer::{Device, Entry, LayerIndex, LayerPath, Node};
use tarpon_testkit::entries::{dir, fifo, layer};
use tarpon_tree::merge;

use crate::detached::Detached;
use crate::dump::dump_where;
use crate::random_stack;

fn is_entry(entry: &Entry) -> bool {
    !matches!(entry.node, Node::Whiteout | Node::Opaque)
}

fn parents(path: &LayerPath) -> impl Iterator<Item = &[u8]> {
    let slashes = path.as_bytes().iter().enumerate().filter(|(_, byte)| **byte == b'/');
    std::iter::once(0).chain(slashes.map(|(at, _)| at)).map(|end| &path.as_bytes()[..end])
}

/// The layer with all parents listed, and without entries that overlayfs cannot represent.
fn complete(index: LayerIndex) -> LayerIndex {
    let listed: BTreeMap<Vec<u8>, Entry> = (index.entries.iter().filter(|entry| is_entry(entry)))
        .map(|entry| (entry.path.as_bytes().to_vec(), entry.clone()))
        .collect();
    let is_leaf = |path: &[u8]| listed.get(path).is_some_and(|entry| !matches!(entry.node, Node::Directory));
    let mut entries = listed.clone();
    let mut markers = Vec::new();
    let implied = |path: &[u8]| dir(path).entry;
    entries.entry(Vec::new()).or_insert_with(|| implied(b""));
    for entry in &index.entries {
        let path = entry.path.as_bytes();
        let below_leaf = parents(&entry.path).any(is_leaf);
        if below_leaf && !is_entry(entry) || is_leaf(path) && matches!(entry.node, Node::Opaque) {
            continue;
        }
        for parent in parents(&entry.path) {
            entries.entry(parent.to_vec()).or_insert_with(|| implied(parent));
        }
        match entry.node {
            Node::Opaque => drop(entries.entry(path.to_vec()).or_insert_with(|| implied(path))),
            Node::Whiteout => {}
            _ => continue,
        }
        markers.push(entry.clone());
    }
    for entry in entries.values_mut() {
        match &entry.node {
            Node::HardLink(target) if !listed.contains_key(target.as_bytes()) => {
                *entry = fifo(entry.path.as_bytes()).entry;
            }
            // Linux has no other mode for symbolic links.
            Node::Symlink(_) => entry.attributes.mode = 0o777,
            _ => {}
        }
    }
    let mut complete = layer([]);
    complete.entries = entries.into_values().chain(markers).collect();
    complete.chunks = index.chunks;
    complete
}

/// Unpacks a complete layer into a folder in the form that overlayfs requires.
fn unpack(index: &LayerIndex, folder: &Path) {
    fs::create_dir(folder).expect("mkdir");
    let at = |path: &LayerPath| folder.join(OsStr::from_bytes(path.as_bytes()));
    let entries = || index.entries.iter().filter(|entry| is_entry(entry));
    for entry in entries() {
        let path = at(&entry.path);
        match &entry.node {
            Node::Directory if entry.path.is_root() => {}
            Node::Directory => fs::create_dir(&path).expect("mkdir"),
            Node::File(content) => File::create(&path).expect("create").set_len(content.size).expect("truncate"),
            Node::Symlink(target) => make_symlink(OsStr::from_bytes(target), &path).expect("symlink"),
            Node::CharDevice(device) => make_node(&path, FileType::CharacterDevice, *device),
            Node::BlockDevice(device) => make_node(&path, FileType::BlockDevice, *device),
            Node::Fifo => make_node(&path, FileType::Fifo, Device { major: 0, minor: 0 }),
            Node::HardLink(_) | Node::Whiteout | Node::Opaque => {}
        }
    }
    link_all(&at, entries().collect());
    let listed: Vec<&LayerPath> = entries().map(|entry| &entry.path).collect();
    for marker in index.entries.iter().filter(|entry| !is_entry(entry)) {
        if !listed.contains(&&marker.path) {
            make_node(&at(&marker.path), FileType::CharacterDevice, Device { major: 0, minor: 0 });
        } else if at(&marker.path).symlink_metadata().expect("stat").is_dir() {
            lsetxattr(at(&marker.path), "trusted.overlay.opaque", b"y", XattrFlags::empty()).expect("opaque");
        }
    }
    // From the bottom up, so that the times of directories stay.
    entries().collect::<Vec<_>>().into_iter().rev().for_each(|entry| set_attributes(&at(&entry.path), entry));
}

fn make_node(path: &Path, kind: FileType, Device { major, minor }: Device) {
    mknodat(CWD, path, kind, Mode::empty(), makedev(major, minor)).expect("mknod");
}

/// Links may lead to links: those that cannot be made yet wait for the next round.
fn link_all(at: &impl Fn(&LayerPath) -> PathBuf, entries: Vec<&Entry>) {
    let links = entries.into_iter().filter_map(|entry| match &entry.node {
        Node::HardLink(target) => Some((target, &entry.path)),
        _ => None,
    });
    let mut waiting: Vec<_> = links.collect();
    while !waiting.is_empty() {
        let before = waiting.len();
        waiting.retain(|(target, path)| fs::hard_link(at(target), at(path)).is_err());
        assert!(waiting.len() < before, "links in a circle");
    }
}

fn set_attributes(path: &Path, entry: &Entry) {
    if matches!(entry.node, Node::HardLink(_)) {
        return;
    }
    let attributes = &entry.attributes;
    let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
    chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).expect("chown");
    let is_symlink = matches!(entry.node, Node::Symlink(_));
    if !is_symlink {
        fs::set_permissions(path, fs::Permissions::from_mode(attributes.mode.into())).expect("chmod");
    }
    let has_user_xattrs = matches!(entry.node, Node::File(_) | Node::Directory);
    for xattr in attributes.xattrs.iter().filter(|xattr| has_user_xattrs || !xattr.name.starts_with(b"user.")) {
        lsetxattr(path, OsStr::from_bytes(&xattr.name), &xattr.value, XattrFlags::empty()).expect("setxattr");
    }
    let time = Timespec { tv_sec: attributes.mtime.seconds, tv_nsec: attributes.mtime.nanoseconds.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("utimens");
}

/// A dump without properties that overlayfs cannot show: link counts and objects.
fn comparable(dump: &str) -> String {
    let comparable = |line: &str| {
        let words = line.split(' ').enumerate().filter(|(at, word)| *at != 5 && !word.starts_with("sha256:"));
        words.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
    };
    dump.lines().map(comparable).collect::<Vec<_>>().join("\n")
}

#[test]
fn overlayfs_over_unpacked_layers_shows_what_the_merge_shows() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: mounting needs root");
        return;
    }
    let stacks = (1000..).map(random_stack).map(|layers| layers.into_iter().map(complete).collect::<Vec<_>>());
    for layers in stacks.filter(|layers| merge(layers).is_ok()).take(64) {
        let folder = tempfile::tempdir().unwrap();
        // Overlayfs requires at least two layers.
        let mut folders = vec![folder.path().join("nothing")];
        fs::create_dir(&folders[0]).unwrap();
        for (number, layer) in layers.iter().enumerate() {
            folders.push(folder.path().join(number.to_string()));
            unpack(layer, &folders[number + 1]);
        }
        let options: Vec<(&str, &Path)> = folders.iter().rev().map(|folder| ("lowerdir+", &**folder)).collect();
        let overlay = match Detached::new("overlay", &options) {
            Ok(overlay) => overlay,
            Err(error) => {
                println!("skipped: this kernel stacks no overlay here: {error}");
                return;
            }
        };
        // In a directory that only one layer has, overlayfs lists whiteouts but does not find them.
        let shown = dump_where(&overlay.path(), |path| path.symlink_metadata().is_ok());
        assert_eq!(comparable(&shown), comparable(&merge(&layers).unwrap().dump()));
    }
}
