//! A directory tree as a list of everything that a container can see of it, for comparisons of two trees.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RawMode, Stat};
use tarpon_oci::{Digest, Hasher};

/// One inode under one of its names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// `d`, `-`, `l`, `c`, `b`, `p`, `s`.
    pub kind: char,
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of a file or link target; 0 for everything else, where file systems differ.
    pub size: u64,
    /// Seconds and nanoseconds.
    pub mtime: (i64, u64),
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Device number of a device node.
    pub device: u64,
    /// Names of the same inode inside the tree, the first in order; empty where there is only one.
    pub group: Vec<u8>,
    /// Link count, except for directories.
    pub nlink: u64,
    /// Extended attributes that images may set.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// sha256 of a file's content.
    pub content: Option<Digest>,
}

/// Maps paths (without leading slash; the root is empty) to inodes.
pub type Dump = BTreeMap<Vec<u8>, Seen>;

/// Walks `root`. Paths of any length work: each directory is opened from its parent.
pub fn dump(root: &Path) -> Result<Dump> {
    let root = rustix::fs::open(root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("open {}", root.display()))?;
    let mut walk = Walk::default();
    let stat = rustix::fs::fstat(&root)?;
    let xattrs = xattrs_of(&root)?;
    walk.seen.insert(Vec::new(), describe(&stat, xattrs));
    walk.directory(root, &[])?;
    Ok(walk.finish())
}

#[derive(Default)]
struct Walk {
    seen: Dump,
    names: HashMap<(u64, u64), Vec<Vec<u8>>>,
}

impl Walk {
    fn directory(&mut self, directory: OwnedFd, path: &[u8]) -> Result<()> {
        let mut below = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name.to_bytes() == b"." || name.to_bytes() == b".." {
                continue;
            }
            let path = join(path, name.to_bytes());
            let context = || format!("look at {}", path.escape_ascii());
            let stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).with_context(context)?;
            let handle =
                rustix::fs::openat(&directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
                    .with_context(context)?;
            let mut seen = describe(&stat, xattrs_of(&handle).with_context(context)?);
            match FileType::from_raw_mode(stat.st_mode as RawMode) {
                FileType::RegularFile => seen.content = Some(hash(&directory, name).with_context(context)?),
                FileType::Symlink => seen.target = rustix::fs::readlinkat(&directory, name, Vec::new())?.into_bytes(),
                FileType::Directory => below.push((name.to_owned(), path.clone())),
                _ => {}
            }
            if seen.kind != 'd' {
                self.names.entry((stat.st_dev, stat.st_ino)).or_default().push(path.clone());
            }
            self.seen.insert(path, seen);
        }
        for (name, path) in below {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let child = rustix::fs::openat(&directory, &name, flags, Mode::empty())
                .with_context(|| format!("open {}", path.escape_ascii()))?;
            self.directory(child, &path)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Dump {
        for mut names in self.names.into_values().filter(|names| names.len() > 1) {
            names.sort();
            for name in &names {
                if let Some(seen) = self.seen.get_mut(name) {
                    seen.group.clone_from(&names[0]);
                }
            }
        }
        self.seen
    }
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

fn describe(stat: &Stat, xattrs: BTreeMap<Vec<u8>, Vec<u8>>) -> Seen {
    let kind = FileType::from_raw_mode(stat.st_mode as RawMode);
    let (letter, sized) = match kind {
        FileType::Directory => ('d', false),
        FileType::RegularFile => ('-', true),
        FileType::Symlink => ('l', true),
        FileType::CharacterDevice => ('c', false),
        FileType::BlockDevice => ('b', false),
        FileType::Fifo => ('p', false),
        _ => ('s', false),
    };
    let device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
    Seen {
        kind: letter,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: if sized { stat.st_size.unsigned_abs() } else { 0 },
        mtime: (stat.st_mtime, stat.st_mtime_nsec),
        target: Vec::new(),
        device: if device { stat.st_rdev } else { 0 },
        group: Vec::new(),
        nlink: if kind == FileType::Directory { 0 } else { stat.st_nlink },
        xattrs,
        content: None,
    }
}

/// Attributes of the inode behind a handle. `/proc/self/fd` leads to links and unreadable files too.
fn xattrs_of(handle: &impl AsFd) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let path = format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd());
    let mut names = vec![0; 64 << 10];
    let length = match rustix::fs::listxattr(&path, &mut names) {
        // Symbolic links opened as a path, and file systems without attributes.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::LOOP) => 0,
        other => other?,
    };
    let mut found = BTreeMap::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if !(name.starts_with(b"user.") || name == b"security.capability") {
            continue;
        }
        let mut value = vec![0; 64 << 10];
        let length = rustix::fs::getxattr(&path, CString::new(name)?.as_c_str(), &mut value)?;
        found.insert(name.to_vec(), value[..length].to_vec());
    }
    Ok(found)
}

fn hash(directory: &OwnedFd, name: &std::ffi::CStr) -> Result<Digest> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(directory, name, flags, Mode::empty())?);
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; 256 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finish()),
            length => hasher.update(&buffer[..length]),
        }
    }
}

/// A difference between two trees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The path.
    pub path: Vec<u8>,
    /// What differs: the name of the field, or `missing` or `extra`.
    pub field: &'static str,
    /// Both values.
    pub detail: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}: {}: {}", self.path.escape_ascii(), self.field, self.detail)
    }
}

/// All differences of `actual` from `expected`, in order of paths.
pub fn compare(expected: &Dump, actual: &Dump) -> Vec<Difference> {
    let mut differences = Vec::new();
    for (path, expected) in expected {
        match actual.get(path) {
            None => differences.push(Difference { path: path.clone(), field: "missing", detail: String::new() }),
            Some(actual) => compare_one(path, expected, actual, &mut differences),
        }
    }
    for path in actual.keys().filter(|path| !expected.contains_key(*path)) {
        differences.push(Difference { path: path.clone(), field: "extra", detail: String::new() });
    }
    differences
}

fn compare_one(path: &[u8], expected: &Seen, actual: &Seen, differences: &mut Vec<Difference>) {
    macro_rules! field {
        ($($name:ident),*) => {$(
            if expected.$name != actual.$name {
                let detail = format!("expected {:?}, got {:?}", expected.$name, actual.$name);
                differences.push(Difference { path: path.to_vec(), field: stringify!($name), detail });
            }
        )*};
    }
    field!(kind, mode, uid, gid, size, mtime, target, device, group, nlink, xattrs, content);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn two_equal_trees_do_not_differ_and_each_change_is_seen() {
        let make = || {
            let root = tempfile::tempdir().unwrap();
            std::fs::create_dir(root.path().join("d")).unwrap();
            std::fs::write(root.path().join("d/f"), b"content").unwrap();
            std::fs::hard_link(root.path().join("d/f"), root.path().join("g")).unwrap();
            symlink("d/f", root.path().join("l")).unwrap();
            root
        };
        let (one, two) = (make(), make());
        let untimed = |root: &Path| {
            let mut seen = dump(root).unwrap();
            seen.values_mut().for_each(|seen| seen.mtime = (0, 0));
            seen
        };
        let expected = untimed(one.path());
        assert_eq!(compare(&expected, &untimed(two.path())), []);
        assert_eq!(expected[b"g".as_slice()].group, b"d/f");

        std::fs::write(two.path().join("d/f"), b"CONTENT").unwrap();
        std::fs::remove_file(two.path().join("l")).unwrap();
        let fields: Vec<_> = compare(&expected, &untimed(two.path())).iter().map(|found| found.field).collect();
        assert_eq!(fields, ["content", "content", "missing"]);
    }
}
