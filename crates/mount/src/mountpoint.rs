//! Is this directory fit to be mounted on? And clearing what a dead server left there.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::error::MountError;
use crate::{kernel, table};

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
    let dead = |error: &io::Error| error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error());
    if !path.symlink_metadata().is_err_and(|error| dead(&error)) {
        return Ok(false);
    }
    let absolute = std::path::absolute(path).map_err(MountError::io("find the mount point"))?;
    match table::mount_at(&absolute).map_err(MountError::io("read the table of mounts"))? {
        Some(mount) if mount.is_ours() => {
            remove(&absolute, true)?;
            tracing::info!(path = %absolute.display(), "removed a mount whose server is dead");
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Removes the mount of ours at `path`, dead or alive, for whoever knows that its server is gone; says whether there
/// was one. Users of it keep what they have open.
pub fn clear(path: &Path) -> Result<bool, MountError> {
    let absolute = std::path::absolute(path).map_err(MountError::io("find the mount point"))?;
    match table::mount_at(&absolute).map_err(MountError::io("read the table of mounts"))? {
        Some(mount) if mount.is_ours() => {
            remove(&absolute, true)?;
            tracing::info!(path = %absolute.display(), "removed a mount whose server is gone");
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Unmounts `path` with whatever right this process has: the system call, or `fusermount3` for those who may not.
pub(crate) fn remove(path: &Path, lazily: bool) -> Result<(), kernel::StepError> {
    let removed = if lazily { kernel::detach(path) } else { kernel::unmount_unused(path) };
    match removed {
        Err(error) if error.errno() == Errno::PERM => fusermount(path, lazily),
        other => other,
    }
}

fn fusermount(path: &Path, lazily: bool) -> Result<(), kernel::StepError> {
    let doing = format!("unmount {} with fusermount3", path.display());
    let mut command = std::process::Command::new("fusermount3");
    command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(path);
    let output = command.output().map_err(|error| crate::connection::io_step(&doing, &error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let errno = if said.contains("busy") { Errno::BUSY } else { Errno::PERM };
    Err(kernel::StepError::new(format!("{doing} ({})", said.trim()), errno))
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
