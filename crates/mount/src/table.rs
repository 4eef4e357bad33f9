//! The table of mounts of this mount namespace (`/proc/self/mountinfo`): who is mounted where, and waiting for changes.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

/// Source name of every mount that tarpon makes.
pub(crate) const SOURCE: &str = "tarpon";
/// Subtype of its FUSE mounts.
pub(crate) const SUBTYPE: &str = "tarpon";

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableEntry {
    /// Names the mount as long as it exists; may be used again later.
    pub id: u64,
    /// Where it is.
    pub mountpoint: PathBuf,
    /// Type of the file system: `overlay`, `fuse.tarpon`.
    pub kind: String,
    /// What was mounted: `tarpon` for ours.
    pub source: OsString,
    /// Options of the file system, as the kernel prints them.
    pub options: String,
}

impl TableEntry {
    /// Whether tarpon made it.
    pub fn is_ours(&self) -> bool {
        self.source == SOURCE && matches!(self.kind.as_str(), "overlay" | "fuse.tarpon" | "fuse" | "erofs")
    }
}

/// All mounts, in the order in which they were made.
pub fn mounts() -> io::Result<Vec<TableEntry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// The topmost mount exactly at `path`, which must be absolute and free of symbolic links.
pub fn mount_at(path: &Path) -> io::Result<Option<TableEntry>> {
    Ok(mounts()?.into_iter().rfind(|entry| entry.mountpoint == path))
}

/// The id of the mount that `mount` is open on.
pub(crate) fn mount_id(mount: BorrowedFd<'_>) -> io::Result<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", mount.as_raw_fd()))?;
    info.lines()
        .find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
        .ok_or_else(|| io::Error::other("/proc/self/fdinfo has no mnt_id"))
}

fn parse(table: &[u8]) -> Vec<TableEntry> {
    table.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /mount/point options [optional …] - type source superoptions`
fn parse_line(line: &[u8]) -> Option<TableEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let mountpoint = unescape(fields.nth(3)?);
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = OsString::from_vec(unescape(fields.next()?));
    let options = String::from_utf8_lossy(fields.next().unwrap_or_default()).into_owned();
    Some(TableEntry { id, mountpoint: PathBuf::from(OsString::from_vec(mountpoint)), kind, source, options })
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
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
    /// Changes from now on.
    pub(crate) fn watch() -> io::Result<Self> {
        File::open("/proc/self/mountinfo").map(Self)
    }

    /// The table as it is now; the next [`Changes::wait`] wakes up for what changes after this.
    pub(crate) fn read(&mut self) -> io::Result<Vec<TableEntry>> {
        let mut table = Vec::new();
        self.0.rewind()?;
        self.0.read_to_end(&mut table)?;
        Ok(parse(&table))
    }

    /// Blocks until the table changes or `patience` is over.
    pub(crate) fn wait(&self, patience: Duration) -> io::Result<()> {
        let timeout = Timespec { tv_sec: patience.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: 0 };
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
    fn this_process_has_a_root_mount() {
        assert!(mount_at(Path::new("/")).unwrap().is_some());
        assert_eq!(mount_at(Path::new("/no/such/mount")).unwrap(), None);
    }
}
