//! [`Errno`]: the errors that a file system here can return, and the only place that converts other errors.

use tarpon_fetch::ReadError;
use tarpon_tree::erofs::ImageError;

/// Why an operation was refused. The adapter maps it to the kernel's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Errno {
    /// The name does not exist (`ENOENT`).
    #[error("no such file or directory")]
    NotFound,
    /// The inode is not a directory (`ENOTDIR`).
    #[error("not a directory")]
    NotADirectory,
    /// The inode is a directory (`EISDIR`).
    #[error("is a directory")]
    IsADirectory,
    /// The arguments are invalid for this inode (`EINVAL`).
    #[error("invalid argument")]
    Invalid,
    /// The bytes were unavailable or wrong (`EIO`).
    #[error("input/output error")]
    Io,
    /// Images do not change (`EROFS`).
    #[error("read-only file system")]
    ReadOnly,
    /// The extended attribute does not exist (`ENODATA`).
    #[error("no such attribute")]
    NoAttribute,
    /// The node id was never issued by this file system, or has been forgotten (`ESTALE`).
    #[error("stale file handle")]
    Stale,
}

/// Every failure to get bytes is `EIO` to the reading program: a more specific number would not help it, and some
/// (`ENOENT`, `EACCES`) would be wrong about the file. The cause is in the log.
impl From<&ReadError> for Errno {
    fn from(error: &ReadError) -> Self {
        match error {
            ReadError::UnknownObject(_)
            | ReadError::Fetch { .. }
            | ReadError::Poisoned(_)
            | ReadError::Distrusted { .. }
            | ReadError::Disputed { .. }
            | ReadError::TooLong { .. }
            | ReadError::Local { .. } => Self::Io,
        }
    }
}

/// An inconsistent tree is `EIO`, as from a corrupt disk.
impl From<ImageError> for Errno {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::NotDirectory => Self::NotADirectory,
            ImageError::NotSymlink => Self::Invalid,
            ImageError::NotAnImage | ImageError::Outdated | ImageError::Truncated | ImageError::Corrupt(_) => Self::Io,
        }
    }
}
