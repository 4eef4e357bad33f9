//! Is this directory fit to be mounted on? And clearing what a dead server left there.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::error::MountError;
use crate::table::TableEntry;
use crate::{fusermount, kernel, table};

/// The absolute path of an existing directory that carries no mount of ours. A dead one is removed first.
pub(crate) fn prepare(path: &Path) -> Result<PathBuf, MountError> {
    clear_dead(path)?;
    let problem = |problem: String| MountError::Mountpoint { path: path.to_owned(), problem };
    let absolute = path.canonicalize().map_err(|error| problem(error.to_string()))?;
    if !absolute.is_dir() {
        return Err(problem("not a directory".to_owned()));
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
    match top.filter(|mount| mount.is_ours() && is_dead(&absolute)) {
        Some(mount) => clear_mount(&mount).map(|()| true),
        None => Ok(false),
    }
}

/// Removes the mount of ours at `path`, dead or alive, for whoever knows that its server is gone; says whether there
/// was one. Users of it keep what they have open.
///
/// # Errors
/// [`MountError::Covered`] if something else is mounted on it or in it.
pub fn clear(path: &Path) -> Result<bool, MountError> {
    let absolute = absolute(path)?;
    let table = table::mounts().map_err(MountError::io("read the table of mounts"))?;
    match table.iter().rfind(|mount| mount.mountpoint == absolute && mount.is_ours()) {
        Some(mount) => clear_mount(mount).map(|()| true),
        None => Ok(false),
    }
}

fn clear_mount(mount: &TableEntry) -> Result<(), MountError> {
    let table = table::mounts().map_err(MountError::io("read the table of mounts"))?;
    if let Some(above) = table::above(&table, mount) {
        return Err(MountError::covered(mount, above));
    }
    remove(&mount.mountpoint, true)?;
    tracing::info!(path = %mount.mountpoint.display(), "removed a mount whose server is gone");
    Ok(())
}

/// No canonical path: that could ask the server.
fn absolute(path: &Path) -> Result<PathBuf, MountError> {
    std::path::absolute(path).map_err(MountError::io("find the mount point"))
}

/// Whether FUSE says that nobody serves it. `statfs` is never answered from a cache.
fn is_dead(path: &Path) -> bool {
    rustix::fs::statfs(path).is_err_and(|errno| errno == Errno::NOTCONN)
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
