//! The seam to the disk: every file operation of the store goes through [`Storage`], so that tests can fail or stop
//! each one of them.
//!
//! Invariant: the store calls no function of `std::fs` that touches the disk, besides reading what a [`Storage`]
//! opened. The trait knows files only; what they mean is said elsewhere.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::SystemTime;

/// Alignment of reads that go past the page cache: the largest block of the disks and file systems that tarpon meets.
pub const ALIGNMENT: usize = 4096;

/// How [`Storage::open`] opens a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The file must be there; for reading.
    Read,
    /// As [`Access::Read`], without a trace: the time of the last access stays, and what is read goes past the page cache where the
    /// file system can do that. Reads must then be aligned to [`ALIGNMENT`], in memory and in the file.
    ReadAside,
    /// The file must be there; for reading and writing.
    ReadWrite,
    /// As [`Access::ReadWrite`], and an absent file is created with these permissions, whatever the umask is.
    OpenOrCreate(u32),
    /// The file must not be there; it is created with these permissions, whatever the umask is.
    CreateNew(u32),
}

/// What [`Storage::metadata`] tells of a path. Symbolic links are not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Length in bytes.
    pub size: u64,
    /// Bytes on the disk, which is less than `size` where there are holes.
    pub allocated: u64,
    /// Last change of the content, or what [`Storage::set_modified`] made of it.
    pub modified: SystemTime,
    /// Last change of the content or of the metadata, in seconds and nanoseconds. No call sets it to a chosen time.
    pub changed: (i64, i64),
    /// Number of the inode.
    pub inode: u64,
    /// Number of the file system that has the inode.
    pub device: u64,
    /// Number of names; 0 for a file that was unlinked.
    pub links: u64,
}

impl Metadata {
    /// Whether both are of one file, as long as somebody has that open.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// Room on the file system that holds a directory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Size of the file system.
    pub total: u64,
    /// Free to this process.
    pub available: u64,
}

/// File operations. All of them may block on the disk and nothing else; none of them retries.
pub trait Storage: Send + Sync + fmt::Debug + 'static {
    /// Opens or creates the file at `path`.
    fn open(&self, path: &Path, access: Access) -> io::Result<File>;

    /// A file without a name on the file system of `directory`, with these permissions whatever the umask is. It
    /// vanishes with its last descriptor, unless [`Storage::link_file`] names it.
    fn open_unnamed(&self, directory: &Path, mode: u32) -> io::Result<File>;

    /// Gives an unnamed file its name. Fails if the name is taken.
    fn link_file(&self, file: &File, to: &Path) -> io::Result<()>;

    /// Gives a file a second name. Fails if the name is taken.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Renames, replacing what was there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a name of a file.
    fn unlink(&self, path: &Path) -> io::Result<()>;

    /// Creates a directory with these permissions, whatever the umask is.
    fn create_dir(&self, path: &Path, mode: u32) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// The names in a directory, in no order.
    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>>;

    /// What is known of `path`.
    fn metadata(&self, path: &Path) -> io::Result<Metadata>;

    /// What is known of these paths below a directory, in their order; `None` for one that is not there. Cheaper than one whole path after
    /// the other: the way to the directory is resolved once.
    fn metadata_in(&self, directory: &Path, names: &[String]) -> io::Result<Vec<Option<Metadata>>>;

    /// What is known of an open file.
    fn file_metadata(&self, file: &File) -> io::Result<Metadata>;

    /// Reads at most `buffer.len()` bytes at `offset`; 0 at the end of the file.
    fn read_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes at most `bytes.len()` bytes at `offset`.
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Cuts or extends (with a hole) the file.
    fn set_len(&self, file: &File, size: u64) -> io::Result<()>;

    /// Sets the permissions of an open file.
    fn set_mode(&self, file: &File, mode: u32) -> io::Result<()>;

    /// Sets the time of the last change; `None` is now, to the nanosecond: a time that no write leaves where they have that of a tick.
    fn set_modified(&self, path: &Path, time: Option<SystemTime>) -> io::Result<()>;

    /// As [`Storage::set_modified`], of an open file, to now.
    fn touch(&self, file: &File) -> io::Result<()>;

    /// Whether each change of the file that follows a look at its metadata gets a time of its own. Else changes within a tick of the
    /// kernel's clock have the same time.
    fn has_exact_times(&self, file: &File) -> bool;

    /// The first data at or after `offset`; `None` if there is only a hole up to the end.
    fn next_data(&self, file: &File, offset: u64) -> io::Result<Option<u64>>;

    /// Waits until the content of one file or directory is on the disk.
    fn sync(&self, file: &File) -> io::Result<()>;

    /// Waits until everything on the file system of `file` is on the disk.
    fn sync_filesystem(&self, file: &File) -> io::Result<()>;

    /// Room on the file system of `directory`.
    fn space(&self, directory: &Path) -> io::Result<Space>;

    /// Locks the file for the life of its descriptor. Never waits: `Ok(false)` if another holder is in the way.
    fn lock(&self, file: &File, exclusive: bool) -> io::Result<bool>;

    /// Names the run of the kernel: another one means that unsynced data may be lost.
    fn boot_id(&self) -> io::Result<String>;
}
