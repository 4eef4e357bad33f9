//! [`ImageError`]: why an image or a part of it cannot be read.

/// Why an image or a part of it cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The superblock is not one of [`super::write()`].
    #[error("not a tree image")]
    NotAnImage,
    /// A version that is rewritten before it is used: see [`super::renew()`].
    #[error("the tree image was written by an older version of tarpon")]
    Outdated,
    /// Shorter than the size in its superblock.
    #[error("the tree image is cut off")]
    Truncated,
    /// A part that contradicts itself or leads out of the image.
    #[error("the tree image is corrupt: {0}")]
    Corrupt(&'static str),
    /// A directory operation on something else.
    #[error("not a directory")]
    NotDirectory,
    /// Reading the target of something that is not a symbolic link.
    #[error("not a symbolic link")]
    NotSymlink,
}
