//! Walks over the tree of an image: finds a path as the kernel would, and lists folders in the order of their names.

use std::collections::VecDeque;

use tarpon_tree::Kind as TreeKind;
use tarpon_tree::erofs::{Image, ImageError, Nid};

use crate::output::escape;
use crate::output::listing::{Kind, Row};

/// Symbolic links that a path may lead through: the kernel's limit.
const LINKS: usize = 40;

/// What is listed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Options {
    /// Folders below too.
    pub(super) recursive: bool,
    /// Names that start with a dot too.
    pub(super) all: bool,
}

/// A folder and what is in it; for something else than a folder, itself.
#[derive(Debug)]
pub(super) struct Folder {
    /// Its path, escaped.
    pub(super) path: String,
    pub(super) rows: Vec<Row>,
}

/// An inode and the path it was found at, without symbolic links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    nid: Nid,
    path: Vec<u8>,
}

/// What is at `path`, symbolic links followed inside the image; the last one only if `follow_last`.
pub(super) fn resolve(image: &Image<&[u8]>, path: &[u8], follow_last: bool) -> Result<Option<Found>, ImageError> {
    let mut left = components(path);
    let mut at = vec![Found { nid: image.root(), path: Vec::new() }];
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        let here = at.last().expect("the root is never taken off");
        if name == b".." {
            at.truncate((at.len() - 1).max(1));
            continue;
        }
        if image.inode(here.nid)?.kind != TreeKind::Directory {
            return Ok(None);
        }
        let Some((nid, kind)) = image.lookup(here.nid, &name)? else { return Ok(None) };
        if kind == TreeKind::Symlink && (follow_last || !left.is_empty()) {
            links += 1;
            if links > LINKS {
                return Ok(None);
            }
            let target = image.read_link(nid)?;
            if target.starts_with(b"/") {
                at.truncate(1);
            }
            let mut through = components(target);
            through.append(&mut left);
            left = through;
            continue;
        }
        let path = [&here.path[..], b"/", &name].concat();
        at.push(Found { nid, path });
    }
    Ok(at.pop().map(|found| if found.path.is_empty() { Found { path: b"/".to_vec(), ..found } } else { found }))
}

fn components(path: &[u8]) -> VecDeque<Vec<u8>> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").map(<[u8]>::to_vec).collect()
}

/// Lists `start`: what is in it if it is a folder, itself if not.
pub(super) fn list(image: &Image<&[u8]>, start: Found, options: Options) -> Result<Vec<Folder>, ImageError> {
    if image.inode(start.nid)?.kind != TreeKind::Directory {
        let rows = vec![row(image, &start)?];
        return Ok(vec![Folder { path: escape(&start.path), rows }]);
    }
    let mut folders = Vec::new();
    // A stack and not recursion: an image may be deep. The last folder pushed is listed next, as `ls -R` does.
    let mut left = vec![start];
    while let Some(folder) = left.pop() {
        let entries = entries(image, &folder, options.all)?;
        let rows = entries.iter().map(|(entry, _)| row(image, entry)).collect::<Result<_, _>>()?;
        folders.push(Folder { path: escape(&folder.path), rows });
        if options.recursive {
            let below = entries.into_iter().rev().filter(|(_, kind)| *kind == TreeKind::Directory);
            left.extend(below.map(|(entry, _)| entry));
        }
    }
    Ok(folders)
}

fn entries(image: &Image<&[u8]>, folder: &Found, all: bool) -> Result<Vec<(Found, TreeKind)>, ImageError> {
    let prefix: &[u8] = if folder.path == b"/" { b"" } else { &folder.path };
    let mut entries = Vec::new();
    for entry in image.read_dir(folder.nid, 0)? {
        let entry = entry?;
        let name: &[u8] = entry.name;
        if name == b"." || name == b".." || (!all && name.starts_with(b".")) {
            continue;
        }
        entries.push((Found { nid: entry.nid, path: [prefix, b"/", name].concat() }, entry.kind));
    }
    Ok(entries)
}

fn row(image: &Image<&[u8]>, found: &Found) -> Result<Row, ImageError> {
    let inode = image.inode(found.nid)?;
    let (name, path, path_hex) = Row::names(&found.path);
    let kind = match inode.kind {
        TreeKind::Directory => Kind::Directory,
        TreeKind::File => Kind::File,
        TreeKind::Symlink => Kind::Symlink,
        TreeKind::CharDevice => Kind::CharDevice,
        TreeKind::BlockDevice => Kind::BlockDevice,
        TreeKind::Fifo => Kind::Fifo,
    };
    let target = if kind == Kind::Symlink { Some(escape(image.read_link(found.nid)?)) } else { None };
    let is_device = matches!(kind, Kind::CharDevice | Kind::BlockDevice);
    Ok(Row {
        name,
        path,
        path_hex,
        kind,
        mode: inode.mode,
        links: inode.links,
        uid: inode.uid,
        gid: inode.gid,
        size: inode.size,
        mtime: inode.mtime.seconds,
        mtime_nanoseconds: inode.mtime.nanoseconds,
        target,
        device: is_device.then_some((inode.device.major, inode.device.minor)),
    })
}
