//! Directories for root file systems that nobody named one for.
//!
//! ```text
//! run/rootfs-XXXXXX/      of one engine, locked as long as that lives
//!                   1/ 2/ …   where one is mounted
//! ```
//!
//! A folder that nobody holds the lock of is one of a process that was killed: whoever makes the next one unmounts and removes what is there.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tarpon_store::{FileLock, Store};

use super::Host;
use crate::server::Hold;
use crate::{Error, ErrorKind, Result, flock, private};

/// How the names of the folders begin.
const PREFIX: &str = "rootfs-";

/// What an engine has for its root file systems, once it has made one: a folder, and a server that stays.
#[derive(Debug, Default)]
pub(crate) struct Folders {
    folder: Mutex<Option<Arc<Folder>>>,
    hold: Mutex<Option<Hold>>,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    _lock: FileLock,
    made: AtomicU64,
}

/// A directory that something is mounted on.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// The directory was made for it, and goes with it.
    own: Option<Arc<Folder>>,
}

impl Folders {
    /// Has the server stay as long as the engine lives: else each one that is alone would start it anew, and end it.
    pub(super) fn hold(&self, host: &Host) -> Result<()> {
        let mut hold = self.hold.lock();
        if !hold.as_ref().is_some_and(Hold::lasts) {
            *hold = host.hold()?;
        }
        Ok(())
    }

    /// A directory of its own, for whoever asks.
    pub(super) fn place(&self, store: &Store, host: &Host) -> Result<Place> {
        let failed = |error: io::Error| Error::new(ErrorKind::Store, "make a place for the root file system", error);
        let folder = self.folder(store, host).map_err(failed)?;
        let path = folder.path.join(folder.made.fetch_add(1, Ordering::Relaxed).to_string());
        private::create_dir(&path).map_err(failed)?;
        Ok(Place { path, own: Some(folder) })
    }

    fn folder(&self, store: &Store, host: &Host) -> io::Result<Arc<Folder>> {
        let mut known = self.folder.lock();
        if let Some(folder) = &*known {
            return Ok(folder.clone());
        }
        let run = store.run_folder();
        sweep(&run, host);
        let folder = Arc::new(Folder::make(&run)?);
        *known = Some(folder.clone());
        Ok(folder)
    }
}

impl Folder {
    fn make(run: &Path) -> io::Result<Self> {
        loop {
            // Private: it holds images with their setuid programs.
            let path = tempfile::Builder::new().prefix(PREFIX).tempdir_in(run)?.keep();
            let lock = match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            // Another process that sweeps may take it for one that was left.
            let Some(lock) = flock::try_lock(lock)? else { continue };
            if path.exists() {
                return Ok(Self { path, _lock: lock, made: AtomicU64::new(1) });
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Something that was kept, or could not be unmounted, keeps it.
        let _with_the_last = std::fs::remove_dir(&self.path);
    }
}

impl Place {
    /// A directory of somebody else's.
    pub(super) fn given(path: &Path) -> Result<Self> {
        let failed = |error| Error::new(ErrorKind::NotFound, format!("find {}", path.display()), error);
        Ok(Self { path: path.canonicalize().map_err(failed)?, own: None })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Nobody knows whether it was mounted: the answer may be what was lost. On a directory of somebody else's may be what was there before.
    pub(super) fn abandon(&self, host: &Host) {
        if self.own.is_some()
            && let Err(error) = host.unmount(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "a root file system may stay mounted");
        }
        self.remove();
    }

    /// Nothing is mounted on it any more.
    pub(super) fn remove(&self) {
        if self.own.is_some()
            && let Err(error) = std::fs::remove_dir(&self.path)
        {
            tracing::debug!(path = %self.path.display(), %error, "the directory of a root file system stays behind");
        }
    }
}

/// Unmounts and removes what processes left that were killed.
fn sweep(run: &Path, host: &Host) {
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
    use crate::server::Client;

    #[test]
    fn what_a_killed_process_left_is_swept_and_what_is_held_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), StoreConfig::default()).unwrap();
        let host: Host = Client::new(store.clone(), Vec::new()).into();
        let held = Folders::default();
        let place = held.place(&store, &host).unwrap();
        let left = store.run_folder().join("rootfs-left");
        std::fs::create_dir_all(left.join("7")).unwrap();
        let other = Folders::default();
        let another = other.place(&store, &host).unwrap();
        assert!(place.path().is_dir() && another.path().is_dir() && !left.exists());
        let paths: HashSet<_> = (0..9).map(|_| held.place(&store, &host).unwrap().path).collect();
        assert_eq!(paths.len(), 9);
        another.remove();
        let parent = another.path().parent().unwrap().to_owned();
        drop((another, other));
        assert!(!parent.exists(), "it goes with its engine");
    }

    #[test]
    fn a_directory_of_somebody_elses_must_be_there_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Place::given(&folder.path().join("none")).unwrap_err().kind, ErrorKind::NotFound);
        Place::given(folder.path()).unwrap().remove();
        assert!(folder.path().exists());
    }
}
