//! Directories by descriptor: the checked directory is the one mounted on or unmounted, despite concurrent renames.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::kernel::StepError;
use crate::table;

/// Opens for inspection only, without a request to any file system.
const INSPECT: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Opens the directory at an absolute path. A symbolic link anywhere on the way is an error (`ELOOP`): its owner controls
/// the target.
pub(crate) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    if !path.is_absolute() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not an absolute path"));
    }
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // Without O_NOFOLLOW, which would open a final link and report that it is no directory.
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
    Ok(rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)?)
}

/// Identity of a directory, independent of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    device: (u32, u32),
    inode: u64,
}

impl Identity {
    pub(crate) fn of(directory: BorrowedFd<'_>) -> io::Result<Self> {
        Self::at(directory, Path::new(""), AtFlags::EMPTY_PATH)
    }

    /// Identity of the target of `path`, following links.
    pub(crate) fn of_path(path: &Path) -> io::Result<Self> {
        Self::at(CWD, path, AtFlags::empty())
    }

    fn at(directory: BorrowedFd<'_>, path: &Path, flags: AtFlags) -> io::Result<Self> {
        let flags = flags | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(directory, path, flags, StatxFlags::INO)?;
        Ok(Self { device: (found.stx_dev_major, found.stx_dev_minor), inode: found.stx_ino })
    }
}

/// Identities of the directory open at `path` and of all its ancestors. Those are found by path, not from the directory:
/// it may be the root of a mount whose server does not answer.
pub(crate) fn lineage(directory: BorrowedFd<'_>, path: &Path) -> io::Result<Vec<Identity>> {
    let mut lineage = vec![Identity::of(directory)?];
    for above in path.ancestors().skip(1) {
        lineage.push(Identity::of(open_directory(above)?.as_fd())?);
    }
    Ok(lineage)
}

/// The place of a mount, by the open directory that contains it.
pub(crate) struct Spot<'p> {
    path: &'p Path,
    /// `None` if descriptors ran out: then the path is used, so that unmounting still works.
    parent: Option<OwnedFd>,
    name: &'p OsStr,
}

impl<'p> Spot<'p> {
    pub(crate) fn open(path: &'p Path) -> io::Result<Self> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the root is no place of a mount"));
        };
        match open_directory(parent) {
            Ok(parent) => Ok(Self { path, parent: Some(parent), name }),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::MFILE | Errno::NFILE) => Ok(Self { path, parent: None, name: path.as_os_str() }),
                _ => Err(error),
            },
        }
    }

    /// Directory in which the name is looked up.
    fn directory(&self) -> BorrowedFd<'_> {
        self.parent.as_ref().map_or(CWD, AsFd::as_fd)
    }

    /// Opens the root of the topmost mount there, or the directory itself.
    pub(crate) fn top(&self) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat(self.directory(), self.name, INSPECT, Mode::empty())?)
    }

    /// Unique id of the topmost mount there, never reused.
    pub(crate) fn unique_id(&self) -> Option<u64> {
        table::unique_id_in(self.directory(), Path::new(self.name))
    }

    /// Unmounts the topmost mount there. `EBUSY` if it is in use.
    pub(crate) fn unmount_unused(&self) -> Result<(), StepError> {
        self.unmount(UnmountFlags::empty())
    }

    /// Whether the topmost mount there is in use; it stays mounted.
    pub(crate) fn is_busy(&self) -> bool {
        // The first call marks an unused mount, the second would unmount it; accessing the mount clears the mark.
        let marked = self.unmount(UnmountFlags::EXPIRE);
        drop(self.top());
        marked.is_err_and(|error| error.errno() == Errno::BUSY)
    }

    /// Unmounts the topmost mount there if `is_it` accepts it, else leaves it alone (`EINVAL`). Its users continue.
    pub(crate) fn detach(&self, is_it: impl Fn(BorrowedFd<'_>) -> bool) -> Result<(), StepError> {
        let failed = |errno| StepError::new(format!("unmount {}", self.path.display()), errno);
        let errno = |error: &io::Error| Errno::from_io_error(error).unwrap_or(Errno::IO);
        let top = self.top().map_err(|error| failed(errno(&error)))?;
        if !is_it(top.as_fd()) {
            return Err(failed(Errno::INVAL));
        }
        match descriptor_path(top.as_fd()) {
            // The link must be followed here: it leads to the mount itself, not to a path.
            Some(path) => rustix::mount::unmount(path, UnmountFlags::DETACH).map_err(failed),
            None => self.unmount(UnmountFlags::DETACH),
        }
    }

    fn unmount(&self, flags: UnmountFlags) -> Result<(), StepError> {
        let parent = self.parent.as_ref().and_then(|parent| descriptor_path(parent.as_fd()));
        let path = parent.map_or_else(|| self.path.to_owned(), |parent| parent.join(self.name));
        rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW)
            .map_err(|errno| StepError::new(format!("unmount {}", self.path.display()), errno))
    }
}

/// Removes what is at this absolute path, with everything in it. No symbolic link is followed, neither on the way there nor below, whatever
/// the owner of a directory puts in its place.
pub(crate) fn remove_all(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = open_directory(parent)?;
    let found = descriptor_path(parent.as_fd()).ok_or_else(|| io::Error::other("/proc is not mounted"))?;
    std::fs::remove_dir_all(found.join(name))
}

/// A path to the open file; `None` without `/proc`.
pub(crate) fn descriptor_path(open: BorrowedFd<'_>) -> Option<PathBuf> {
    let numbers = rustix::fs::statfs("/proc/self/fd").ok()?;
    (numbers.f_type == rustix::fs::PROC_SUPER_MAGIC)
        .then(|| PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_on_the_way_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().join("real");
        std::fs::create_dir_all(real.join("mnt")).unwrap();
        std::os::unix::fs::symlink(&real, folder.path().join("link")).unwrap();
        assert!(open_directory(&real.join("mnt")).is_ok());
        for path in ["link/mnt", "link"] {
            let error = open_directory(&folder.path().join(path)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()), "{path}");
        }
        assert!(open_directory(Path::new("real")).is_err());
    }

    #[test]
    fn nothing_is_removed_behind_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let (victim, user) = (folder.join("victim"), folder.join("user"));
        std::fs::create_dir_all(victim.join("work/file")).unwrap();
        std::os::unix::fs::symlink(&victim, &user).unwrap();
        assert!(remove_all(&user.join("work")).is_err(), "the parent is a link");
        std::fs::remove_file(&user).unwrap();
        std::fs::create_dir_all(user.join("work")).unwrap();
        std::os::unix::fs::symlink(&victim, user.join("work/link")).unwrap();
        remove_all(&user.join("work")).unwrap();
        assert!(!user.join("work").exists() && victim.join("work/file").exists());
    }

    #[test]
    fn the_lineage_of_a_directory_ends_at_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        let lineage = lineage(open_directory(&path).unwrap().as_fd(), &path).unwrap();
        assert_eq!(lineage.first(), Some(&Identity::of_path(folder.path()).unwrap()));
        assert_eq!(lineage.last(), Some(&Identity::of_path(Path::new("/")).unwrap()));
    }
}
