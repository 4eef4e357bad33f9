//! [`MountError`]: why nothing was mounted.

use std::io;
use std::path::PathBuf;

use crate::kernel::StepError;
use crate::spec::Mode;
use crate::table::TableEntry;

/// Why nothing was mounted, or not unmounted. Nothing is left half done.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point does not do.
    #[error("mount point {}: {problem}", path.display())]
    Mountpoint {
        /// As it was given.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Somebody uses the mount.
    #[error("{} is in use", path.display())]
    Busy {
        /// The mount.
        path: PathBuf,
    },
    /// What is mounted there is mounted elsewhere, too.
    #[error("{} is in use: it is also mounted at {}", path.display(), at.display())]
    Bound {
        /// The mount.
        path: PathBuf,
        /// Where else, as the processes see it that have it there.
        at: PathBuf,
    },
    /// Something else is mounted on the mount or in it, and would be lost with it.
    #[error(
        "{} is not unmounted: {kind} is mounted {} and would go with it",
        path.display(),
        if above == path { "over it".to_owned() } else { format!("in it, at {}", above.display()) }
    )]
    Covered {
        /// The mount.
        path: PathBuf,
        /// Where the other one is.
        above: PathBuf,
        /// Its type.
        kind: String,
    },
    /// The directory for writes does not do.
    #[error("upper directory {}: {problem}", path.display())]
    Upper {
        /// As it was given.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The image's tree cannot be read.
    #[error("read the image's tree: {problem}")]
    Tree {
        /// What is wrong with it.
        problem: String,
    },
    /// This machine, or this user, cannot mount in this mode.
    #[error("mode {mode} does not work here: {reason}")]
    Unsupported {
        /// Which mode.
        mode: Mode,
        /// Why, and what to do about it.
        reason: String,
    },
    /// The kernel refused a step that should have worked.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A directory or file of the mount could not be made.
    #[error("{doing}: {error}")]
    Io {
        /// What was being done.
        doing: String,
        /// How it failed.
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
