//! Checks that a directory may be mounted on, and removes what a dead server left there.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::error::MountError;
use crate::place::{self, Spot};
use crate::protected::{self, Protected};
use crate::table::TableEntry;
use crate::{fusermount, kernel, table};

/// An open directory to mount on: the checked directory is the one mounted on.
#[derive(Debug)]
pub(crate) struct Mountpoint {
    pub(crate) path: PathBuf,
    pub(crate) directory: OwnedFd,
}

/// Opens an existing directory that carries no mount of ours and may carry one. A dead mount is removed first. The path
/// must be absolute and free of symbolic links: the owner of a link would choose where to mount.
pub(crate) fn prepare(path: &Path, protected: &Protected) -> Result<Mountpoint, MountError> {
    if is_mounted(path) {
        clear_dead(path)?;
    }
    let problem = |problem: String| MountError::Mountpoint { path: path.to_owned(), problem };
    let directory = place::open_directory(path).map_err(|error| problem(protected::explained(&error)))?;
    protected.check_open(directory.as_fd(), path).map_err(problem)?;
    let entries =
        if is_mounted(path) { table::mounts().map_err(|error| problem(error.to_string()))? } else { Vec::new() };
    if let Some(id) = (!entries.is_empty()).then(|| table::mount_id(directory.as_fd())) {
        let id = id.map_err(|error| problem(error.to_string()))?;
        if entries.iter().any(|mount| mount.id == id && mount.mountpoint == path && mount.is_ours()) {
            return Err(problem("tarpon has mounted an image here already".to_owned()));
        }
    }
    Ok(Mountpoint { path: path.to_owned(), directory })
}

/// Removes a FUSE mount of ours at `path` whose server is dead. Any other mount stays. Returns whether there was one.
pub fn clear_dead(path: &Path) -> Result<bool, MountError> {
    let absolute = absolute(path)?;
    let top = table::mount_at(&absolute).map_err(MountError::io("read the table of mounts"))?;
    let Some(mount) = top.filter(TableEntry::is_ours) else { return Ok(false) };
    let Some(open) = open_top(&absolute)? else { return Ok(false) };
    if !is_dead(open.as_fd()) || table::mount_id(open.as_fd()).ok() != Some(mount.id) {
        return Ok(false);
    }
    refuse_covered(&mount)?;
    let removed = detach(&mount)?;
    if removed {
        tracing::info!(path = %absolute.display(), "removed a mount whose server no longer runs");
    }
    Ok(removed)
}

/// Removes the mount of ours at `path`, dead or alive, for callers that know its server has ended. Returns whether there
/// was one. Its users keep their open files.
///
/// # Errors
/// [`MountError::Covered`] if something else is mounted on it or in it.
pub fn clear(path: &Path) -> Result<bool, MountError> {
    let absolute = absolute(path)?;
    if !is_mounted(&absolute) {
        return Ok(false);
    }
    let table = table::mounts().map_err(MountError::io("read the table of mounts"))?;
    let Some(mount) = table.iter().rfind(|mount| mount.mountpoint == absolute && mount.is_ours()) else {
        return Ok(false);
    };
    refuse_covered(mount)?;
    let removed = detach(mount)?;
    if removed {
        tracing::info!(path = %absolute.display(), "removed a mount whose server no longer runs");
    }
    Ok(removed)
}

/// Whether something is mounted at `path`; much cheaper than reading the table of mounts. Returns true if that cannot be
/// determined.
pub fn is_mounted(path: &Path) -> bool {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    match rustix::fs::statx(CWD, path, flags, StatxFlags::empty()) {
        Ok(found) if found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) => {
            found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
        }
        Ok(_) => true,
        Err(error) => error != Errno::NOENT,
    }
}

fn refuse_covered(mount: &TableEntry) -> Result<(), MountError> {
    let table = table::mounts().map_err(MountError::io("read the table of mounts"))?;
    table::above(&table, mount).map_or(Ok(()), |above| Err(MountError::covered(mount, above)))
}

/// Opens the topmost mount at `path`, or the directory itself; `None` if the path does not exist.
fn open_top(path: &Path) -> Result<Option<OwnedFd>, MountError> {
    match Spot::open(path).and_then(|spot| spot.top()) {
        Ok(top) => Ok(Some(top)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(MountError::io("look at the mount")(error)),
    }
}

/// Removes this mount of the table, which nothing covers, and no other: a concurrent cleaner may mount at the same place
/// at once. Returns `false` if the mount is gone.
fn detach(mount: &TableEntry) -> Result<bool, MountError> {
    let is_it = |open: BorrowedFd<'_>| table::mount_id(open).is_ok_and(|id| id == mount.id);
    match remove_lazily(&mount.mountpoint, is_it) {
        Ok(()) => Ok(true),
        Err(error) if error.errno() == Errno::INVAL || error.errno() == Errno::NOENT => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Makes `path` absolute without canonicalizing it: that could query the server.
fn absolute(path: &Path) -> Result<PathBuf, MountError> {
    std::path::absolute(path).map_err(MountError::io("find the mount point"))
}

/// Whether FUSE reports that the server is dead. `statfs` is never answered from a cache.
fn is_dead(mount: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(mount).is_err_and(|errno| errno == Errno::NOTCONN)
}

/// Unmounts the mount at `path` unless it is in use (`EBUSY`), by the system call, or by `fusermount3` for unprivileged
/// users. For callers that have just checked that the mount is theirs.
pub(crate) fn remove_unused(path: &Path) -> Result<(), kernel::StepError> {
    match spot(path)?.unmount_unused() {
        Err(error) if error.errno() == Errno::PERM => fusermount::unmount(path, false),
        other => other,
    }
}

/// As [`remove_unused`], in use or not, if `is_it` accepts the mount; `EINVAL` otherwise.
pub(crate) fn remove_lazily(path: &Path, is_it: impl Fn(BorrowedFd<'_>) -> bool) -> Result<(), kernel::StepError> {
    match spot(path)?.detach(is_it) {
        Err(error) if error.errno() == Errno::PERM => fusermount::unmount(path, true),
        other => other,
    }
}

fn spot(path: &Path) -> Result<Spot<'_>, kernel::StepError> {
    Spot::open(path).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
        kernel::StepError::new(format!("find {}", path.display()), errno)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_missing_directories_are_refused_with_their_path() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().canonicalize().unwrap().join("file");
        std::fs::write(&file, b"").unwrap();
        for (path, problem) in [(file, "not a directory"), (directory.path().join("gone"), "No such file")] {
            let message = prepare(&path, &Protected::default()).unwrap_err().to_string();
            assert!(message.contains(problem) && message.contains(path.to_str().unwrap()), "{message}");
        }
        assert!(prepare(&directory.path().canonicalize().unwrap(), &Protected::default()).is_ok());
    }
}
