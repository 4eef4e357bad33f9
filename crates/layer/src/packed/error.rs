//! [`InvalidPacked`]: why bytes are not a packed index.

use crate::index::{InvalidEntry, InvalidXattr};

/// Why bytes are not the index of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPacked {
    /// Written by another version of this program.
    #[error("it has another version")]
    Version,
    /// The bytes are not columns.
    #[error("it is malformed")]
    Malformed,
    /// A column is too short or too long, or has an invalid value.
    #[error("its {0} do not fit")]
    Column(&'static str),
    /// An entry that a layer cannot have.
    #[error(transparent)]
    Entry(#[from] InvalidEntry),
    /// Xattrs that an entry cannot have.
    #[error(transparent)]
    Xattr(#[from] InvalidXattr),
    /// Chunks that do not add up to their file, or are not in the layer.
    #[error("the chunks of a file do not match their places")]
    Chunks,
}
