//! Walks the tree of an image in the order in which `ls` lists it.

use tarpon_engine::{Item, Result, TreeView};

use crate::output::escape;
use crate::output::listing::{Kind, Row};

/// Maximum number of symbolic links in one path: the kernel's limit.
const LINKS: usize = 40;

/// What to list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Options {
    /// Include subfolders.
    pub(super) recursive: bool,
    /// Include names that start with a dot.
    pub(super) all: bool,
    /// Follow a symbolic link at the end of the path.
    pub(super) follow: bool,
}

/// A folder and its entries; any other file, with itself as the only entry.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) path: Vec<u8>,
    pub(super) rows: Vec<Row>,
}

/// Lists `path`: the entries of a folder, or any other file itself.
pub(super) fn list(tree: &TreeView, path: &[u8], options: Options) -> Result<Vec<Folder>> {
    let path = if options.follow || path.ends_with(b"/") { follow(tree, path)? } else { path.to_vec() };
    let start = tree.find(&path)?;
    if kind(&start) != Kind::Directory {
        return Ok(vec![Folder { rows: vec![row(&start, &path)], path }]);
    }
    let mut folders = Vec::new();
    // A stack instead of recursion, because an image may be deep. The folder pushed last is listed next, as in `ls -R`.
    let mut left = vec![path];
    while let Some(path) = left.pop() {
        let items = tree.list(&path)?;
        let shown: Vec<_> = items.iter().filter(|item| options.all || !item.name.starts_with(b".")).collect();
        let rows = shown.iter().map(|item| row(item, &join(&path, &item.name))).collect();
        if options.recursive {
            let below = shown.iter().rev().filter(|item| kind(item) == Kind::Directory);
            left.extend(below.map(|item| join(&path, &item.name)));
        }
        folders.push(Folder { path, rows });
    }
    Ok(folders)
}

/// Follows symbolic links at the end of `path`. A chain that is too long or leads nowhere ends at its last link.
fn follow(tree: &TreeView, path: &[u8]) -> Result<Vec<u8>> {
    let mut path = without_slash(path).to_vec();
    let mut item = tree.find(&path)?;
    for _ in 0..LINKS {
        let Some(target) = item.target else { break };
        let parent = path.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |at| &path[..at]);
        let target = without_slash(&target).to_vec();
        let next = if target.starts_with(b"/") { target } else { [parent, b"/", &target].concat() };
        match tree.find(&next) {
            Ok(found) => (path, item) = (next, found),
            Err(_) => break,
        }
    }
    Ok(path)
}

/// The path without trailing slashes, which mark a folder. The root keeps one.
fn without_slash(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(1, |last| last + 1);
    &path[..end.min(path.len())]
}

fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let folder = folder.strip_suffix(b"/").unwrap_or(folder);
    [folder, b"/", name].concat()
}

fn kind(item: &Item) -> Kind {
    match item.inode.kind.letter() {
        'd' => Kind::Directory,
        'l' => Kind::Symlink,
        'c' => Kind::CharDevice,
        'b' => Kind::BlockDevice,
        'p' => Kind::Fifo,
        _ => Kind::File,
    }
}

fn row(item: &Item, path: &[u8]) -> Row {
    let (name, path, path_hex) = Row::names(path);
    let (kind, inode) = (kind(item), &item.inode);
    let is_device = matches!(kind, Kind::CharDevice | Kind::BlockDevice);
    Row {
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
        target: item.target.as_deref().map(escape),
        device: is_device.then_some((inode.device.major, inode.device.minor)),
    }
}
