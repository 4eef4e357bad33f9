//! [`MountError`]: why a mount or unmount failed.

use std::io;
use std::path::PathBuf;

use crate::kernel::StepError;
use crate::spec::Mode;
use crate::table::TableEntry;

/// Why a mount or unmount failed. Nothing is left half done.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point is not usable.
    #[error("mount point {}: {problem}", path.display())]
    Mountpoint {
        /// The path as given.
        path: PathBuf,
        /// The problem with it.
        problem: String,
    },
    /// The mount is in use.
    #[error("{} is in use", path.display())]
    Busy {
        /// The mount.
        path: PathBuf,
    },
    /// The file system of the mount is mounted elsewhere as well.
    #[error("{} is in use: it is also mounted at {}", path.display(), at.display())]
    Bound {
        /// The mount.
        path: PathBuf,
        /// The other mount point, as seen by the processes in its namespace.
        at: PathBuf,
    },
    /// Another mount lies on this mount or in it and would be lost with it.
    #[error(
        "{} is not unmounted: {kind} is mounted {} and would go with it",
        path.display(),
        if above == path { "over it".to_owned() } else { format!("in it, at {}", above.display()) }
    )]
    Covered {
        /// The mount.
        path: PathBuf,
        /// Mount point of the other mount.
        above: PathBuf,
        /// Type of its file system.
        kind: String,
    },
    /// The upper directory is not usable.
    #[error("upper directory {}: {problem}", path.display())]
    Upper {
        /// The path as given.
        path: PathBuf,
        /// The problem with it.
        problem: String,
    },
    /// The image's tree cannot be read.
    #[error("read the image's tree: {problem}")]
    Tree {
        /// The problem with it.
        problem: String,
    },
    /// This machine or this user cannot mount in this mode.
    #[error("mode {mode} does not work here: {reason}")]
    Unsupported {
        /// The mode.
        mode: Mode,
        /// The reason, and what to do about it.
        reason: String,
    },
    /// The kernel refused a step that should have worked.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A directory or file of the mount could not be created.
    #[error("{doing}: {error}")]
    Io {
        /// The failed step.
        doing: String,
        /// Its error.
        error: io::Error,
    },
}

impl MountError {
    pub(crate) fn covered(mount: &TableEntry, above: &TableEntry) -> Self {
        Self::Covered { path: mount.mountpoint.clone(), above: above.mountpoint.clone(), kind: above.kind.clone() }
    }

    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |error| Self::Io { doing, error }
    }
}
