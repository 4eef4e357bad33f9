//! Every name that a directory lists is found, by the kernel and by [`Image`], wherever the directory's data ends.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use tarpon_layer::LayerIndex;
use tarpon_testkit::entries::{Made, dir, file, layer};
use tarpon_tree::erofs::{Image, Nid};
use tarpon_tree::{erofs, merge};

use crate::image::mount;

/// Bytes of an entry of a directory, without its name.
const ENTRY: usize = 12;
/// Bytes of the entries `.` and `..`.
const DOTS: usize = 2 * ENTRY + 3;
/// Bytes of an entry that fills a directory.
const FILLER: usize = 256;
/// The longest name.
const NAME: usize = 255;

/// Names that are listed and not found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) names: usize,
    pub(crate) missing: Vec<String>,
}

/// Lists every directory of the tree and looks up each name. None where images cannot be mounted.
pub(crate) fn look_up_every_name(layers: &[LayerIndex]) -> Option<Found> {
    let folder = tempfile::tempdir().expect("a folder");
    let tree = merge(layers).expect("not refused");
    let image = Image::open(erofs::write(&tree)).expect("what was written can be opened");
    let summary = image.check().expect("what was written holds together");
    let mut found = Found::default();
    by_image(&image, image.root(), &mut found);
    assert_eq!(found.names as u64 + 1, summary.names, "the root has no name");
    let mount = mount(&tree, folder.path())?;
    let by_kernel = by_kernel(&mount.path());
    assert_eq!(by_kernel.names, found.names, "the kernel lists what the image lists");
    found.missing.extend(by_kernel.missing);
    Some(found)
}

fn by_image(image: &Image<Vec<u8>>, directory: Nid, found: &mut Found) {
    for entry in image.read_dir(directory, 0).expect("a directory") {
        let entry = entry.expect("readable");
        if matches!(entry.name, b"." | b"..") {
            continue;
        }
        found.names += 1;
        if image.lookup(directory, entry.name) != Ok(Some((entry.nid, entry.kind))) {
            found.missing.push(format!("image: {}", entry.name.escape_ascii()));
        }
        if entry.kind == tarpon_tree::Kind::Directory {
            by_image(image, entry.nid, found);
        }
    }
}

fn by_kernel(root: &Path) -> Found {
    let mut found = Found::default();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).expect("readdir") {
            let entry = entry.expect("readdir");
            let path = directory.join(entry.file_name());
            found.names += 1;
            match fs::symlink_metadata(&path) {
                Ok(stat) if stat.is_dir() => waiting.push(path),
                Ok(_) => {}
                Err(error) => found.missing.push(format!("kernel: {}: {error}", path.display())),
            }
        }
    }
    found
}

/// The bytes between a directory's inode and an inline tail of its data.
#[derive(Debug, Clone, Copy)]
enum Inode {
    /// 32 bytes.
    Compact,
    /// 64 bytes, because its time is not the most common one.
    Extended,
    /// With xattrs as well.
    WithXattrs,
}

/// A directory with `fillers` names before its last name, which has `last` bytes.
fn directory(inode: Inode, fillers: usize, last: usize) -> impl Iterator<Item = Made> {
    let name = format!("{inode:?}-{fillers:02}-{last:03}");
    let made = match inode {
        Inode::Compact => dir(name.clone()),
        Inode::Extended => dir(name.clone()).mtime(77, 7),
        Inode::WithXattrs => dir(name.clone()).mtime(77, 7).xattr("user.note", vec![b'v'; 300]),
    };
    let filler = move |number: usize| format!("{number:0width$}", width = FILLER - ENTRY);
    let names = (0..fillers).map(filler).chain([format!("z{}", "y".repeat(last - 1))]);
    [made].into_iter().chain(names.map(move |child| file(format!("{name}/{child}"), "x")))
}

/// Lengths of a last name with which the data of the directory ends near a multiple of 32 bytes.
fn lengths(fillers: usize) -> impl Iterator<Item = usize> {
    let end = move |last: &usize| DOTS + fillers * FILLER + ENTRY + last;
    (1..=NAME).filter(move |last| (end(last) + 2) % 32 < 5)
}

/// Directories with an inode of this kind and these numbers of names before the last one.
fn directories(inode: Inode, fillers: impl Iterator<Item = usize>) -> impl Iterator<Item = Made> {
    fillers.flat_map(move |fillers| lengths(fillers).flat_map(move |last| directory(inode, fillers, last)))
}

fn assert_all_found(entries: impl Iterator<Item = Made>, at_least: usize) {
    let Some(Found { names, missing }) = look_up_every_name(&[layer(entries)]) else { return };
    assert!(names > at_least, "{names}");
    assert!(missing.is_empty(), "{} of {names} names: {:?}", missing.len(), &missing[..missing.len().min(3)]);
}

#[test]
fn every_name_is_found_in_directories_around_every_boundary_of_32_bytes_and_4_kib() {
    // Up to three blocks and a little more. With more data behind the inode, only where that makes a difference: a tail near a
    // whole block.
    let near_whole = || (0..50).filter(|fillers| (fillers + 4) % 16 < 5);
    let entries = directories(Inode::Compact, 0..50)
        .chain(directories(Inode::Extended, near_whole()))
        .chain(directories(Inode::WithXattrs, near_whole()));
    assert_all_found(entries, 60_000);
}

#[test]
fn every_name_is_found_in_directories_of_names_of_any_length() {
    let mut state = 14_u64;
    let mut next = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).expect("31 bits") % below
    };
    let mut entries = Vec::new();
    for directory in 0..600 {
        entries.push(dir(format!("{directory}")).mtime(i64::from(directory % 3), 0));
        let lengths: BTreeSet<usize> = (0..1 + next(60)).map(|_| 1 + next(NAME)).collect();
        entries.extend(lengths.iter().map(|length| file(format!("{directory}/{}", "n".repeat(*length)), "x")));
    }
    assert_all_found(entries.into_iter(), 10_000);
}
