//! The table of mounts of this mount namespace (`/proc/self/mountinfo`): reading it and waiting for changes.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::mount::MountAttrFlags;

use crate::kernel::Context;

/// Path of the table.
const TABLE: &str = "/proc/self/mountinfo";

/// Source name of every mount by tarpon; a colon and the folder of its store follow, where they fit.
pub(crate) const SOURCE: &str = "tarpon";
/// Longest source that the kernel accepts, without the terminating NUL.
const SOURCE_BYTES: usize = 255;

/// The source name of the mounts of this store.
pub(crate) fn source_of(store: &Path) -> OsString {
    let mut source = OsString::from(format!("{SOURCE}:"));
    source.push(store);
    if source.len() > SOURCE_BYTES { SOURCE.into() } else { source }
}
/// Subtype of its FUSE mounts.
pub(crate) const SUBTYPE: &str = "tarpon";

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableEntry {
    /// Id of the mount while it exists; may be reused later.
    pub id: u64,
    /// The mount that this one is attached to.
    pub parent: u64,
    /// Major and minor number of the file system, equal for all mounts of it.
    pub(crate) device: (u32, u32),
    /// The directory of the file system that is mounted.
    pub(crate) root: PathBuf,
    /// Peer group of the mount: its members send each other mount and unmount events.
    pub(crate) shared: Option<u64>,
    /// The peer group from which the mount only receives events.
    pub(crate) master: Option<u64>,
    /// Mount point.
    pub mountpoint: PathBuf,
    /// Type of the file system: `overlay`, `fuse.tarpon`.
    pub kind: String,
    /// Source of the mount: `tarpon` for ours.
    pub source: OsString,
    /// Options of the file system, as the kernel prints them: separated by commas, special characters escaped.
    options: Vec<u8>,
}

impl TableEntry {
    /// Whether tarpon made it.
    pub fn is_ours(&self) -> bool {
        (self.source == SOURCE || self.store().is_some())
            && matches!(self.kind.as_str(), "overlay" | "fuse.tarpon" | "fuse" | "erofs")
    }

    /// The folder of the mount's store, if the source names it.
    pub fn store(&self) -> Option<&Path> {
        let store = self.source.as_bytes().strip_prefix(SOURCE.as_bytes())?.strip_prefix(b":")?;
        Some(Path::new(OsStr::from_bytes(store))).filter(|store| store.is_absolute())
    }

    /// The upper directory of an overlay.
    pub(crate) fn upper(&self) -> Option<PathBuf> {
        let mut options = self.options.split(|byte| *byte == b',');
        let value = options.find_map(|option| option.strip_prefix(b"upperdir="))?;
        Some(OsString::from_vec(unescape(value)).into())
    }

    /// The lower directories of an overlay, as they were named.
    pub(crate) fn lower(&self) -> Vec<PathBuf> {
        if self.kind != "overlay" {
            return Vec::new();
        }
        let options = self.options.split(|byte| *byte == b',');
        let lists = options
            .filter_map(|option| option.strip_prefix(b"lowerdir=").or_else(|| option.strip_prefix(b"lowerdir+=")));
        let layers = lists.flat_map(|list| list.split(|byte| *byte == b':'));
        layers.map(|layer| PathBuf::from(OsString::from_vec(unescape(layer)))).collect()
    }

    /// Whether this mount is attached to `below` and hides it.
    pub(crate) fn covers(&self, below: &Self) -> bool {
        self.parent == below.id && self.mountpoint == below.mountpoint
    }
}

/// All mounts, in order of creation.
pub fn mounts() -> io::Result<Vec<TableEntry>> {
    let mut table = Vec::new();
    open()?.read_to_end(&mut table)?;
    Ok(parse(&table))
}

/// The topmost mount exactly at `path`, which must be absolute and free of symbolic links.
pub fn mount_at(path: &Path) -> io::Result<Option<TableEntry>> {
    let mut here: Vec<_> = mounts()?.into_iter().filter(|entry| entry.mountpoint == path).collect();
    // Not the last one: the table is in order of creation, not of attachment.
    let top = here.iter().rposition(|entry| !here.iter().any(|other| other.covers(entry)));
    Ok(top.map(|top| here.swap_remove(top)))
}

/// The first mount on `below` or in it, if any: unmounting `below` would take it along.
pub(crate) fn above<'t>(table: &'t [TableEntry], below: &TableEntry) -> Option<&'t TableEntry> {
    table.iter().find(|entry| entry.parent == below.id && entry.id != below.id)
}

/// Opens the table. If `/proc` is hidden or not mounted, opens it through a detached mount of its own.
fn open() -> io::Result<File> {
    match File::open(TABLE) {
        Ok(table) if rustix::fs::fstatfs(&table)?.f_type == rustix::fs::PROC_SUPER_MAGIC => Ok(table),
        other => match Context::open("proc").and_then(|proc| proc.mount(MountAttrFlags::empty())) {
            Ok(proc) => {
                let path = TABLE.trim_start_matches("/proc/");
                Ok(rustix::fs::openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?.into())
            }
            Err(error) => Err(other.err().unwrap_or_else(|| io::Error::other(error.to_string()))),
        },
    }
}

/// Id of the mount that `mount` is open on.
pub(crate) fn mount_id(mount: BorrowedFd<'_>) -> io::Result<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(mount, "", flags, StatxFlags::MNT_ID)?;
    match StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID) {
        true => Ok(found.stx_mnt_id),
        false => Err(io::Error::other("the kernel does not report mount ids (statx)")),
    }
}

/// `STATX_MNT_ID_UNIQUE`, since kernel 6.8; the library has no name for it yet.
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// Unique id of the topmost mount at `path`, never reused; `None` on kernels without such ids. Sends no request to a server.
pub(crate) fn unique_id_in(directory: BorrowedFd<'_>, path: &Path) -> Option<u64> {
    unique_id(directory, path, AtFlags::SYMLINK_NOFOLLOW)
}

/// The same for the mount that `mount` is open on.
pub(crate) fn unique_id_of(mount: BorrowedFd<'_>) -> Option<u64> {
    unique_id(mount, Path::new(""), AtFlags::EMPTY_PATH)
}

fn unique_id(directory: BorrowedFd<'_>, path: &Path, flags: AtFlags) -> Option<u64> {
    let flags = flags | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(directory, path, flags, UNIQUE).ok()?;
    (found.stx_mask & UNIQUE.bits() != 0).then_some(found.stx_mnt_id)
}

pub(crate) fn parse(table: &[u8]) -> Vec<TableEntry> {
    table.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /mount/point options [optional …] - type source superoptions`
fn parse_line(line: &[u8]) -> Option<TableEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
    let (id, parent) = (number()?, number()?);
    let device = std::str::from_utf8(fields.next()?).ok()?.split_once(':')?;
    let device = (device.0.parse().ok()?, device.1.parse().ok()?);
    let mut path = || Some(PathBuf::from(OsString::from_vec(unescape(fields.next()?))));
    let (root, mountpoint) = (path()?, path()?);
    let (mut shared, mut master) = (None, None);
    for field in fields.by_ref().skip(1).take_while(|field| *field != b"-") {
        let field = str::from_utf8(field).ok()?;
        shared = field.strip_prefix("shared:").and_then(|group| group.parse().ok()).or(shared);
        master = field.strip_prefix("master:").and_then(|group| group.parse().ok()).or(master);
    }
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = OsString::from_vec(unescape(fields.next()?));
    let options = fields.next().unwrap_or_default().to_vec();
    Some(TableEntry { id, parent, device, root, shared, master, mountpoint, kind, source, options })
}

/// Decodes space, tab, newline and backslash, and the comma of an option, which the kernel writes as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if byte == b'\\' => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                plain.push(byte);
                rest = tail;
            }
        }
    }
    plain
}

/// Waits for changes of the table.
pub(crate) struct Changes(File);

impl Changes {
    /// Watches for changes from now on.
    pub(crate) fn watch() -> io::Result<Self> {
        open().map(Self)
    }

    /// Returns the current table; the next [`Changes::wait`] wakes up for changes after this.
    pub(crate) fn read(&mut self) -> io::Result<Vec<TableEntry>> {
        let mut table = Vec::new();
        self.0.rewind()?;
        self.0.read_to_end(&mut table)?;
        Ok(parse(&table))
    }

    /// Blocks until the table changes or `timeout` is over.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Timespec { tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: 0 };
        match rustix::event::poll(&mut [PollFd::new(&self.0, PollFlags::PRI)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_optional_fields_and_escapes_are_read() {
        let table = b"22 27 0:21 / /proc rw,relatime - proc proc rw\n\
            47 27 0:40 / /mnt/a\\040b\\134 ro,nodev shared:4 master:2 - overlay tarpon ro,lowerdir+=/\n\
            bad line\n";
        let entries = parse(table);
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[1].id, 47);
        assert_eq!(entries[1].mountpoint, Path::new("/mnt/a b\\"));
        assert!(entries[1].is_ours());
        assert!(!entries[0].is_ours());
    }

    #[test]
    fn the_store_of_a_mount_is_in_its_source_unless_it_is_too_long() {
        let table =
            b"47 27 0:40 / /mnt ro - fuse.tarpon tarpon:/a\\040b ro\n48 27 0:41 / /old ro - overlay tarpon ro\n\
            49 27 0:42 / /odd ro - overlay tarpon:relative ro\n50 27 0:43 / /other ro - tmpfs tarpon:/a ro\n";
        let entries = parse(table);
        let stores: Vec<_> = entries.iter().map(|entry| (entry.is_ours(), entry.store())).collect();
        let (first, last) = (Path::new("/a b"), Path::new("/a"));
        assert_eq!(stores, [(true, Some(first)), (true, None), (false, None), (false, Some(last))]);
        assert_eq!(source_of(first), "tarpon:/a b");
        assert_eq!(source_of(&Path::new("/").join("x".repeat(250))), "tarpon");
    }

    #[test]
    fn an_upper_with_odd_characters_is_read_as_it_is() {
        let table =
            b"47 27 0:40 / /mnt rw - overlay tarpon rw,lowerdir+=/upperdir=no,upperdir=/a\\040b\\054c/\\134d,work=x\n";
        assert_eq!(parse(table)[0].upper().unwrap(), Path::new("/a b,c/\\d"));
        assert_eq!(parse(b"47 27 0:40 / /mnt rw - overlay tarpon rw,lowerdir=/upper\n")[0].upper(), None);
    }

    #[test]
    fn a_mount_covers_the_one_that_it_is_attached_to_at_the_same_place() {
        let table = b"1 0 0:1 / / rw - ext4 disk rw\n2 1 0:2 / /mnt rw - overlay tarpon rw\n\
            3 2 0:3 / /mnt rw - tmpfs tmpfs rw\n4 2 0:4 / /mnt/tmp rw - tmpfs tmpfs rw\n";
        let entries = parse(table);
        let covering =
            |below: &TableEntry| entries.iter().filter(|entry| entry.covers(below)).map(|entry| entry.id).collect();
        let (mount, over): (Vec<u64>, Vec<u64>) = (covering(&entries[1]), covering(&entries[2]));
        assert_eq!(mount, [3]);
        assert_eq!(over, [0; 0]);
        assert_eq!(above(&entries[2..], &entries[1]).map(|entry| entry.id), Some(3));
    }

    #[test]
    fn this_process_has_a_root_mount() {
        assert!(mount_at(Path::new("/")).unwrap().is_some());
        assert_eq!(mount_at(Path::new("/no/such/mount")).unwrap(), None);
    }
}
