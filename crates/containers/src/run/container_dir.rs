//! [`ContainerDir`]: the directory of a container and its lock.
//!
//! ```text
//! containers/.lock             held while a container is created or its directory is removed
//! containers/.runtime          what the OCI runtime of the last container reported
//! containers/NAME/lock         held by the process that keeps the container, as long as that process lives
//!                 container.json  the record; only the holder of the lock writes it
//!                 config.json  the bundle            rootfs/  where the image is mounted
//!                 upper/       its writable layer    runtime/ the state of the OCI runtime
//!                 log  log.1   its output, if it is detached
//!                 waiters      held by processes that wait for its end
//!                 hosts  hostname  resolv.conf       mounted in its /etc
//! ```
//!
//! A directory appears under its name complete, by a rename, and disappears by a rename. A sweep removes what a killed process left in
//! between. Files are deleted without the lock of all containers, because a large directory takes long: under it a directory is only
//! renamed and claimed, so that one process deletes it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use tarpon_client::{ContainerName, ROOTFS, random_id};
use tarpon_store::flock;
use tarpon_store::private;
use tarpon_store::{FileLock, Store};

use super::record::{ContainerRecord, RECORD_BYTES};
use crate::{Error, ErrorKind, Result, ResultExt};

/// Prefix of directories that are not yet, or no longer, a container.
const HIDDEN: &str = ".";
const LOCK: &str = "lock";
const RECORD: &str = "container.json";

/// How long to wait for another process that creates or removes a directory. That takes milliseconds unless the disk is very busy.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How long to wait for processes that take a container's lock only to check if it is held.
const RETAKEN: Duration = Duration::from_secs(1);

/// All containers of a store.
#[derive(Debug, Clone)]
pub(super) struct ContainerDirs {
    folder: PathBuf,
}

/// The directory of one container.
#[derive(Debug, Clone)]
pub(super) struct ContainerDir {
    folder: PathBuf,
}

/// The right to change a container, for the life of this value or of the process that inherits it.
#[derive(Debug)]
pub(super) struct Lock(FileLock);

/// A directory that is no container any more, for this process to delete: it holds the lock of the directory itself.
#[derive(Debug)]
struct Remains {
    folder: PathBuf,
    _claim: FileLock,
}

/// The result of an attempt to hold a container.
#[derive(Debug)]
pub(super) enum Holding {
    /// This process holds it.
    Ours(Lock),
    /// Another process holds it, for longer than the given patience.
    Theirs,
    /// It was removed. Another container may have its name.
    Gone,
}

impl ContainerDirs {
    pub(super) fn of(store: &Store) -> Self {
        Self { folder: store.containers_folder() }
    }

    /// The directory of the container of this name, existing or not.
    pub(super) fn place(&self, name: &ContainerName) -> ContainerDir {
        ContainerDir { folder: self.folder.join(name.as_str()) }
    }

    /// The file with what the OCI runtime reported. It can be written once there was a container.
    pub(super) fn runtime_report(&self) -> PathBuf {
        self.folder.join(format!("{HIDDEN}runtime"))
    }

    /// # Errors
    /// [`ErrorKind::Conflict`] if a container of this name exists.
    pub(super) fn check_free(&self, name: &ContainerName) -> Result<()> {
        if self.place(name).exists() { Err(taken(name)) } else { Ok(()) }
    }

    /// Creates the directory of a new container and holds its lock.
    pub(super) fn create(&self, record: &ContainerRecord) -> Result<(ContainerDir, Lock)> {
        let made = || -> io::Result<Option<(ContainerDir, Lock)>> {
            match private::create_dir(&self.folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            let staging = ContainerDir { folder: self.folder.join(format!("{HIDDEN}new-{}", record.id)) };
            // Creating the contents takes as long as the disk takes. The sweep skips directories that are held.
            let (remains, lock) = {
                let _whole = self.lock()?;
                (self.sweep(), staging.begin()?)
            };
            for left in remains {
                // The next sweep finds what cannot be deleted now.
                let _next_time = left.delete();
            }
            staging.fill(record)?;
            let place = self.place(&record.name);
            match rustix::fs::renameat_with(CWD, &staging.folder, CWD, &place.folder, RenameFlags::NOREPLACE) {
                Ok(()) => Ok(Some((place, lock))),
                Err(error) => {
                    std::fs::remove_dir_all(&staging.folder)?;
                    if error == Errno::EXIST { Ok(None) } else { Err(error.into()) }
                }
            }
        };
        made().context(ErrorKind::Store, "make a directory for the container")?.ok_or_else(|| taken(&record.name))
    }

    /// All containers, by name. Entries whose name is not a valid container name are ignored, and so are remains of containers.
    pub(super) fn list(&self) -> Result<Vec<(ContainerName, ContainerDir)>> {
        let step = "list the containers";
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.context(ErrorKind::Store, step)?,
        };
        let mut all: Vec<(ContainerName, ContainerDir)> = Vec::new();
        for entry in entries {
            let entry = entry.context(ErrorKind::Store, step)?;
            let name = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let place = ContainerDir { folder: entry.path() };
            all.extend(name.filter(|_| place.exists()).map(|name| (name, place)));
        }
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(all)
    }

    /// Removes the directory of a container that `held` is the lock of. The name is free at once. If the container was removed already,
    /// another one that has its name stays.
    ///
    /// # Errors
    /// Something is mounted in the directory. Then nothing is removed.
    pub(super) fn remove(&self, place: &ContainerDir, held: &Lock) -> Result<()> {
        let step = "remove the container's directory";
        if held.is_of(place).context(ErrorKind::Store, step)? && place.is_mounted() {
            let cause = format!("the image is still mounted on {}", place.rootfs().display());
            return Err(Error::new(ErrorKind::CannotMount, "remove the container's directory", cause));
        }
        super::waiters::let_waiters_look(place.folder());
        let remains = {
            let _whole = self.lock().context(ErrorKind::Store, step)?;
            if !held.is_of(place).context(ErrorKind::Store, step)? {
                return Ok(());
            }
            self.retire(place).context(ErrorKind::Store, step)?
        };
        remains.map_or(Ok(()), Remains::delete).context(ErrorKind::Store, step)
    }

    /// Renames a directory so that it is no container any more, and claims it. The caller must hold the lock of all. `None`: it does not
    /// exist, or another process deletes it.
    fn retire(&self, place: &ContainerDir) -> io::Result<Option<Remains>> {
        let claim = match rustix::fs::open(&place.folder, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            folder => flock::try_lock(folder?)?,
        };
        let Some(claim) = claim else { return Ok(None) };
        let gone = self.folder.join(format!("{HIDDEN}gone-{}", random_id()));
        std::fs::rename(&place.folder, &gone)?;
        Ok(Some(Remains { folder: gone, _claim: claim }))
    }

    fn lock(&self) -> io::Result<FileLock> {
        flock::hold(&self.folder.join(format!("{HIDDEN}lock")), TIMEOUT)
    }

    /// Finds what a killed process left while it created or removed a container, directories that a runtime created again after
    /// their container was removed, and what a crash of the machine left of a container that was to be removed at its end. A live process
    /// holds the lock of a container. The caller must hold that of all, and release it before it deletes the result.
    fn sweep(&self) -> Vec<Remains> {
        let mut remains = Vec::new();
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let (name, place) = (entry.file_name(), ContainerDir { folder: entry.path() });
            let name = name.to_string_lossy();
            let is_temporary = [".new-", ".gone-"].iter().any(|begin| name.starts_with(begin));
            if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                if is_temporary {
                    let _next_time = std::fs::remove_file(entry.path());
                }
                continue;
            }
            let is_left = is_temporary
                || name.parse::<ContainerName>().is_ok() && (place.has_no_lock() || place.has_empty_record());
            if is_left && !place.is_held() && !place.is_mounted() {
                remains.extend(self.retire(&place).ok().flatten());
            }
        }
        remains
    }
}

/// The container whose root is mounted at `mountpoint`, and its directory.
pub(super) fn container_dir_at(store: &Store, mountpoint: &Path) -> Option<(ContainerName, ContainerDir)> {
    let name = ContainerName::of_mount(store, mountpoint)?;
    let place = ContainerDirs::of(store).place(&name);
    Some((name, place))
}

impl Remains {
    fn delete(self) -> io::Result<()> {
        match std::fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn taken(name: &ContainerName) -> Error {
    Error::new(ErrorKind::Conflict, "name the container", format!("there is a container {name} already"))
        .hint(format!("remove it with `tarpon rm {name}`, or use another --name"))
}

impl ContainerDir {
    /// Creates the directory of a new container under a temporary name, and holds its lock.
    fn begin(&self) -> io::Result<Lock> {
        private::create_dir(&self.folder)?;
        let lock = Lock::within(flock::open(&self.folder.join(LOCK))?, Duration::ZERO)?;
        lock.ok_or_else(|| io::Error::other("a new directory is locked"))
    }

    /// Creates everything else in the directory.
    fn fill(&self, record: &ContainerRecord) -> io::Result<()> {
        for directory in [self.rootfs(), self.upper(), self.runtime()] {
            private::create_dir(&directory)?;
        }
        // This is the container's root directory, which users other than root read.
        std::fs::set_permissions(self.upper(), std::fs::Permissions::from_mode(0o755))?;
        self.write(record)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn rootfs(&self) -> PathBuf {
        self.folder.join(ROOTFS)
    }

    pub(super) fn upper(&self) -> PathBuf {
        self.folder.join("upper")
    }

    pub(super) fn runtime(&self) -> PathBuf {
        self.folder.join("runtime")
    }

    /// The file in which the runtime writes the PID of the container.
    pub(super) fn pid_file(&self) -> PathBuf {
        self.folder.join("pid")
    }

    /// The file in which the runtime writes its errors.
    pub(super) fn runtime_log(&self) -> PathBuf {
        self.folder.join("runtime.log")
    }

    /// Writes a file that the container sees in `/etc`.
    pub(super) fn put(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        let written = std::fs::write(&path, text)
            .and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)));
        written.context(ErrorKind::Store, format!("write the container's {name}"))?;
        Ok(path)
    }

    /// The content of such a file.
    pub(super) fn text(&self, name: &str) -> Result<String> {
        std::fs::read_to_string(self.folder.join(name))
            .context(ErrorKind::Store, format!("read the container's {name}"))
    }

    /// Whether it is that of a container, which has a lock from its creation to its removal.
    pub(super) fn exists(&self) -> bool {
        self.folder.join(LOCK).symlink_metadata().is_ok()
    }

    /// Whether it is certain that it has no lock.
    fn has_no_lock(&self) -> bool {
        let lock = self.folder.join(LOCK).symlink_metadata();
        lock.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// Whether its record is an empty file, which no process writes: a crash of the machine left it.
    fn has_empty_record(&self) -> bool {
        self.folder.join(RECORD).symlink_metadata().is_ok_and(|record| record.is_file() && record.len() == 0)
    }

    /// Reads the record.
    ///
    /// # Errors
    /// One line: the record is missing or not readable by this version.
    pub(super) fn record(&self) -> std::result::Result<ContainerRecord, String> {
        let mut text = Vec::new();
        let read = File::open(self.folder.join(RECORD)).and_then(|file| file.take(RECORD_BYTES).read_to_end(&mut text));
        read.map_err(|error| format!("its record cannot be read: {error}"))?;
        ContainerRecord::parse(&text)
    }

    /// Writes the record atomically. The caller must hold the lock. The record of a container that is removed at its end need not survive a
    /// crash of the machine.
    pub(super) fn write(&self, record: &ContainerRecord) -> io::Result<()> {
        let write = if record.remove { private::write_volatile } else { private::write };
        write(&self.folder.join(RECORD), &serde_json::to_vec(record)?)
    }

    /// Whether a process holds its lock.
    pub(super) fn is_held(&self) -> bool {
        let Ok(file) = File::open(self.folder.join(LOCK)) else { return false };
        matches!(flock::try_share(file), Ok(None))
    }

    /// Whether the container at this place still has this `id`. One whose record cannot be read counts as the same.
    pub(super) fn is_of(&self, id: &str) -> bool {
        self.record().map_or_else(|_| self.exists(), |record| record.id == id)
    }

    /// Takes the lock, once it is free.
    pub(super) fn hold(&self, patience: Duration) -> io::Result<Holding> {
        let file = match File::open(self.folder.join(LOCK)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Holding::Gone),
            file => file?,
        };
        match Lock::within(file, patience)? {
            // The previous holder may have removed the directory: the lock is found by path but held by file.
            Some(lock) if lock.is_of(self)? => Ok(Holding::Ours(lock)),
            Some(_) => Ok(Holding::Gone),
            None => Ok(Holding::Theirs),
        }
    }

    /// The lock that this process inherited, if it is the lock of this container.
    pub(super) fn inherit(&self, lock: OwnedFd) -> io::Result<Lock> {
        let lock = Lock::within(lock.into(), Duration::ZERO)?;
        let lock = lock.ok_or_else(|| io::Error::other("another process keeps the container"))?;
        if lock.is_of(self)? { Ok(lock) } else { Err(io::Error::other("this is not the lock of the container")) }
    }

    /// Whether something is mounted at its root directory. If that cannot be determined, it counts as mounted.
    pub(super) fn is_mounted(&self) -> bool {
        tarpon_mount::is_mounted(&self.rootfs())
    }
}

impl Lock {
    fn within(file: File, patience: Duration) -> io::Result<Option<Self>> {
        Ok(flock::lock_within(file, patience)?.map(Self))
    }

    /// Whether this is the lock of the directory now at this place. While it is held, no other process replaces that directory.
    pub(super) fn is_of(&self, place: &ContainerDir) -> io::Result<bool> {
        let ours = rustix::fs::fstat(&self.0)?;
        match rustix::fs::stat(place.folder.join(LOCK)) {
            Ok(theirs) => Ok((ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Leaves the lock to the process that has a copy of it ([`Lock::share`]).
    pub(super) fn leave_to_heir(&mut self) {
        self.0.leave_to_heir();
    }

    /// Takes it again after an heir may have released it. Returns `false` if another process keeps the container now.
    pub(super) fn retake(&self) -> io::Result<bool> {
        flock::take_within(&self.0, RETAKEN)
    }

    /// A copy of the lock for another process. Either process releases it for both.
    pub(super) fn share(&self) -> io::Result<OwnedFd> {
        self.0.as_fd().try_clone_to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;

    fn containers(folder: &Path) -> ContainerDirs {
        ContainerDirs { folder: folder.join("containers") }
    }

    fn names(all: &ContainerDirs) -> Vec<String> {
        all.list().unwrap().iter().map(|(name, _)| name.to_string()).collect()
    }

    #[test]
    fn a_container_has_its_name_until_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let all = containers(folder.path());
        assert!(names(&all).is_empty());
        let (place, lock) = all.create(&record("web")).unwrap();
        assert_eq!(place.record(), Ok(record("web")));
        let error = all.create(&record("web")).unwrap_err();
        assert!(error.cause().to_string().contains("there is a container web already") && error.hint.is_some());
        assert!(all.check_free(&"web".parse().unwrap()).is_err());
        assert_eq!(names(&all), ["web"]);
        all.remove(&place, &lock).unwrap();
        assert!(names(&all).is_empty());
        let left: Vec<_> = std::fs::read_dir(&all.folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [".lock"]);
    }

    #[test]
    fn remains_of_a_removed_container_do_not_occupy_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let all = containers(folder.path());
        let (place, lock) = all.create(&record("web")).unwrap();
        all.remove(&place, &lock).unwrap();
        // As a runtime does that has to end the container after that.
        std::fs::create_dir_all(place.runtime()).unwrap();
        assert!(names(&all).is_empty() && !place.exists());
        assert!(matches!(place.hold(Duration::ZERO).unwrap(), Holding::Gone));
        all.check_free(&"web".parse().unwrap()).unwrap();
        let (place, _lock) = all.create(&record("web")).unwrap();
        assert_eq!(place.record(), Ok(record("web")));
    }

    #[test]
    fn one_process_keeps_a_container_and_the_others_can_tell() {
        let folder = tempfile::tempdir().unwrap();
        let (place, mut lock) = containers(folder.path()).create(&record("web")).unwrap();
        assert!(place.is_held() && matches!(place.hold(Duration::ZERO).unwrap(), Holding::Theirs));
        let inherited = place.inherit(lock.share().unwrap()).unwrap();
        lock.leave_to_heir();
        drop(lock);
        assert!(place.is_held(), "whoever inherits it holds it");
        drop(inherited);
        assert!(!place.is_held() && matches!(place.hold(Duration::ZERO).unwrap(), Holding::Ours(_)));
        let other = File::open(folder.path()).unwrap();
        assert!(place.inherit(other.into()).is_err());
    }

    #[test]
    fn a_wait_for_a_removed_container_does_not_get_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let all = containers(folder.path());
        let (place, keeper) = all.create(&record("web")).unwrap();
        let waiting = {
            let place = place.clone();
            std::thread::spawn(move || place.hold(TIMEOUT).unwrap())
        };
        all.remove(&place, &keeper).unwrap();
        let next = ContainerRecord { id: "ba9876543210".to_owned(), ..record("web") };
        let (_, next_lock) = all.create(&next).unwrap();
        drop(next_lock);
        all.remove(&place, &keeper).unwrap();
        assert!(place.is_of(&next.id) && !place.is_of(&record("web").id), "the old lock removes nothing new");
        drop(keeper);
        // The thread has opened the first lock file, or opens the next one. A lock that it holds is that of the current directory.
        match waiting.join().unwrap() {
            Holding::Ours(lock) => assert!(lock.is_of(&place).unwrap()),
            Holding::Theirs => panic!("no process holds the lock"),
            Holding::Gone => {}
        }
    }

    #[test]
    fn a_lock_that_was_opened_before_the_container_went_is_of_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let all = containers(folder.path());
        let (place, keeper) = all.create(&record("web")).unwrap();
        all.remove(&place, &keeper).unwrap();
        assert!(!keeper.is_of(&place).unwrap());
        assert!(matches!(place.hold(Duration::ZERO).unwrap(), Holding::Gone));
        let (_, _next) = all.create(&record("web")).unwrap();
        assert!(!keeper.is_of(&place).unwrap());
        assert!(place.inherit(keeper.share().unwrap()).is_err());
    }

    #[test]
    fn what_a_killed_process_left_is_swept_and_what_is_held_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let all = containers(folder.path());
        let (_place, _lock) = all.create(&record("web")).unwrap();
        for left in [".new-1", ".gone-2", ".new-3", "crashed"] {
            std::fs::create_dir(all.folder.join(left)).unwrap();
        }
        for file in [".new-4", "crashed/lock", "crashed/container.json"] {
            std::fs::write(all.folder.join(file), "").unwrap();
        }
        let held = ContainerDir { folder: all.folder.join(".new-3") };
        let _maker = Lock::within(flock::open(&held.folder.join(LOCK)).unwrap(), Duration::ZERO).unwrap().unwrap();
        all.sweep().into_iter().for_each(|left| left.delete().unwrap());
        let is_there = |name: &str| all.folder.join(name).exists();
        assert_eq!([".new-1", ".gone-2", ".new-3", "web"].map(is_there), [false, false, true, true]);
        assert_eq!([".new-4", "crashed"].map(is_there), [false, false]);
        assert_eq!(names(&all), ["web"]);
    }

    #[test]
    fn what_is_swept_is_no_container_at_once_and_one_process_deletes_it_later() {
        let folder = tempfile::tempdir().unwrap();
        let all = containers(folder.path());
        let (_place, _lock) = all.create(&record("web")).unwrap();
        std::fs::create_dir_all(all.folder.join("crashed/upper/large")).unwrap();
        let hidden = || -> Vec<PathBuf> {
            let entries = std::fs::read_dir(&all.folder).unwrap().map(|entry| entry.unwrap().path());
            entries.filter(|path| path.join("upper/large").exists()).collect()
        };
        let remains = all.sweep();
        assert_eq!(remains.len(), 1);
        assert!(!all.folder.join("crashed").exists() && names(&all) == ["web"], "its name is free");
        assert_eq!(hidden(), [remains[0].folder.clone()], "nothing is deleted under the lock of all");
        assert!(all.sweep().is_empty(), "one process deletes it");
        // As if that process was killed.
        drop(remains);
        let remains = all.sweep();
        assert_eq!(hidden(), [remains[0].folder.clone()]);
        remains.into_iter().for_each(|left| left.delete().unwrap());
        assert!(hidden().is_empty());
    }

    #[test]
    fn other_users_cannot_read_the_files_of_a_container() {
        let folder = tempfile::tempdir().unwrap();
        let (place, _lock) = containers(folder.path()).create(&record("web")).unwrap();
        let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(place.folder.clone()), 0o700);
        assert_eq!(mode(place.folder.join("container.json")), 0o600);
        assert_eq!(mode(place.upper()), 0o755, "but this is the root of the container");
        assert!(!place.is_mounted());
    }
}
