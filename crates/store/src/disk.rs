//! [`Storage`] on the real disk.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    Advice, AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, UTIME_OMIT,
};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::storage::{Access, Metadata, Space, Storage};

/// The real disk.
#[derive(Debug, Clone, Copy, Default)]
pub struct Disk;

impl Storage for Disk {
    fn open(&self, path: &Path, access: Access) -> io::Result<File> {
        let (flags, mode) = match access {
            Access::Read => return open(path, OFlags::RDONLY, 0),
            Access::ReadAside => return open_aside(path),
            Access::ReadWrite => return open(path, OFlags::RDWR, 0),
            Access::OpenOrCreate(mode) => match open(path, OFlags::RDWR, 0) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => (OFlags::RDWR | OFlags::CREATE, mode),
                outcome => return outcome,
            },
            Access::CreateNew(mode) => (OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode),
        };
        let file = open(path, flags, mode)?;
        self.set_mode(&file, mode)?;
        Ok(file)
    }

    fn open_unnamed(&self, directory: &Path, mode: u32) -> io::Result<File> {
        let file = open(directory, OFlags::RDWR | OFlags::TMPFILE, mode)?;
        self.set_mode(&file, mode)?;
        Ok(file)
    }

    fn link_file(&self, file: &File, to: &Path) -> io::Result<()> {
        // Linking by descriptor alone (AT_EMPTY_PATH) needs a capability; through /proc it does not.
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(rustix::fs::linkat(CWD, from, CWD, to, AtFlags::SYMLINK_FOLLOW)?)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn create_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        rustix::fs::mkdir(path, Mode::from_raw_mode(mode))?;
        Ok(rustix::fs::chmod(path, Mode::from_raw_mode(mode))?)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.file_name())).collect()
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        Ok(metadata(&fs::symlink_metadata(path)?))
    }

    fn metadata_in(&self, directory: &Path, names: &[String]) -> io::Result<Vec<Option<Metadata>>> {
        let directory = match open(directory, OFlags::PATH | OFlags::DIRECTORY, 0) {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![None; names.len()]),
            Err(error) => return Err(error),
        };
        let look = |name: &String| match rustix::fs::statat(&directory, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(metadata_of(&found))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        };
        names.iter().map(look).collect()
    }

    fn file_metadata(&self, file: &File) -> io::Result<Metadata> {
        Ok(metadata(&file.metadata()?))
    }

    fn read_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        file.read_at(buffer, offset)
    }

    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
        file.write_at(bytes, offset)
    }

    fn set_len(&self, file: &File, size: u64) -> io::Result<()> {
        file.set_len(size)
    }

    fn set_mode(&self, file: &File, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?)
    }

    fn set_modified(&self, path: &Path, time: Option<SystemTime>) -> io::Result<()> {
        let times = modified(time.unwrap_or_else(SystemTime::now));
        Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn touch(&self, file: &File) -> io::Result<()> {
        Ok(rustix::fs::futimens(file, &modified(SystemTime::now()))?)
    }

    fn has_exact_times(&self, file: &File) -> bool {
        static KERNEL: LazyLock<bool> = LazyLock::new(|| {
            let name = rustix::system::uname();
            kernel_version(&name.release().to_string_lossy()) >= EXACT_TIMES
        });
        *KERNEL && rustix::fs::fstatfs(file).is_ok_and(|found| WITH_EXACT_TIMES.contains(&i128::from(found.f_type)))
    }

    fn next_data(&self, file: &File, offset: u64) -> io::Result<Option<u64>> {
        match rustix::fs::seek(file, SeekFrom::Data(offset)) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn sync_filesystem(&self, file: &File) -> io::Result<()> {
        Ok(rustix::fs::syncfs(file)?)
    }

    fn space(&self, directory: &Path) -> io::Result<Space> {
        let info = rustix::fs::statvfs(directory)?;
        Ok(Space {
            total: info.f_blocks.saturating_mul(info.f_frsize),
            available: info.f_bavail.saturating_mul(info.f_frsize),
        })
    }

    fn lock(&self, file: &File, exclusive: bool) -> io::Result<bool> {
        let operation = match exclusive {
            true => FlockOperation::NonBlockingLockExclusive,
            false => FlockOperation::NonBlockingLockShared,
        };
        match rustix::fs::flock(file, operation) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn boot_id(&self) -> io::Result<String> {
        if let Some(known) = THIS_BOOT.get() {
            return Ok(known.clone());
        }
        let text = match fs::read_to_string(Path::new("/proc").join(BOOT_ID)) {
            Ok(text) => text,
            Err(error) => io::read_to_string(own_proc(BOOT_ID).map_err(|_| error)?)?,
        };
        Ok(THIS_BOOT.get_or_init(|| text.trim().to_owned()).clone())
    }
}

/// The first kernel whose file systems keep exact change times ...
const EXACT_TIMES: (u32, u32) = (6, 13);
/// ... and the file systems that do, by their numbers in the kernel's `magic.h`: ext4, XFS, Btrfs, tmpfs.
const WITH_EXACT_TIMES: [i128; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994];

/// Parses a kernel release: `6.13.0-rc1` is (6, 13).
fn kernel_version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn modified(time: SystemTime) -> Timestamps {
    Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: timespec(time) }
}

/// The boot of the kernel: it is the same for the life of a process. A process that confines itself must read it before: the kernel makes
/// new inodes for the files of `/proc/sys` when memory is short, and a Landlock rule is for the inode that it was given.
static THIS_BOOT: OnceLock<String> = OnceLock::new();

/// File in procfs that identifies the boot of the kernel.
const BOOT_ID: &str = "sys/kernel/random/boot_id";

/// Opens a file of procfs through a detached mount, for when `/proc` is missing or hidden. Needs root.
fn own_proc(path: &str) -> io::Result<File> {
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let proc = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok(rustix::fs::openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?.into())
}

fn open(path: &Path, flags: OFlags, mode: u32) -> io::Result<File> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(mode))?))
}

/// See [`Access::ReadAside`].
fn open_aside(path: &Path) -> io::Result<File> {
    let open_with = |flags: OFlags| match open(path, flags | OFlags::NOATIME, 0) {
        // Only the file's owner may use O_NOATIME.
        Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => open(path, flags, 0),
        outcome => outcome,
    };
    match open_with(OFlags::RDONLY | OFlags::DIRECT) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let file = open_with(OFlags::RDONLY)?;
            // Its pages enter the cache, but displace no pages in use.
            if let Err(error) = rustix::fs::fadvise(&file, 0, None, Advice::NoReuse) {
                tracing::trace!(%error, "no advice taken");
            }
            Ok(file)
        }
        outcome => outcome,
    }
}

fn metadata(from: &fs::Metadata) -> Metadata {
    Metadata {
        is_dir: from.is_dir(),
        size: from.len(),
        allocated: from.blocks().saturating_mul(512),
        modified: from.modified().unwrap_or(UNIX_EPOCH),
        changed: (from.ctime(), from.ctime_nsec()),
        inode: from.ino(),
        device: from.dev(),
        links: from.nlink(),
    }
}

/// Must give the same as [`metadata`] for the same file: fingerprints are compared.
#[allow(clippy::useless_conversion, reason = "the number of links is narrower on other processors")]
fn metadata_of(from: &Stat) -> Metadata {
    let nanoseconds = |value| u32::try_from(value).unwrap_or_default();
    let seconds = u64::try_from(from.st_mtime);
    let modified = seconds.map_or(Duration::ZERO, |seconds| Duration::new(seconds, nanoseconds(from.st_mtime_nsec)));
    Metadata {
        is_dir: FileType::from_raw_mode(from.st_mode) == FileType::Directory,
        size: from.st_size.try_into().unwrap_or_default(),
        allocated: u64::try_from(from.st_blocks).unwrap_or_default().saturating_mul(512),
        modified: UNIX_EPOCH + modified,
        changed: (from.st_ctime, nanoseconds(from.st_ctime_nsec).into()),
        inode: from.st_ino,
        device: from.st_dev,
        links: from.st_nlink.into(),
    }
}

/// Times before 1970 do not occur here; they become 1970.
fn timespec(time: SystemTime) -> Timespec {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timespec { tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(since.subsec_nanos()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_below_a_directory_is_that_of_the_whole_path() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("ab")).unwrap();
        fs::write(folder.path().join("ab/file"), b"content").unwrap();
        std::os::unix::fs::symlink("file", folder.path().join("ab/link")).unwrap();
        let names = ["ab", "ab/file", "ab/absent", "ab/link", "absent/file"].map(str::to_owned);
        let found = Disk.metadata_in(folder.path(), &names).unwrap();
        let expected = names.each_ref().map(|name| Disk.metadata(&folder.path().join(name)).ok());
        assert_eq!(found, expected);
        assert_eq!(found.iter().flatten().count(), 3);
        assert_eq!(Disk.metadata_in(&folder.path().join("absent"), &names[..1]).unwrap(), [None]);
        assert!(Disk.metadata_in(&folder.path().join("ab"), &["file/below".to_owned()]).is_err(), "not absence");
    }
}
