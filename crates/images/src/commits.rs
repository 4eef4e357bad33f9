//! [`Commits`]: committed images, kept until they are pushed and for as long as they are wanted.
//!
//! ```text
//! commits/.lock          held while one appears, changes or goes
//! commits/HEX/           named by the hash of the image's name: an OCI layout of manifest, config and new layer
//!             commit.json  what it is made of, and whether it was pushed
//! ```
//!
//! A directory appears under its name whole, by a rename, and disappears by one. Readers hold a shared lock on it. The process that creates
//! or replaces a commit removes unlocked leftovers; the next one sweeps the rest.
//!
//! Commits are user data, as containers are: nothing here counts towards the store's size or is evicted. An unpushed commit is removed only
//! on a request that names it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tarpon_oci::{Digest, Source, limits};
use tarpon_store::flock;
use tarpon_store::private;
use tarpon_store::{FileLock, Store};

use crate::error::{Error, ErrorKind, Result, ResultExt};

/// The version that this program writes, and the only one that it reads.
const VERSION: u32 = 1;
/// The single name in the layout.
pub const TAG: &str = "image";
const RECORD: &str = "commit.json";
/// Prefix of directories that are not yet, or no longer, a commit.
const NEW: &str = ".new-";
const GONE: &str = ".gone-";

/// How long to wait for a rename by another process.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// The record of a committed image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    version: u32,
    /// Its name, normalised.
    pub image: String,
    /// Digest of its manifest.
    pub digest: Digest,
    /// The image that it is based on, by a name under which its blobs are available.
    pub base: String,
    /// Digest of the base's manifest.
    pub base_digest: Digest,
    /// The new layer.
    pub layer: Digest,
    /// Bytes of its blob.
    pub layer_size: u64,
    /// Compressed bytes of all layers.
    pub size: u64,
    /// Time of the commit, in seconds since 1970.
    pub committed: u64,
    /// Where it was pushed to, if at all: its own name if it was ever pushed there, else the last destination.
    pub pushed: Option<String>,
}

impl Committed {
    /// The record of an image that was committed just now.
    pub fn new(image: &Source, digest: Digest, base: (&Source, Digest), layer: tarpon_oci::Blob, size: u64) -> Self {
        Self {
            version: VERSION,
            image: image.to_string(),
            digest,
            base: base.0.to_string(),
            base_digest: base.1,
            layer: layer.digest,
            layer_size: layer.size,
            size,
            committed: std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs(),
            pushed: None,
        }
    }
}

impl Committed {
    /// Whether its name leads to it for all users: it was pushed under it. Otherwise the name may refer to another image.
    pub(crate) fn has_its_name(&self) -> bool {
        self.pushed.as_ref() == Some(&self.image)
    }

    /// Whether removing it loses nothing: its name leads to it in a registry. A layout is a directory that may be removed.
    fn is_dispensable(&self) -> bool {
        self.has_its_name() && matches!(self.image.parse(), Ok(Source::Registry(_)))
    }
}

/// All commits of a store.
#[derive(Debug, Clone)]
pub struct Commits {
    folder: PathBuf,
}

/// A directory that is not removed while this lives.
#[derive(Debug)]
pub struct HeldCommit {
    folder: FileLock,
    /// Its record.
    pub committed: Committed,
}

/// A commit under construction. Dropped before it is installed, it leaves nothing.
#[derive(Debug)]
pub struct Staging {
    commits: Commits,
    folder: tempfile::TempDir,
    held: FileLock,
}

impl Commits {
    /// The commits kept in `store`.
    pub fn of(store: &Store) -> Self {
        Self { folder: store.commits_folder() }
    }

    /// All commits, by name. Unreadable ones are left out.
    pub fn list(&self) -> Result<Vec<Committed>> {
        let mut all = Vec::new();
        for folder in self.folders().context(ErrorKind::Store, "list the committed images")? {
            match read(&folder) {
                Ok(committed) => all.push(committed),
                Err(error) => tracing::warn!(commit = %folder.display(), %error, "is not believed"),
            }
        }
        all.sort_by(|one, other| one.image.cmp(&other.image));
        Ok(all)
    }

    /// The commit of this name.
    pub fn find(&self, image: &Source) -> Result<Option<Committed>> {
        match read(&self.place(image)) {
            Ok(committed) => Ok(Some(committed)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::new(ErrorKind::Store, "look for a committed image", error)),
        }
    }

    /// Removes and returns the commit of this name.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] for one that was never pushed, unless with `force`.
    pub fn remove(&self, image: &Source, force: bool) -> Result<Option<Committed>> {
        let step = "remove the committed image";
        let failed = |error: io::Error| Error::new(ErrorKind::Store, step, error);
        // Without a commit there is nothing to lock either.
        if self.find(image)?.is_none() {
            return Ok(None);
        }
        // The commit is not replaced between these steps.
        let _whole = self.lock().map_err(failed)?;
        let Some(committed) = self.find(image)? else { return Ok(None) };
        if committed.pushed.is_none() && !force {
            return Err(Error::new(ErrorKind::Refused, step, "it was never pushed, and is nowhere else")
                .hint(format!("`tarpon push {}` pushes it; --force removes it all the same", committed.image)));
        }
        self.retire(&self.place(image)).map_err(failed)?;
        Ok(Some(committed))
    }

    /// Removes the commits that were pushed to a registry under their names. Their content is available from there.
    pub fn remove_pushed(&self) -> Result<Vec<Committed>> {
        let step = "remove a committed image";
        if self.folders().context(ErrorKind::Store, step)?.is_empty() {
            return Ok(Vec::new());
        }
        // An unpushed commit does not replace a pushed one between these steps.
        let _whole = self.lock().context(ErrorKind::Store, step)?;
        let mut removed = Vec::new();
        for committed in self.list()?.into_iter().filter(Committed::is_dispensable) {
            self.retire(&self.named(&committed.image)).context(ErrorKind::Store, step)?;
            removed.push(committed);
        }
        Ok(removed)
    }

    /// Begins a commit.
    pub fn stage(&self) -> io::Result<Staging> {
        match private::create_dir(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let _whole = self.lock()?;
        self.sweep();
        let folder = tempfile::Builder::new().prefix(NEW).tempdir_in(&self.folder)?;
        let held = share(File::open(folder.path())?)?;
        Ok(Staging { commits: self.clone(), folder, held })
    }

    /// Locks the commit of this name for reading.
    pub fn hold(&self, image: &Source) -> Result<Option<HeldCommit>> {
        let step = "read the committed image";
        if !self.folder.exists() {
            return Ok(None);
        }
        // The commit is not replaced between these steps.
        let _whole = self.lock().context(ErrorKind::Store, step)?;
        let folder = match File::open(self.place(image)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            folder => folder.context(ErrorKind::Store, step)?,
        };
        let folder = share(folder).context(ErrorKind::Store, step)?;
        let committed = read(&by_descriptor(&folder)).context(ErrorKind::Store, step)?;
        Ok(Some(HeldCommit { folder, committed }))
    }

    /// Records that `held` was pushed, unless another commit has its name by now.
    pub fn note_pushed(&self, held: &HeldCommit, destination: &str) -> io::Result<()> {
        let _whole = self.lock()?;
        let place = self.named(&held.committed.image);
        match read(&place) {
            Ok(now) if now.digest == held.committed.digest && !now.has_its_name() => {
                write(&place, &Committed { pushed: Some(destination.to_owned()), ..now })
            }
            _ => Ok(()),
        }
    }

    fn place(&self, image: &Source) -> PathBuf {
        self.named(&image.to_string())
    }

    fn named(&self, image: &str) -> PathBuf {
        self.folder.join(Digest::of(image.as_bytes()).hex())
    }

    fn folders(&self) -> io::Result<Vec<PathBuf>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut folders = Vec::new();
        for entry in entries {
            let entry = entry?;
            let is_commit = entry.file_name().to_str().is_some_and(|name| Digest::from_hex(name).is_ok());
            folders.extend(is_commit.then(|| entry.path()));
        }
        Ok(folders)
    }

    fn lock(&self) -> io::Result<FileLock> {
        flock::hold(&self.folder.join(".lock"), LOCK_TIMEOUT)
    }

    /// Makes a commit disappear at once, and removes it unless it is being read. The caller holds the lock.
    fn retire(&self, place: &Path) -> io::Result<()> {
        let gone = tempfile::Builder::new().prefix(GONE).tempdir_in(&self.folder)?.keep();
        match std::fs::rename(place, &gone) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.sweep();
        Ok(())
    }

    /// Removes unlocked directories without a name. The caller holds the lock.
    fn sweep(&self) {
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_left = [NEW, GONE].iter().any(|begin| name.to_string_lossy().starts_with(begin));
            let free = |path: &Path| File::open(path).and_then(flock::try_lock).ok().flatten();
            if is_left && let Some(_held) = free(&entry.path()) {
                let _next_time = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}

impl HeldCommit {
    /// The layout to read it from, whatever its name refers to by now.
    pub fn layout(&self) -> Source {
        Source::OciLayout { directory: by_descriptor(&self.folder), tag: Some(TAG.to_owned()) }
    }
}

impl Staging {
    /// The layout to write it to.
    pub fn layout(&self) -> Source {
        Source::OciLayout { directory: self.folder.path().to_owned(), tag: Some(TAG.to_owned()) }
    }

    /// Gives it its name, replacing the commit that had the name.
    pub fn install(self, committed: &Committed) -> io::Result<()> {
        write(self.folder.path(), committed)?;
        let _whole = self.commits.lock()?;
        let (staged, place) = (self.folder.path(), self.commits.named(&committed.image));
        match rustix::fs::renameat_with(CWD, staged, CWD, &place, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => rustix::fs::renameat_with(CWD, staged, CWD, &place, RenameFlags::EXCHANGE)?,
            renamed => renamed?,
        }
        File::open(&self.commits.folder)?.sync_all()?;
        // The staged name now holds the replaced commit, if any. Its readers may still read it.
        let _left = self.folder.keep();
        drop(self.held);
        self.commits.sweep();
        Ok(())
    }
}

/// Takes a shared lock on a directory. Only a holder of the lock on all commits takes it exclusively.
fn share(folder: File) -> io::Result<FileLock> {
    flock::try_share(folder)?.ok_or_else(|| io::Error::other("another process removes it"))
}

fn by_descriptor(folder: &File) -> PathBuf {
    format!("/proc/self/fd/{}", folder.as_raw_fd()).into()
}

fn read(folder: &Path) -> io::Result<Committed> {
    let mut text = Vec::new();
    File::open(folder.join(RECORD))?.take(limits::STORE_RECORD_BYTES).read_to_end(&mut text)?;
    let committed: Committed = serde_json::from_slice(&text)?;
    match committed.version {
        VERSION => Ok(committed),
        version => {
            Err(io::Error::other(format!("its record is of version {version}, and this tarpon reads {VERSION}")))
        }
    }
}

/// Writes the record into a commit's directory durably: a commit with a name is whole even after a crash of the machine.
fn write(folder: &Path, committed: &Committed) -> io::Result<()> {
    private::write(&folder.join(RECORD), &serde_json::to_vec(committed)?)?;
    File::open(folder)?.sync_all()
}

/// An error if the store has an unpushed commit of this name: what the name meant before no longer applies.
///
/// # Errors
/// The image is in this store alone, or elsewhere under other names.
pub fn check_not_only_here(store: &Store, image: &Source) -> Result<()> {
    match Commits::of(store).find(image)? {
        Some(committed) if !committed.has_its_name() => {
            let cause = "it was committed here and not pushed under this name, and only images in a registry can be read lazily";
            let error = Error::new(ErrorKind::NotFound, "find the image", cause);
            Err(error.hint(format!("tarpon push {}", committed.image)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tarpon_oci::Blob;

    use super::*;

    fn commits(folder: &Path) -> Commits {
        Commits { folder: folder.join("commits") }
    }

    fn source(text: &str) -> Source {
        text.parse().unwrap()
    }

    fn committed(name: &str, content: &str) -> Committed {
        let layer = Blob { digest: Digest::of(content.as_bytes()), size: 7 };
        Committed::new(&source(name), layer.digest, (&source("base:1"), Digest::of(b"base")), layer, 9)
    }

    fn commit(commits: &Commits, name: &str, content: &str) {
        let staging = commits.stage().unwrap();
        std::fs::write(staging.folder.path().join("layer"), content).unwrap();
        staging.install(&committed(name, content)).unwrap();
    }

    fn left(commits: &Commits) -> usize {
        std::fs::read_dir(&commits.folder).unwrap().count()
    }

    #[test]
    fn a_commit_has_its_name_until_it_is_replaced_or_removed() {
        let folder = tempfile::tempdir().unwrap();
        let all = commits(folder.path());
        assert!(all.list().unwrap().is_empty() && all.find(&source("app:1")).unwrap().is_none());
        commit(&all, "app:1", "one");
        commit(&all, "app:2", "two");
        commit(&all, "app:1", "three");
        let names: Vec<String> = all.list().unwrap().into_iter().map(|found| found.image).collect();
        assert_eq!(names, ["docker.io/library/app:1", "docker.io/library/app:2"]);
        assert_eq!(all.find(&source("app:1")).unwrap().unwrap().digest, Digest::of(b"three"));
        assert_eq!(left(&all), 3, "two commits and the lock");
        assert!(all.remove(&source("app:3"), true).unwrap().is_none());
        assert!(all.remove(&source("app:1"), true).unwrap().is_some());
        assert!(all.find(&source("app:1")).unwrap().is_none());
        assert_eq!(left(&all), 2);
    }

    #[test]
    fn an_unpushed_commit_is_removed_only_by_force() {
        let folder = tempfile::tempdir().unwrap();
        let all = commits(folder.path());
        commit(&all, "app:1", "one");
        commit(&all, "app:2", "two");
        let error = all.remove(&source("app:1"), false).unwrap_err();
        assert!(error.to_string().contains("never pushed") && error.hint.unwrap().contains("tarpon push"));
        assert!(all.remove_pushed().unwrap().is_empty());
        let held = all.hold(&source("app:2")).unwrap().unwrap();
        all.note_pushed(&held, "there").unwrap();
        let pushed = || all.find(&source("app:2")).unwrap().unwrap().pushed.unwrap();
        assert_eq!(pushed(), "there");
        assert!(all.remove_pushed().unwrap().is_empty(), "its own name may lead to something else");
        for destination in [&held.committed.image, "there"] {
            all.note_pushed(&held, destination).unwrap();
            assert_eq!(pushed(), held.committed.image);
        }
        drop(held);
        assert_eq!(all.remove_pushed().unwrap().len(), 1);
        assert_eq!(all.list().unwrap().len(), 1);
    }

    #[test]
    fn a_commit_that_is_read_stays_until_it_is_released() {
        let folder = tempfile::tempdir().unwrap();
        let all = commits(folder.path());
        commit(&all, "app:1", "one");
        let held = all.hold(&source("app:1")).unwrap().unwrap();
        let Source::OciLayout { directory, .. } = held.layout() else { panic!("a layout") };
        commit(&all, "app:1", "two");
        all.remove(&source("app:1"), true).unwrap();
        assert_eq!(std::fs::read(directory.join("layer")).unwrap(), b"one");
        all.note_pushed(&held, "there").unwrap();
        assert!(all.list().unwrap().is_empty(), "another one or none has its name");
        drop(held);
        commit(&all, "app:3", "three");
        assert_eq!(left(&all), 2, "the commit and the lock");
    }

    #[test]
    fn a_commit_that_fails_leaves_nothing_and_one_that_is_killed_is_swept() {
        let folder = tempfile::tempdir().unwrap();
        let all = commits(folder.path());
        drop(all.stage().unwrap());
        assert_eq!(left(&all), 1);
        std::fs::create_dir(all.folder.join(".new-killed")).unwrap();
        let other = all.stage().unwrap();
        commit(&all, "app:1", "one");
        assert!(other.folder.path().exists(), "another process still writes it");
        assert_eq!(left(&all), 3);
    }

    #[test]
    fn records_of_other_versions_are_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let all = commits(folder.path());
        commit(&all, "app:1", "one");
        write(&all.place(&source("app:1")), &Committed { version: 9, ..committed("app:1", "one") }).unwrap();
        assert!(all.list().unwrap().is_empty());
        assert!(all.find(&source("app:1")).unwrap_err().to_string().contains("version 9"));
    }
}
