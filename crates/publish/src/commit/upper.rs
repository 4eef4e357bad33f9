//! [`Walk`]: an upper directory, entry by entry, in the order and the terms of a layer.
//!
//! The directory is untrusted, and a container may still write to it. So every name is looked up in the directory that is already open and
//! never by its whole path, links are not followed, and a file's attributes are read from the file that was opened. The descent uses a
//! stack and no recursion.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use tarpon_layer::tar::TarKind;
use tarpon_layer::{Attributes, Device, Timestamp};
use tarpon_oci::limits;

use super::marks::{Marks, Whose};
use tarpon_containers::LeftOut;

/// Prefix of the name of an entry that removes another one.
const WHITEOUT: &[u8] = b".wh.";
/// Hides the content that the layers below have in its directory.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Default mode of the root, for which no entry is needed.
const ROOT_MODE: u16 = 0o755;

/// Seconds and nanoseconds since 1970.
pub(super) type Moment = (i64, u32);

/// Why an upper directory cannot be a layer.
#[derive(Debug, thiserror::Error)]
#[error("/{}: {why}", .path.escape_ascii())]
pub(super) struct UpperError {
    /// Relative to the upper directory; empty for itself.
    path: Vec<u8>,
    why: String,
}

impl UpperError {
    pub(super) fn changed(path: &[u8]) -> Self {
        Self { path: path.to_vec(), why: "it became shorter while it was read".to_owned() }
    }

    pub(super) fn unreadable(path: &[u8], error: &std::io::Error) -> Self {
        failed(path, "read it", error)
    }
}

/// An entry of the layer.
#[derive(Debug)]
pub(super) struct Entry {
    /// As in tars: a directory ends with a slash.
    pub(super) name: Vec<u8>,
    pub(super) kind: TarKind,
    /// Target of a link.
    pub(super) link: Vec<u8>,
    pub(super) attributes: Attributes,
    /// Size of a file, whose content follows.
    pub(super) size: u64,
    pub(super) content: Option<File>,
}

/// What the walk found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Sockets, which a layer cannot hold.
    pub(super) sockets: u64,
    /// Files with access control lists, which a layer cannot hold.
    pub(super) acls: u64,
    /// Whether there is no sign that this user mounted it, so that marks of root are not visible here.
    pub(super) is_blind: bool,
}

pub(super) struct Walk {
    /// The upper directory: its path when it was opened, and its identity. While it is open, no other directory gets that identity.
    path: PathBuf,
    root: OwnedFd,
    /// Directories that are being walked, the innermost last.
    open: Vec<Directory>,
    left_out: LeftOut,
    whose: Whose,
    /// Files are no newer than this.
    newest: Option<i64>,
    /// The first name of each file with several.
    linked: HashMap<(u64, u64), Vec<u8>>,
    /// Entries of the layer that a name produces besides its own.
    ahead: Option<Entry>,
    tally: Tally,
}

struct Directory {
    path: Vec<u8>,
    directory: OwnedFd,
    /// Remaining names, the next one last.
    names: Vec<OsString>,
}

/// A name that was looked up.
struct FoundEntry {
    path: Vec<u8>,
    file: OwnedFd,
    stat: Stat,
}

impl Walk {
    /// Begins with the upper directory at `path`. No time in the layer is newer than `newest`, in seconds since 1970.
    pub(super) fn new(path: &Path, left_out: LeftOut, newest: Option<i64>) -> Result<Self, UpperError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|error| failed(b"", "open it", error))?;
        let found = FoundEntry::of(Vec::new(), file)?;
        let root = found.file.try_clone().map_err(|error| found.failed("open it", error))?;
        let mut walk = Self {
            path: path.to_owned(),
            root,
            open: Vec::new(),
            left_out,
            whose: Whose::here(),
            newest,
            linked: HashMap::new(),
            ahead: None,
            tally: Tally::default(),
        };
        walk.ahead = walk.root(found)?;
        Ok(walk)
    }

    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    /// The next entry; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, UpperError> {
        loop {
            if let Some(entry) = self.ahead.take() {
                return Ok(Some(entry));
            }
            let Some(innermost) = self.open.last_mut() else { return self.check_there().map(|()| None) };
            let Some(name) = innermost.names.pop() else {
                self.open.pop();
                continue;
            };
            let Some(found) = innermost.find(&name)? else { continue };
            if let Some(entry) = self.entry(name.as_bytes(), found)? {
                return Ok(Some(entry));
            }
        }
    }

    /// Checks that the upper directory still exists. Names that vanished were left out; if all of it was being removed, the result is no
    /// layer.
    fn check_there(&self) -> Result<(), UpperError> {
        let inode = |stat: Stat| (stat.st_dev, stat.st_ino);
        let walked = rustix::fs::fstat(&self.root).map_err(|error| failed(b"", "look at it", error))?;
        match rustix::fs::stat(&self.path) {
            Ok(now) if inode(now) == inode(walked) => Ok(()),
            Ok(_) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {
                Err(UpperError { path: Vec::new(), why: "it was removed while it was read".to_owned() })
            }
            Err(error) => Err(failed(b"", "look at it", error)),
        }
    }

    /// The upper directory itself: an entry only if its defaults were changed. Overlayfs ignores whether it is opaque.
    fn root(&mut self, found: FoundEntry) -> Result<Option<Entry>, UpperError> {
        let marks = found.marks(self.whose)?;
        self.tally.is_blind = self.whose == Whose::User && !marks.is_marked;
        let entry = self.described(&found, b"./".to_vec(), TarKind::Directory, marks);
        let Attributes { mode, uid, gid, xattrs, .. } = &entry.attributes;
        let is_usual = (*mode, *uid, *gid) == (ROOT_MODE, 0, 0) && xattrs.is_empty();
        let directory = found.list()?;
        self.open.push(directory);
        Ok((!is_usual).then_some(entry))
    }

    /// The entry for a name.
    fn entry(&mut self, name: &[u8], found: FoundEntry) -> Result<Option<Entry>, UpperError> {
        if self.left_out.volumes.contains(&found.path) {
            return Ok(None);
        }
        if name.starts_with(WHITEOUT) {
            let why = "a name that begins with .wh. means a removal in a layer, and can be no file of its own";
            return Err(found.refused(why));
        }
        let kind = FileType::from_raw_mode(found.stat.st_mode);
        let device = device(&found.stat);
        if kind == FileType::CharacterDevice && (device.major, device.minor) == (0, 0) {
            return Ok(Some(whiteout(&found.path, name)));
        }
        if kind == FileType::Socket {
            self.tally.sockets += 1;
            return Ok(None);
        }
        let marks = found.marks(self.whose)?;
        self.tally.acls += u64::from(marks.has_acl);
        match kind {
            FileType::Directory => self.directory(found, marks),
            FileType::RegularFile if marks.is_whiteout && found.stat.st_size == 0 => {
                Ok(Some(whiteout(&found.path, name)))
            }
            FileType::RegularFile => self.file(&found, marks),
            FileType::Symlink => self.other(&found, TarKind::Symlink, marks).map(Some),
            FileType::CharacterDevice => self.other(&found, TarKind::CharDevice(device), marks).map(Some),
            FileType::BlockDevice => self.other(&found, TarKind::BlockDevice(device), marks).map(Some),
            FileType::Fifo => self.other(&found, TarKind::Fifo, marks).map(Some),
            _ => Err(found.refused("its file type is unknown")),
        }
    }

    fn directory(&mut self, found: FoundEntry, marks: Marks) -> Result<Option<Entry>, UpperError> {
        if self.open.len() > limits::PATH_DEPTH {
            return Err(found.refused("directories lie in each other more deeply than an image may have them"));
        }
        let is_opaque = marks.is_opaque;
        let entry = self.described(&found, [&found.path[..], b"/"].concat(), TarKind::Directory, marks);
        let is_mount_point = self.left_out.mount_points.contains(&found.path);
        let directory = found.list()?;
        if is_mount_point && directory.names.is_empty() && !is_opaque {
            return Ok(None);
        }
        if is_opaque {
            self.ahead = Some(removal([&directory.path[..], b"/", OPAQUE].concat()));
        }
        self.open.push(directory);
        Ok(Some(entry))
    }

    fn file(&mut self, found: &FoundEntry, marks: Marks) -> Result<Option<Entry>, UpperError> {
        if found.stat.st_size == 0 && self.left_out.mount_points.contains(&found.path) {
            return Ok(None);
        }
        if let Some(entry) = self.link(found, &marks) {
            return Ok(Some(entry));
        }
        let content = found.open(OFlags::RDONLY).map_err(|error| found.failed("open it", error))?;
        // The size of the open file, in case it grows.
        let stat = rustix::fs::fstat(&content).map_err(|error| found.failed("look at it", error))?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let entry = self.described(found, found.path.clone(), TarKind::File, marks);
        Ok(Some(Entry { size, content: Some(content.into()), ..entry }))
    }

    fn other(&mut self, found: &FoundEntry, kind: TarKind, marks: Marks) -> Result<Entry, UpperError> {
        if let Some(entry) = self.link(found, &marks) {
            return Ok(entry);
        }
        let mut entry = self.described(found, found.path.clone(), kind, marks);
        if kind == TarKind::Symlink {
            let target = rustix::fs::readlinkat(&found.file, "", Vec::new());
            entry.link = target.map_err(|error| found.failed("read the link", error))?.into_bytes();
        }
        Ok(entry)
    }

    /// Another name of a file that was already seen. The first name is recorded. Its attributes are repeated: Podman and Docker set the
    /// file's owner again for each name, and Linux then drops its capabilities.
    fn link(&mut self, found: &FoundEntry, marks: &Marks) -> Option<Entry> {
        if found.stat.st_nlink < 2 {
            return None;
        }
        let inode = (found.stat.st_dev, found.stat.st_ino);
        match self.linked.get(&inode) {
            None => {
                self.linked.insert(inode, found.path.clone());
                None
            }
            Some(first) => {
                let link = first.clone();
                let marks = Marks { xattrs: marks.xattrs.clone(), ..Marks::default() };
                let entry = self.described(found, found.path.clone(), TarKind::HardLink, marks);
                Some(Entry { link, ..entry })
            }
        }
    }

    fn described(&self, found: &FoundEntry, name: Vec<u8>, kind: TarKind, marks: Marks) -> Entry {
        let mtime = Timestamp {
            seconds: found.stat.st_mtime,
            nanoseconds: u32::try_from(found.stat.st_mtime_nsec).unwrap_or(0),
        };
        let newest = self.newest.map(|seconds| Timestamp { seconds, nanoseconds: 0 });
        let attributes = Attributes {
            mode: u16::try_from(found.stat.st_mode & 0o7777).unwrap_or(0),
            uid: found.stat.st_uid,
            gid: found.stat.st_gid,
            mtime: newest.map_or(mtime, |newest| mtime.min(newest)),
            xattrs: marks.xattrs,
        };
        Entry { name, kind, link: Vec::new(), attributes, size: 0, content: None }
    }
}

impl Directory {
    /// Looks a name up; `None` if it was removed meanwhile.
    fn find(&self, name: &OsStr) -> Result<Option<FoundEntry>, UpperError> {
        let path = match self.path.is_empty() {
            true => name.as_bytes().to_vec(),
            false => [&self.path[..], b"/", name.as_bytes()].concat(),
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.directory, name, flags, Mode::empty()) {
            Ok(file) => FoundEntry::of(path, file).map(Some),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(failed(&path, "open it", error)),
        }
    }
}

impl FoundEntry {
    fn of(path: Vec<u8>, file: OwnedFd) -> Result<Self, UpperError> {
        let stat = rustix::fs::fstat(&file).map_err(|error| failed(&path, "look at it", error))?;
        Ok(Self { path, file, stat })
    }

    fn marks(&self, whose: Whose) -> Result<Marks, UpperError> {
        Marks::of(&self.file, whose).map_err(|why| self.refused(&why))
    }

    /// Reopens the file for reading its content or attributes.
    fn open(&self, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        reopened(self.file.as_fd(), flags)
    }

    /// Lists the directory's names, to be walked in order.
    fn list(self) -> Result<Directory, UpperError> {
        let directory = self.open(OFlags::RDONLY | OFlags::DIRECTORY).map_err(|error| self.failed("open it", error))?;
        let list = || -> rustix::io::Result<Vec<OsString>> {
            let mut names = Vec::new();
            for entry in rustix::fs::Dir::read_from(&directory)? {
                let name = entry?.file_name().to_bytes().to_vec();
                if name != b"." && name != b".." {
                    names.push(OsString::from_vec(name));
                }
            }
            Ok(names)
        };
        let mut names = list().map_err(|error| self.failed("list it", error))?;
        names.sort_unstable_by(|one, other| other.cmp(one));
        Ok(Directory { path: self.path, directory, names })
    }

    fn changed(&self) -> Moment {
        (self.stat.st_ctime, u32::try_from(self.stat.st_ctime_nsec).unwrap_or(0))
    }

    fn refused(&self, why: &str) -> UpperError {
        UpperError { path: self.path.clone(), why: why.to_owned() }
    }

    fn failed(&self, doing: &str, error: impl std::fmt::Display) -> UpperError {
        failed(&self.path, doing, error)
    }
}

/// The first path below `root` whose inode changed at `since` or later; empty for `root` itself. The parts of `left_out` that are excluded
/// with everything in them are not checked.
pub(super) fn newest_change(root: &Path, left_out: &LeftOut, since: Moment) -> Result<Option<Vec<u8>>, UpperError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, root, flags, Mode::empty()).map_err(|error| failed(b"", "open it", error))?;
    let mut found = Some(FoundEntry::of(Vec::new(), root)?);
    let mut open: Vec<Directory> = Vec::new();
    loop {
        if let Some(found) = found.take().filter(|found| !left_out.volumes.contains(&found.path)) {
            if found.changed() >= since {
                return Ok(Some(found.path));
            }
            if FileType::from_raw_mode(found.stat.st_mode) == FileType::Directory {
                open.push(found.list()?);
            }
        }
        let Some(innermost) = open.last_mut() else { return Ok(None) };
        match innermost.names.pop() {
            None => drop(open.pop()),
            Some(name) => found = innermost.find(&name)?,
        }
    }
}

/// Opens the same file again, whatever its name refers to by now.
fn reopened(file: BorrowedFd<'_>, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty())
}

fn failed(path: &[u8], doing: &str, error: impl std::fmt::Display) -> UpperError {
    UpperError { path: path.to_vec(), why: format!("cannot {doing}: {error}") }
}

fn device(stat: &Stat) -> Device {
    Device { major: rustix::fs::major(stat.st_rdev), minor: rustix::fs::minor(stat.st_rdev) }
}

/// The entry that removes the name at `path`, whose last part is `name`.
fn whiteout(path: &[u8], name: &[u8]) -> Entry {
    let directory = &path[..path.len() - name.len()];
    removal([directory, WHITEOUT, name].concat())
}

/// Owner and time of a removed entry do not matter.
fn removal(name: Vec<u8>) -> Entry {
    let attributes = Attributes { mode: 0o600, ..Attributes::default() };
    Entry { name, kind: TarKind::File, link: Vec::new(), attributes, size: 0, content: None }
}
