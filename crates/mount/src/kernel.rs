//! The kernel's mount interface, wrapped so that every error names the failed step and carries the kernel's messages.
//!
//! Mounts are made detached: they hang on a file descriptor instead of a path, so nothing remains if this process is
//! killed between two steps. [`attach`] makes a mount visible.

use std::ffi::OsStr;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MoveMountFlags};

/// A failed step of making or attaching a mount.
#[derive(Debug, Clone, thiserror::Error)]
pub struct StepError {
    doing: String,
    errno: Errno,
    /// Messages about it with their source, or empty.
    words: String,
}

impl StepError {
    /// `doing` completes the sentence "… failed".
    pub(crate) fn new(doing: impl Into<String>, errno: Errno) -> Self {
        Self { doing: doing.into(), errno, words: String::new() }
    }

    /// Adds what `speaker` printed about the failure.
    pub(crate) fn with(mut self, speaker: &str, words: &str) -> Self {
        if !words.is_empty() {
            self.words = format!("{speaker}: {words}");
        }
        self
    }

    /// The kernel's error number.
    pub(crate) fn errno(&self) -> Errno {
        self.errno
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = std::io::Error::from(self.errno);
        write!(f, "{}: {reason}", self.doing)?;
        if self.words.is_empty() { Ok(()) } else { write!(f, " ({})", self.words) }
    }
}

pub(crate) fn io_step(doing: &str, error: &std::io::Error) -> StepError {
    match error.raw_os_error() {
        Some(number) => StepError::new(doing, Errno::from_raw_os_error(number)),
        None => StepError::new(format!("{doing} ({error})"), Errno::IO),
    }
}

/// A file system that is being configured: `fsopen`, then options, then [`Context::mount`].
pub(crate) struct Context {
    fd: OwnedFd,
    kind: &'static str,
}

impl Context {
    /// Starts configuring a file system of type `kind`.
    pub(crate) fn open(kind: &'static str) -> Result<Self, StepError> {
        rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)
            .map(|fd| Self { fd, kind })
            .map_err(|errno| StepError::new(format!("open a {kind} file system"), errno))
    }

    /// Sets a flag option.
    pub(crate) fn flag(&self, key: &str) -> Result<&Self, StepError> {
        self.checked(key, rustix::mount::fsconfig_set_flag(self.fd.as_fd(), key))
    }

    /// Sets an option to a string or path.
    pub(crate) fn text(&self, key: &str, value: impl AsRef<OsStr>) -> Result<&Self, StepError> {
        self.checked(key, rustix::mount::fsconfig_set_string(self.fd.as_fd(), key, value.as_ref()))
    }

    /// Sets an option to an open file.
    pub(crate) fn file(&self, key: &str, value: BorrowedFd<'_>) -> Result<&Self, StepError> {
        self.checked(key, rustix::mount::fsconfig_set_fd(self.fd.as_fd(), key, value))
    }

    /// Creates the file system and a detached mount of it.
    pub(crate) fn mount(&self, attributes: MountAttrFlags) -> Result<OwnedFd, StepError> {
        let kind = self.kind;
        rustix::mount::fsconfig_create(self.fd.as_fd())
            .and_then(|()| rustix::mount::fsmount(self.fd.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes))
            .map_err(|errno| self.explained(format!("mount {kind}"), errno))
    }

    fn checked(&self, key: &str, result: Result<(), Errno>) -> Result<&Self, StepError> {
        let kind = self.kind;
        result.map(|()| self).map_err(|errno| self.explained(format!("set {key} of {kind}"), errno))
    }

    fn explained(&self, doing: String, errno: Errno) -> StepError {
        StepError::new(doing, errno).with("kernel", &self.messages())
    }

    /// Messages of the kernel about this context: one per read, each prefixed with a severity letter.
    fn messages(&self) -> String {
        let mut words = Vec::new();
        let mut buffer = [0_u8; 1024];
        while let Ok(length @ 1..) = rustix::io::read(&self.fd, &mut buffer) {
            let line = String::from_utf8_lossy(&buffer[..length]);
            words.push(line.trim_start_matches(['e', 'w', 'i', ' ']).trim_end().to_owned());
        }
        words.join("; ")
    }
}

/// Drops the unused names, and the files behind them, that the kernel caches of the file system at `path` below
/// `directory` (empty: of `directory` itself). Their next use looks them up again. `read_only`: whether the file system
/// is.
pub(crate) fn forget_unused(directory: BorrowedFd<'_>, path: &Path, read_only: bool) -> Result<(), StepError> {
    let mut flags =
        FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_SYMLINK_NOFOLLOW | FsPickFlags::FSPICK_NO_AUTOMOUNT;
    flags.set(FsPickFlags::FSPICK_EMPTY_PATH, path.as_os_str().is_empty());
    // An empty reconfiguration suffices: any change of a superblock first empties its cache of names.
    let context = rustix::mount::fspick(directory, path, flags)
        .map(|fd| Context { fd, kind: "mounted" })
        .map_err(|errno| StepError::new(format!("look at the mount at {}", path.display()), errno))?;
    if read_only {
        context.flag("ro")?;
    }
    let forgotten = rustix::mount::fsconfig_reconfigure(context.fd.as_fd());
    forgotten.map_err(|errno| context.explained("empty the cache of names".to_owned(), errno))
}

/// Attaches a detached mount to an open directory, regardless of what its path leads to by now.
pub(crate) fn attach(mount: BorrowedFd<'_>, directory: BorrowedFd<'_>, path: &Path) -> Result<(), StepError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, "", directory, "", flags)
        .map_err(|errno| StepError::new(format!("attach the mount at {}", path.display()), errno))
}
