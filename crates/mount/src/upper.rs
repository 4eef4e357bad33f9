//! [`Upper`]: the directory that receives the writes of a mount.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use serde::{Deserialize, Serialize};

use crate::error::MountError;
use crate::place::{self, Identity};
use crate::protected;
use crate::spec::Writable;
use crate::table;

/// Prefix of every temporary upper in the scratch directory.
const PREFIX: &str = "upper-";

/// What overlayfs leaves in the work directory of a volatile mount (Documentation/filesystems/overlayfs.rst, "Volatile mount").
const VOLATILE_MARK: &str = "work/incompat";

/// Mode of an upper directory that is created here. The root of the mount has it too, regardless of this process's umask:
/// every user in a container must be able to traverse it.
const ROOT_MODE: Mode = Mode::from_raw_mode(0o755);

/// The upper directories of this process, each used by one mount until it cannot be in use any more.
#[derive(Debug, Default)]
pub(crate) struct Uppers {
    taken: Mutex<HashSet<PathBuf>>,
}

/// An upper directory of overlayfs with its work directory on the same disk.
#[derive(Debug)]
pub(crate) struct Upper {
    directory: PathBuf,
    work: PathBuf,
    /// Both directories, open.
    open: [OwnedFd; 2],
    /// Parent directory of both, removed with them.
    temporary: Option<PathBuf>,
    /// Whether its content is worth nothing after a crash of the machine.
    volatile: bool,
    uppers: Arc<Uppers>,
}

/// An upper directory as written to the record of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedUpper {
    directory: PathBuf,
    work: PathBuf,
    temporary: Option<PathBuf>,
}

impl Uppers {
    /// The upper of a mount that an earlier process has made.
    pub(crate) fn adopt(self: &Arc<Self>, saved: &SavedUpper) -> Result<Upper, MountError> {
        let SavedUpper { directory, work, temporary } = saved.clone();
        let open =
            |path: &Path| place::open_directory(path).map_err(MountError::io(format!("open {}", path.display())));
        let open = [open(&directory)?, open(&work)?];
        self.taken.lock().insert(directory.clone());
        // Its mount exists.
        let volatile = temporary.is_some();
        Ok(Upper { directory, work, open, temporary, volatile, uppers: self.clone() })
    }

    /// Creates what `writable` requests; temporary directories below `scratch`.
    pub(crate) fn prepare(self: &Arc<Self>, writable: &Writable, scratch: &Path) -> Result<Option<Upper>, MountError> {
        match writable {
            Writable::No => Ok(None),
            Writable::Temporary => self.temporary(scratch).map(Some),
            Writable::Upper(directory) => self.kept(directory).map(Some),
            Writable::Discarded(directory) => {
                let mut upper = self.kept(directory)?;
                upper.forget_earlier_mount()?;
                upper.volatile = true;
                Ok(Some(upper))
            }
        }
    }

    fn temporary(self: &Arc<Self>, scratch: &Path) -> Result<Upper, MountError> {
        let doing = || format!("make a temporary upper directory in {}", scratch.display());
        let parent = tempfile::Builder::new().prefix(PREFIX).tempdir_in(scratch).map_err(MountError::io(doing()))?;
        let (directory, work) = (parent.path().join("upper"), parent.path().join("work"));
        self.taken.lock().insert(directory.clone());
        let made = || -> io::Result<_> { Ok([make(&directory, Some(ROOT_MODE))?, make(&work, None)?]) };
        match made() {
            Ok(open) => {
                let temporary = Some(parent.keep());
                Ok(Upper { directory, work, open, temporary, volatile: true, uppers: self.clone() })
            }
            Err(error) => {
                self.taken.lock().remove(&directory);
                Err(MountError::io(doing())(error))
            }
        }
    }

    fn kept(self: &Arc<Self>, given: &Path) -> Result<Upper, MountError> {
        let doing = || format!("use {} as upper directory", given.display());
        let problem = |problem: String| MountError::Upper { path: given.to_owned(), problem };
        let open = make(given, Some(ROOT_MODE)).map_err(|error| problem(protected::explained(&error)))?;
        let directory = given.canonicalize().map_err(MountError::io(doing()))?;
        if Identity::of_path(&directory).ok() != Identity::of(open.as_fd()).ok() {
            return Err(problem("it is being replaced by another directory".to_owned()));
        }
        let name = directory.file_name().filter(|_| is_on_the_mount_of_its_parent(open.as_fd(), &directory));
        let name = name.ok_or_else(|| {
            problem("a file system of its own is mounted there, and overlayfs needs a work directory beside it: use a directory inside of it".to_owned())
        })?;
        let work =
            directory.with_file_name([".".as_ref(), name, ".tarpon-work".as_ref()].into_iter().collect::<OsString>());
        let mounts = table::mounts().map_err(MountError::io("read the table of mounts"))?;
        let user = mounts.iter().find(|mount| mount.upper().as_ref() == Some(&directory));
        if let Some(user) = user {
            return Err(problem(format!("the mount on {} writes to it already", user.mountpoint.display())));
        }
        if !self.taken.lock().insert(directory.clone()) {
            return Err(problem("a mount that writes to it is still in use".to_owned()));
        }
        match make(&work, None) {
            Ok(open_work) => {
                let open = [open, open_work];
                Ok(Upper { directory, work, open, temporary: None, volatile: false, uppers: self.clone() })
            }
            Err(error) => {
                self.taken.lock().remove(&directory);
                Err(MountError::io(doing())(error))
            }
        }
    }

    /// Removes the temporary uppers that an earlier process left in `scratch`, except those that a mount still uses.
    pub(crate) fn sweep(&self, scratch: &Path) {
        let Ok(mounts) = table::mounts() else { return };
        let used: HashSet<PathBuf> = mounts.iter().filter_map(table::TableEntry::upper).collect();
        // Held throughout: an upper created meanwhile is not in `used`.
        let taken = self.taken.lock();
        for entry in std::fs::read_dir(scratch).into_iter().flatten().flatten() {
            let path = entry.path();
            let upper = path.join("upper");
            let is_upper = entry.file_name().to_string_lossy().starts_with(PREFIX);
            if is_upper && !used.contains(&upper) && !taken.contains(&upper) {
                let _gone_next_time = place::remove_all(&path);
            }
        }
    }
}

impl Upper {
    /// As written to the record of its mount.
    pub(crate) fn saved(&self) -> SavedUpper {
        let Self { directory, work, temporary, .. } = self;
        SavedUpper { directory: directory.clone(), work: work.clone(), temporary: temporary.clone() }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn work(&self) -> &Path {
        &self.work
    }

    /// The upper and the work directory.
    pub(crate) fn open_directories(&self) -> [BorrowedFd<'_>; 2] {
        let [directory, work] = &self.open;
        [directory.as_fd(), work.as_fd()]
    }

    /// Whether it need not be synced.
    pub(crate) fn is_volatile(&self) -> bool {
        self.volatile
    }

    /// Removes the mark that a volatile mount left, with which the kernel refuses another one.
    fn forget_earlier_mount(&self) -> Result<(), MountError> {
        match place::remove_all(&self.work.join(VOLATILE_MARK)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(MountError::io(format!("empty {}", self.work.display()))(error))
            }
            _ => Ok(()),
        }
    }

    /// Removes temporary directories once the mount has ended and is unused.
    pub(crate) fn clean_up(self) {
        let rubbish = self.temporary.as_ref().unwrap_or(&self.work);
        if let Err(error) = place::remove_all(rubbish) {
            tracing::warn!(path = %rubbish.display(), %error, "could not be removed");
        }
    }
}

impl Drop for Upper {
    fn drop(&mut self) {
        self.uppers.taken.lock().remove(&self.directory);
    }
}

/// Opens the directory; creates it and its ancestors if missing, with this mode regardless of the umask. No symbolic link
/// is followed, and a created directory is reached by its descriptor only: the owner of a parent directory could replace
/// it.
fn make(path: &Path, mode: Option<Mode>) -> io::Result<OwnedFd> {
    match place::open_directory(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let parent = make(parent, None)?;
    match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
    if let Some(mode) = mode
        && is_empty(&made)?
    {
        // A directory with content is not the one that was created.
        rustix::fs::fchmod(&made, mode)?;
    }
    Ok(made)
}

fn is_empty(directory: &OwnedFd) -> io::Result<bool> {
    for entry in rustix::fs::Dir::read_from(directory)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether upper and work directory are on one mount, as overlayfs requires; a bind mount of the same disk does not suffice.
fn is_on_the_mount_of_its_parent(directory: BorrowedFd<'_>, path: &Path) -> bool {
    let Some(Ok(parent)) = path.parent().map(place::open_directory) else { return false };
    match (table::mount_id(directory), table::mount_id(parent.as_fd())) {
        (Ok(here), Ok(there)) => here == there,
        // The kernel will report it.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn prepare(writable: Writable, scratch: &Path) -> Upper {
        Arc::<Uppers>::default().prepare(&writable, scratch).unwrap().unwrap()
    }

    #[test]
    fn a_temporary_upper_goes_with_its_mount_and_an_own_one_stays() {
        let scratch = tempfile::tempdir().unwrap();
        let temporary = prepare(Writable::Temporary, scratch.path());
        assert!(temporary.work().is_dir());
        temporary.clean_up();
        assert_eq!(scratch.path().read_dir().unwrap().count(), 0);

        let own = scratch.path().join("mine");
        prepare(Writable::Upper(own.clone()), scratch.path()).clean_up();
        let left: Vec<_> = scratch.path().read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, [own]);
    }

    #[test]
    fn the_root_of_a_new_upper_is_open_whatever_the_umask_and_a_given_one_stays_as_it_is() {
        let scratch = tempfile::tempdir().unwrap();
        let (new, given) = (scratch.path().join("new"), scratch.path().join("given"));
        std::fs::create_dir(&given).unwrap();
        std::fs::set_permissions(&given, Permissions::from_mode(0o711)).unwrap();
        let umask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        let uppers = [Writable::Temporary, Writable::Upper(new), Writable::Upper(given)];
        let modes = uppers.map(|writable| {
            let upper = prepare(writable, scratch.path());
            upper.directory().metadata().unwrap().permissions().mode() & 0o7777
        });
        rustix::process::umask(umask);
        assert_eq!(modes, [0o755, 0o755, 0o711]);
    }

    #[test]
    fn leftover_uppers_are_swept_and_nothing_else() {
        let scratch = tempfile::tempdir().unwrap();
        let uppers = Arc::<Uppers>::default();
        let taken = uppers.prepare(&Writable::Temporary, scratch.path()).unwrap().unwrap();
        std::fs::create_dir_all(scratch.path().join("upper-old/upper/file")).unwrap();
        std::fs::create_dir_all(scratch.path().join("socket")).unwrap();
        uppers.sweep(scratch.path());
        assert!(!scratch.path().join("upper-old").exists());
        assert!(scratch.path().join("socket").exists());
        assert!(taken.directory().is_dir(), "its mount is just being made");
    }

    #[test]
    fn an_upper_serves_one_mount_at_a_time() {
        let scratch = tempfile::tempdir().unwrap();
        let uppers = Arc::<Uppers>::default();
        let writable = Writable::Upper(scratch.path().join("mine"));
        let first = uppers.prepare(&writable, scratch.path()).unwrap().unwrap();
        let error = uppers.prepare(&writable, scratch.path()).unwrap_err();
        assert!(matches!(&error, MountError::Upper { .. }), "{error}");
        first.clean_up();
        assert!(uppers.prepare(&writable, scratch.path()).is_ok());
    }

    #[test]
    fn no_link_is_followed_to_an_upper_and_what_was_put_in_its_place_keeps_its_mode() {
        let scratch = tempfile::tempdir().unwrap();
        let private = scratch.path().join("private");
        std::fs::create_dir(&private).unwrap();
        std::fs::write(private.join("secret"), "").unwrap();
        std::fs::set_permissions(&private, Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(&private, scratch.path().join("link")).unwrap();
        for given in ["link", "link/new"] {
            let given = scratch.path().join(given);
            let error = Arc::<Uppers>::default().prepare(&Writable::Upper(given), scratch.path()).unwrap_err();
            assert!(error.to_string().contains("symbolic link"), "{error}");
        }
        assert!(!private.join("new").exists());
        prepare(Writable::Upper(private.clone()), scratch.path()).clean_up();
        assert_eq!(private.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
    }

    #[test]
    fn a_file_system_of_its_own_does_not_do() {
        let scratch = tempfile::tempdir().unwrap();
        let error = Arc::<Uppers>::default().prepare(&Writable::Upper("/proc".into()), scratch.path()).unwrap_err();
        assert!(error.to_string().contains("use a directory inside of it"), "{error}");
    }
}
