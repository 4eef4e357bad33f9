//! [`Errno`]: the answers "no" that a file system here can give, and the only place where errors become one.

use tarpon_fetch::ReadError;
use tarpon_tree::erofs::ImageError;

/// Why an operation was refused. The kernel's numbers are the adapter's business.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Errno {
    /// There is no such name (`ENOENT`).
    #[error("no such file or directory")]
    NotFound,
    /// A directory was needed (`ENOTDIR`).
    #[error("not a directory")]
    NotADirectory,
    /// A directory does not do (`EISDIR`).
    #[error("is a directory")]
    IsADirectory,
    /// The arguments make no sense for this inode (`EINVAL`).
    #[error("invalid argument")]
    Invalid,
    /// The bytes could not be had, or were not the right ones (`EIO`).
    #[error("input/output error")]
    Io,
    /// Images do not change (`EROFS`).
    #[error("read-only file system")]
    ReadOnly,
    /// There is no such extended attribute (`ENODATA`).
    #[error("no such attribute")]
    NoAttribute,
    /// A node id that this file system never gave out, or has forgotten (`ESTALE`).
    #[error("stale file handle")]
    Stale,
}

/// Every failure to get bytes is `EIO` to the program that reads: none of the finer numbers would tell it anything
/// that it could act on, and some (`ENOENT`, `EACCES`) would tell it lies about the file. What failed is in the log.
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

/// A tree that contradicts itself is `EIO`, as from a disk that does.
impl From<ImageError> for Errno {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::NotDirectory => Self::NotADirectory,
            ImageError::NotSymlink => Self::Invalid,
            ImageError::NotAnImage | ImageError::Outdated | ImageError::Truncated | ImageError::Corrupt(_) => Self::Io,
        }
    }
}
