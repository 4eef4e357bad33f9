//! [`LockFile`]: where a lock of indexes is, and how an entry gets into it.
//!
//! The client's environment determines it, never the current directory: that may be a checkout or a download from a third party, and the
//! author of a directory must not decide whose claims about images are trusted in it.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tarpon_oci::{Digest, IndexLock, limits};
use tarpon_store::FileLock;
use tarpon_store::flock;

use crate::error::{Cause, Error, ErrorKind, Result};

/// Its file name in the folders that are searched.
const NAME: &str = "tarpon.lock";

/// The folder for all users of the machine.
const OF_ALL: &str = "/etc/tarpon";

/// How long to wait for another writer in the same folder. Writing takes milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// A lock on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockFile {
    path: PathBuf,
}

impl LockFile {
    /// The lock file at this path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The lock of this user, else that of the machine, if any.
    ///
    /// # Errors
    /// A lock exists, and it cannot be read or parsed.
    pub fn of_environment() -> Result<Option<IndexLock>> {
        first(&places(|name| std::env::var_os(name)))
    }

    /// The entries of the lock.
    ///
    /// # Errors
    /// It does not exist, or cannot be read or parsed.
    pub fn read(&self) -> Result<IndexLock> {
        self.read_if_there()?.ok_or_else(|| self.failed("there is no such file"))
    }

    fn read_if_there(&self) -> Result<Option<IndexLock>> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(self.failed(error)),
        };
        let mut bytes = Vec::new();
        file.take(limits::LOCK_BYTES + 1).read_to_end(&mut bytes).map_err(|error| self.failed(error))?;
        IndexLock::parse(&bytes).map(Some).map_err(|error| self.failed(error))
    }

    /// Whether an entry could be added. Checked before hours of work whose result it will name.
    ///
    /// # Errors
    /// The file exists and cannot be parsed, or its folder does not exist.
    pub fn check(&self) -> Result<()> {
        self.folder()?;
        self.read_if_there().map(drop)
    }

    /// Pins the published index of this image and manifest. Other entries stay. Readers see the file either before or after the change.
    ///
    /// # Errors
    /// As [`LockFile::check`], or it cannot be written.
    pub fn pin(&self, image: &str, manifest: Digest, index: Digest) -> Result<()> {
        // A link stays a link.
        let target = Self::at(fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone()));
        let folder = target.folder()?;
        let _alone = target.alone(&folder)?;
        let mut lock = target.read_if_there()?.unwrap_or_default();
        lock.pin(manifest, image, index);
        let bytes = lock.to_json().map_err(|error| target.failed(error))?;
        target.replace(&folder, &bytes).map_err(|error| target.failed(error))
    }

    fn folder(&self) -> Result<PathBuf> {
        let path = std::path::absolute(&self.path).map_err(|error| self.failed(error))?;
        let folder = path.parent().filter(|folder| folder.is_dir() && path.file_name().is_some());
        folder.map(Path::to_owned).ok_or_else(|| self.failed("its folder is not there"))
    }

    /// Locks out other writers. The lock is on the folder, because the file is replaced.
    fn alone(&self, folder: &Path) -> Result<FileLock> {
        let folder = File::open(folder).map_err(|error| self.failed(error))?;
        let lock = flock::lock_within(folder, LOCK_TIMEOUT).map_err(|error| self.failed(error))?;
        lock.ok_or_else(|| self.failed("another process is writing it"))
    }

    fn replace(&self, folder: &Path, bytes: &[u8]) -> io::Result<()> {
        // With the usual permissions of a new file of the user, or those of the existing one.
        let permissions =
            fs::metadata(&self.path).map_or_else(|_| Permissions::from_mode(0o666), |before| before.permissions());
        let is_new = !self.path.exists();
        let mut file =
            tempfile::Builder::new().prefix(".tarpon.lock.").permissions(permissions.clone()).tempfile_in(folder)?;
        if !is_new {
            file.as_file().set_permissions(permissions)?;
        }
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        File::open(folder)?.sync_all()
    }

    fn failed(&self, cause: impl Into<Cause>) -> Error {
        Error::new(ErrorKind::Other, format!("use the lock file {}", self.path.display()), cause)
    }
}

/// Default places of a lock. Relative folders are ignored: they would be relative to the current directory.
fn places(variable: impl Fn(&str) -> Option<OsString>) -> Vec<LockFile> {
    let folder = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")));
    let folders = [config.map(|folder| folder.join("tarpon")), Some(PathBuf::from(OF_ALL))];
    folders.into_iter().flatten().map(|folder| LockFile::at(folder.join(NAME))).collect()
}

/// The first existing one. Locks are not merged: a user's own lock decides alone.
fn first(places: &[LockFile]) -> Result<Option<IndexLock>> {
    for place in places {
        if let Some(lock) = place.read_if_there()? {
            return Ok(Some(lock));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use tarpon_oci::Digest;

    use super::*;

    fn places_with(variables: &[(&str, &str)]) -> Vec<PathBuf> {
        let found = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        places(found).into_iter().map(|file| file.path).collect()
    }

    #[test]
    fn the_users_lock_comes_before_that_of_the_machine_and_the_current_directory_never() {
        let machine = PathBuf::from("/etc/tarpon/tarpon.lock");
        let user = |path: &str| vec![PathBuf::from(path), machine.clone()];
        assert_eq!(places_with(&[("HOME", "/h")]), user("/h/.config/tarpon/tarpon.lock"));
        assert_eq!(places_with(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/c")]), user("/c/tarpon/tarpon.lock"));
        assert_eq!(places_with(&[("XDG_CONFIG_HOME", "."), ("HOME", "")]), [machine]);
    }

    #[test]
    fn the_first_lock_that_is_there_is_read_and_one_that_means_nothing_is_not_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| LockFile::at(folder.path().join(name));
        assert_eq!(first(&[file("none/none"), file("none")]).unwrap(), None);
        let mut lock = IndexLock::default();
        lock.pin(Digest::of(b"image"), "image", Digest::of(b"index"));
        fs::write(folder.path().join("good"), lock.to_json().unwrap()).unwrap();
        fs::write(folder.path().join("bad"), "{}").unwrap();
        assert_eq!(first(&[file("none"), file("good"), file("bad")]).unwrap(), Some(lock));
        let error = first(&[file("bad"), file("good")]).unwrap_err();
        assert!(error.to_string().contains("/bad: "), "{error}");
        assert!(file("none").read().unwrap_err().to_string().contains("no such file"));
    }

    #[test]
    fn a_lock_without_end_is_not_read_to_its_end() {
        let error = LockFile::at("/dev/zero").read().unwrap_err();
        assert!(error.to_string().contains("more than"), "{error}");
    }

    #[test]
    fn a_write_replaces_the_target_of_a_link_and_keeps_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let [real, link] = ["real", "link"].map(|name| folder.path().join(name));
        fs::write(&real, "before").unwrap();
        fs::set_permissions(&real, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(LockFile::at(&link).check().is_err(), "it means nothing");
        LockFile::at(fs::canonicalize(&link).unwrap()).replace(folder.path(), b"after").unwrap();
        assert_eq!(fs::read(&link).unwrap(), b"after");
        assert!(link.is_symlink());
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left behind");
    }
}
