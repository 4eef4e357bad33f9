//! Names of mount points: absolute and without symbolic links, even where a dead file system is mounted.

use std::io;
use std::path::{Path, PathBuf};

/// The path as the kernel lists it. A mount whose server died cannot be accessed, only its parent can.
pub fn resolve_mountpoint(dir: &Path) -> io::Result<PathBuf> {
    let error = match dir.canonicalize() {
        Ok(path) => return Ok(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
        Err(error) => error,
    };
    let absolute = std::path::absolute(dir)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Err(error),
    }
}

/// The store of the mount at this path, if the table of mounts names one that belongs to this user: an unprivileged user can give any name
/// to a mount.
pub fn store_of_mount(mountpoint: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt as _;
    let entry = tarpon_mount::mount_at(mountpoint).ok()??;
    let store = entry.store().filter(|_| entry.is_ours())?;
    let found = std::fs::symlink_metadata(store).ok()?;
    (found.is_dir() && found.uid() == rustix::process::geteuid().as_raw()).then(|| store.to_owned())
}

/// The path of an upper directory for the server, which follows no symbolic link: the client resolves them. It, and directories above it,
/// need not exist yet.
pub fn resolve_upper(dir: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(dir)?;
    for above in absolute.ancestors() {
        match above.canonicalize() {
            Ok(real) => {
                let rest = absolute.strip_prefix(above).unwrap_or(Path::new(""));
                return Ok(real.components().chain(rest.components()).collect());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(absolute)
}

/// Whether this is a directory, or a mount whose server is dead or stopped: no server is accessed.
pub fn is_directory(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(CWD, path, flags, StatxFlags::TYPE);
    found.map_or(true, |found| FileType::from_raw_mode(found.stx_mode.into()).is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbolic_links_are_followed() {
        let dir = tempfile::tempdir().expect("a folder");
        let real = dir.path().canonicalize().expect("it exists").join("real");
        std::fs::create_dir(&real).expect("made");
        std::os::unix::fs::symlink("real", dir.path().join("link")).expect("made");
        assert_eq!(resolve_mountpoint(&dir.path().join("link")).expect("resolved"), real);
        assert_eq!(resolve_mountpoint(&dir.path().join("link/../real/.")).expect("resolved"), real);
    }

    #[test]
    fn an_upper_need_not_be_there_and_links_above_it_are_followed() {
        let dir = tempfile::tempdir().expect("a folder");
        let real = dir.path().canonicalize().expect("it exists").join("real");
        std::fs::create_dir(&real).expect("made");
        std::os::unix::fs::symlink("real", dir.path().join("link")).expect("made");
        for (given, resolved) in [("link", ""), ("link/a/b", "a/b"), ("real/a", "a")] {
            assert_eq!(resolve_upper(&dir.path().join(given)).expect("resolved"), real.join(resolved), "{given}");
        }
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        let error = resolve_mountpoint(Path::new("/nowhere/at/all")).expect_err("missing");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
