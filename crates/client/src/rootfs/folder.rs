//! Directories of root file systems for which the user named none.
//!
//! ```text
//! run/rootfs-XXXXXX/      of one engine, locked as long as it lives
//!                   1/ 2/ …   mount points
//! ```
//!
//! An unlocked folder belongs to a killed process. The next process that creates a folder unmounts and removes its contents.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tarpon_store::flock;
use tarpon_store::private;
use tarpon_store::{FileLock, Store};

use super::host::MountHost;
use crate::client::Hold;
use crate::{ErrorKind, Result, ResultExt};

/// Prefix of the folders.
const PREFIX: &str = "rootfs-";

/// The resources of an engine for its root file systems, created at first use: a folder, and a server that keeps running.
#[derive(Debug)]
pub struct Folders {
    /// The store's directory for files of running processes.
    run: PathBuf,
    folder: Mutex<Option<Arc<Folder>>>,
    hold: Mutex<Option<Hold>>,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    _lock: FileLock,
    made: AtomicU64,
}

/// A mount point.
#[derive(Debug)]
pub(super) struct MountDir {
    path: PathBuf,
    /// The folder that the directory was created in; the directory is removed with the mount.
    own: Option<Arc<Folder>>,
}

impl Folders {
    /// Nothing is created yet.
    pub fn of(store: &Store) -> Self {
        Self { run: store.server_folder(), folder: Mutex::default(), hold: Mutex::default() }
    }

    /// Keeps the server running as long as the engine lives. Otherwise each single root file system would start and end a server.
    pub(super) fn hold(&self, host: &dyn MountHost) -> Result<()> {
        let mut hold = self.hold.lock();
        if !hold.as_ref().is_some_and(Hold::lasts) {
            *hold = host.hold()?;
        }
        Ok(())
    }

    /// Creates a directory for a new root file system.
    pub(super) fn new_dir(&self, host: &dyn MountHost) -> Result<MountDir> {
        let step = "make a place for the root file system";
        let folder = self.folder(host).context(ErrorKind::Store, step)?;
        let path = folder.path.join(folder.made.fetch_add(1, Ordering::Relaxed).to_string());
        private::create_dir(&path).context(ErrorKind::Store, step)?;
        Ok(MountDir { path, own: Some(folder) })
    }

    fn folder(&self, host: &dyn MountHost) -> io::Result<Arc<Folder>> {
        let mut folder = self.folder.lock();
        if let Some(folder) = &*folder {
            return Ok(folder.clone());
        }
        sweep(&self.run, host);
        let new = Arc::new(Folder::make(&self.run)?);
        *folder = Some(new.clone());
        Ok(new)
    }
}

impl Folder {
    fn make(run: &Path) -> io::Result<Self> {
        loop {
            // Private, because it holds images with setuid programs.
            let path = tempfile::Builder::new().prefix(PREFIX).tempdir_in(run)?.keep();
            let lock = match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            // A concurrent sweep in another process may take the folder for an abandoned one.
            let Some(lock) = flock::try_lock(lock)? else { continue };
            if path.exists() {
                return Ok(Self { path, _lock: lock, made: AtomicU64::new(1) });
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A root file system that was kept, or could not be unmounted, prevents the removal.
        let _with_the_last = std::fs::remove_dir(&self.path);
    }
}

impl MountDir {
    /// A directory of the caller's.
    pub(super) fn given(path: &Path) -> Result<Self> {
        Ok(Self {
            path: path.canonicalize().context(ErrorKind::NotFound, format!("find {}", path.display()))?,
            own: None,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Cleans up after a failed mount. Whether it was mounted is unknown: the reply may have been lost. A directory of the caller's is left
    /// alone, because an earlier mount may be on it.
    pub(super) fn abandon(&self, host: &dyn MountHost) {
        if self.own.is_some()
            && let Err(error) = host.unmount(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "a root file system may stay mounted");
        }
        self.remove();
    }

    /// Removes the directory after the unmount.
    pub(super) fn remove(&self) {
        if self.own.is_some()
            && let Err(error) = std::fs::remove_dir(&self.path)
        {
            tracing::debug!(path = %self.path.display(), %error, "the directory of a root file system stays behind");
        }
    }
}

/// Unmounts and removes what killed processes left.
fn sweep(run: &Path, host: &dyn MountHost) {
    for entry in std::fs::read_dir(run).into_iter().flatten().flatten() {
        let path = entry.path();
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(lock) = File::open(&path) else { continue };
        let Ok(Some(_lock)) = flock::try_lock(lock) else { continue };
        for mount in std::fs::read_dir(&path).into_iter().flatten().flatten() {
            if let Err(error) = host.unmount(&mount.path()) {
                tracing::warn!(path = %mount.path().display(), %error, "what a killed process left stays mounted");
            }
            let _if_unmounted = std::fs::remove_dir(mount.path());
        }
        let _if_empty = std::fs::remove_dir(&path);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tarpon_store::StoreConfig;

    use super::*;
    use crate::client::Client;

    #[test]
    fn what_a_killed_process_left_is_swept_and_what_is_held_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), StoreConfig::default()).unwrap();
        let host = Client::new(store.clone(), Vec::new());
        let held = Folders::of(&store);
        let dir = held.new_dir(&host).unwrap();
        let left = store.server_folder().join("rootfs-left");
        std::fs::create_dir_all(left.join("7")).unwrap();
        let other = Folders::of(&store);
        let another = other.new_dir(&host).unwrap();
        assert!(dir.path().is_dir() && another.path().is_dir() && !left.exists());
        let paths: HashSet<_> = (0..9).map(|_| held.new_dir(&host).unwrap().path).collect();
        assert_eq!(paths.len(), 9);
        another.remove();
        let parent = another.path().parent().unwrap().to_owned();
        drop((another, other));
        assert!(!parent.exists(), "it goes with its engine");
    }

    #[test]
    fn a_directory_of_the_caller_must_exist_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(MountDir::given(&folder.path().join("none")).unwrap_err().kind, ErrorKind::NotFound);
        MountDir::given(folder.path()).unwrap().remove();
        assert!(folder.path().exists());
    }
}
