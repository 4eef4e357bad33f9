//! The interface to the disk: every file operation of the store goes through [`Storage`], so that tests can fail or stop
//! each one of them.
//!
//! Invariant: the store calls no function of `std::fs` that touches the disk, besides reading what a [`Storage`] opened.
//! The trait knows files only, not their meaning.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::SystemTime;

/// Alignment of reads past the page cache: the largest block of the disks and file systems that tarpon supports.
pub const ALIGNMENT: usize = 4096;

/// How [`Storage::open`] opens a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The file must exist; for reading.
    Read,
    /// As [`Access::Read`], without side effects: the access time stays, and reads bypass the page cache where the file
    /// system supports that. Reads must then be aligned to [`ALIGNMENT`], in memory and in the file.
    ReadAside,
    /// The file must exist; for reading and writing.
    ReadWrite,
    /// As [`Access::ReadWrite`], and a missing file is created with these permissions, regardless of the umask.
    OpenOrCreate(u32),
    /// The file must not exist; it is created with these permissions, regardless of the umask.
    CreateNew(u32),
}

/// The result of [`Storage::metadata`]. Symbolic links are not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Length in bytes.
    pub size: u64,
    /// Bytes on the disk, which is less than `size` where there are holes.
    pub allocated: u64,
    /// Last change of the content, or the time set by [`Storage::set_modified`].
    pub modified: SystemTime,
    /// Last change of the content or of the metadata, in seconds and nanoseconds. No call can set it to a chosen time.
    pub changed: (i64, i64),
    /// Inode number.
    pub inode: u64,
    /// Device number of the file system.
    pub device: u64,
    /// Number of links; 0 for an unlinked file.
    pub links: u64,
}

impl Metadata {
    /// Whether both belong to the same file, as long as that is open.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// Space on the file system that contains a directory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Size of the file system.
    pub total: u64,
    /// Available to this process.
    pub available: u64,
}

/// File operations. All of them may block on the disk only; none of them retries.
pub trait Storage: Send + Sync + fmt::Debug + 'static {
    /// Opens or creates the file at `path`.
    fn open(&self, path: &Path, access: Access) -> io::Result<File>;

    /// Creates an unnamed file on the file system of `directory`, with these permissions regardless of the umask. It
    /// disappears with its last descriptor, unless [`Storage::link_file`] names it.
    fn open_unnamed(&self, directory: &Path, mode: u32) -> io::Result<File>;

    /// Gives an unnamed file its name. Fails if the name is taken.
    fn link_file(&self, file: &File, to: &Path) -> io::Result<()>;

    /// Gives a file a second name. Fails if the name is taken.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Renames, replacing an existing target.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a name of a file.
    fn unlink(&self, path: &Path) -> io::Result<()>;

    /// Creates a directory with these permissions, regardless of the umask.
    fn create_dir(&self, path: &Path, mode: u32) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// The names in a directory, unordered.
    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>>;

    /// Metadata of `path`.
    fn metadata(&self, path: &Path) -> io::Result<Metadata>;

    /// Metadata of these paths below a directory, in their order; `None` for a missing one. Cheaper than single calls:
    /// the path of the directory is resolved once.
    fn metadata_in(&self, directory: &Path, names: &[String]) -> io::Result<Vec<Option<Metadata>>>;

    /// Metadata of an open file.
    fn file_metadata(&self, file: &File) -> io::Result<Metadata>;

    /// Reads at most `buffer.len()` bytes at `offset`; 0 at the end of the file.
    fn read_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes at most `bytes.len()` bytes at `offset`.
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Truncates or extends (with a hole) the file.
    fn set_len(&self, file: &File, size: u64) -> io::Result<()>;

    /// Sets the permissions of an open file.
    fn set_mode(&self, file: &File, mode: u32) -> io::Result<()>;

    /// Sets the modification time; `None` is now, to the nanosecond: a time that no write produces where writes have that
    /// of a tick.
    fn set_modified(&self, path: &Path, time: Option<SystemTime>) -> io::Result<()>;

    /// As [`Storage::set_modified`], of an open file, to now.
    fn touch(&self, file: &File) -> io::Result<()>;

    /// Whether each change of the file after a read of its metadata gets a distinct time. Otherwise changes within a tick
    /// of the kernel's clock share one time.
    fn has_exact_times(&self, file: &File) -> bool;

    /// Offset of the first data at or after `offset`; `None` if there is only a hole up to the end.
    fn next_data(&self, file: &File, offset: u64) -> io::Result<Option<u64>>;

    /// Waits until the content of one file or directory is on the disk.
    fn sync(&self, file: &File) -> io::Result<()>;

    /// Waits until everything on the file system of `file` is on the disk.
    fn sync_filesystem(&self, file: &File) -> io::Result<()>;

    /// Space on the file system of `directory`.
    fn space(&self, directory: &Path) -> io::Result<Space>;

    /// Locks the file for the life of its descriptor. Never waits: `Ok(false)` if another holder has the lock.
    fn lock(&self, file: &File, exclusive: bool) -> io::Result<bool>;

    /// The boot id of the kernel: a different one means that unsynced data may be lost.
    fn boot_id(&self) -> io::Result<String>;
}
