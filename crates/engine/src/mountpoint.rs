//! Names of mount points: absolute and without symbolic links, also where a dead file system is mounted.

use std::io;
use std::path::{Path, PathBuf};

/// The path as the kernel lists it. A mount whose server died cannot be looked at, only its parent can.
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
    fn a_missing_directory_is_an_error() {
        let error = resolve_mountpoint(Path::new("/nowhere/at/all")).expect_err("missing");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
