//! [`InvalidEntry`]: why an entry of a layer is invalid.

use tarpon_oci::limits;

use super::path::InvalidPath;
use crate::allowance::Excess;

/// Why an entry is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEntry {
    /// See [`InvalidPath`].
    #[error(transparent)]
    Path(#[from] InvalidPath),
    /// The target of a hard link is no path.
    #[error("the link's target: {0}")]
    LinkPath(InvalidPath),
    /// The root of a file system is a directory.
    #[error("the root is not a directory")]
    RootNotDirectory,
    /// Overlayfs interprets it as a whiteout.
    #[error("a character device 0:0 would act as a whiteout")]
    WhiteoutDevice,
    /// A hard link to its own name.
    #[error("a hard link to itself")]
    LinkToItself,
    /// Hard links that lead back to themselves.
    #[error("hard links that form a circle")]
    LinkCycle,
    /// Linux has no hard links to directories.
    #[error("a hard link to a directory")]
    LinkToDirectory,
    /// Unpackers would link to the file of a lower layer, or fail.
    #[error("a hard link that comes before its target")]
    LinkBeforeTarget,
    /// Linux has no such symbolic links.
    #[error("a symbolic link without target, with a NUL byte in it, or longer than {} bytes", limits::SYMLINK_BYTES)]
    SymlinkTarget,
    /// The parent is an entry of this layer that cannot have children.
    #[error("the entry lies below something that is not a directory")]
    BelowNonDirectory,
    /// The parent is a symbolic link. In a tar it is followed. In a TOC, whose entries have no order, it cannot be.
    #[error("the entry lies below a symbolic link")]
    BelowSymlink,
    /// Twice the same name in a TOC.
    #[error("the name occurs twice")]
    Duplicate,
    /// Over [`limits::ENTRIES`].
    #[error("the layer has more than {} entries", limits::ENTRIES)]
    TooManyEntries,
    /// Over [`limits::CHUNKS`].
    #[error("the layer has more than {} chunks", limits::CHUNKS)]
    TooManyChunks,
    /// Directories are replaced again and again.
    #[error("the layer replaces too many directories by something else")]
    TooManyReplacements,
    /// The only chunk of a file has a digest other than that of the file.
    #[error("its only chunk is something else than the file")]
    ChunkDigest,
    /// A file is empty and does not have the digest of no bytes, or a file or chunk of some bytes has it.
    #[error("the digest of empty content does not match the size")]
    EmptyDigest,
    /// One digest is used for contents of two lengths.
    #[error("its digest or that of a chunk is the digest of something longer or shorter as well")]
    TwoLengths,
    /// Two digests are used for the same bytes of the layer.
    #[error("a chunk has another digest than the same bytes have elsewhere in the layer")]
    TwoDigests,
    /// A file is claimed to be zeros, and its digest is not that of as many zeros.
    #[error("it is all zeros, but its digest is not that of so many zeros")]
    ZerosDigest,
    /// Over [`limits::ZERO_FILE_BYTES`].
    #[error("it is more than {} bytes of zeros", limits::ZERO_FILE_BYTES)]
    TooManyZeros,
    /// The layer, or the image with it, costs more than its size allows.
    #[error(transparent)]
    Excess(#[from] Excess),
}
