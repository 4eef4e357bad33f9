//! Is this directory fit to be mounted on? And clearing what a dead server left there.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode as FileMode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::error::MountError;
use crate::table::TableEntry;
use crate::{fusermount, kernel, table};

/// The absolute path of an existing directory that carries no mount of ours. A dead one is removed first.
pub(crate) fn prepare(path: &Path) -> Result<PathBuf, MountError> {
    if is_mounted(path) {
        clear_dead(path)?;
    }
    let problem = |problem: String| MountError::Mountpoint { path: path.to_owned(), problem };
    let absolute = path.canonicalize().map_err(|error| problem(error.to_string()))?;
    if !absolute.is_dir() {
        return Err(problem("not a directory".to_owned()));
    }
    if !is_mounted(&absolute) {
        return Ok(absolute);
    }
    match table::mount_at(&absolute).map_err(|error| problem(error.to_string()))? {
        Some(mount) if mount.is_ours() => Err(problem("tarpon has mounted an image here already".to_owned())),
        _ => Ok(absolute),
    }
}

/// Removes a FUSE mount of ours at `path` whose server is dead. Anything else is left alone; says whether there was one.
pub fn clear_dead(path: &Path) -> Result<bool, MountError> {
    let absolute = absolute(path)?;
    let top = table::mount_at(&absolute).map_err(MountError::io("read the table of mounts"))?;
    let Some(mount) = top.filter(TableEntry::is_ours) else { return Ok(false) };
    // From here on it is this mount and no other: whoever else clears the place may mount there at once.
    let open = match rustix::fs::open(&absolute, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, FileMode::empty()) {
        Ok(open) => open,
        Err(Errno::NOENT) => return Ok(false),
        Err(errno) => return Err(MountError::io("look at the mount")(errno.into())),
    };
    if !is_dead(open.as_fd()) || table::mount_id(open.as_fd()).ok() != Some(mount.id) {
        return Ok(false);
    }
    refuse_covered(&mount)?;
    match kernel::detach_open(open.as_fd()) {
        Err(error) if error.errno() == Errno::PERM => fusermount::unmount(&absolute, true)?,
        // Somebody else has just removed it.
        Err(error) if error.errno() == Errno::INVAL => return Ok(false),
        other => other?,
    }
    tracing::info!(path = %absolute.display(), "removed a mount whose server is gone");
    Ok(true)
}

/// Removes the mount of ours at `path`, dead or alive, for whoever knows that its server is gone; says whether there
/// was one. Users of it keep what they have open.
///
/// # Errors
/// [`MountError::Covered`] if something else is mounted on it or in it.
pub fn clear(path: &Path) -> Result<bool, MountError> {
    let absolute = absolute(path)?;
    if !is_mounted(&absolute) {
        return Ok(false);
    }
    let table = table::mounts().map_err(MountError::io("read the table of mounts"))?;
    match table.iter().rfind(|mount| mount.mountpoint == absolute && mount.is_ours()) {
        Some(mount) => clear_mount(mount).map(|()| true),
        None => Ok(false),
    }
}

/// Whether something is mounted at `path`, which costs much less than to read the table of mounts. Where nobody can tell, it is.
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

fn clear_mount(mount: &TableEntry) -> Result<(), MountError> {
    refuse_covered(mount)?;
    remove(&mount.mountpoint, true)?;
    tracing::info!(path = %mount.mountpoint.display(), "removed a mount whose server is gone");
    Ok(())
}

/// No canonical path: that could ask the server.
fn absolute(path: &Path) -> Result<PathBuf, MountError> {
    std::path::absolute(path).map_err(MountError::io("find the mount point"))
}

/// Whether FUSE says that nobody serves it. `statfs` is never answered from a cache.
fn is_dead(mount: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(mount).is_err_and(|errno| errno == Errno::NOTCONN)
}

/// Unmounts `path` with whatever right this process has: the system call, or `fusermount3` for those who may not.
pub(crate) fn remove(path: &Path, lazily: bool) -> Result<(), kernel::StepError> {
    let removed = if lazily { kernel::detach(path) } else { kernel::unmount_unused(path) };
    match removed {
        Err(error) if error.errno() == Errno::PERM => fusermount::unmount(path, lazily),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_missing_directories_are_refused_with_their_path() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, b"").unwrap();
        for (path, problem) in [(file, "not a directory"), (directory.path().join("gone"), "No such file")] {
            let message = prepare(&path).unwrap_err().to_string();
            assert!(message.contains(problem) && message.contains(path.to_str().unwrap()), "{message}");
        }
        assert!(prepare(directory.path()).is_ok());
    }
}
