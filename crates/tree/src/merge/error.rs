//! Why layers cannot be merged.

use tarpon_layer::LayerPath;
use tarpon_oci::limits;

/// The layers of an image do not make a tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// More layers than [`limits::LAYERS`].
    #[error("the image has {0} layers; {max} are allowed", max = limits::LAYERS)]
    TooManyLayers(usize),
    /// More entries or directories than [`limits::IMAGE_ENTRIES`], all layers together.
    #[error("the layers hold more than {max} entries together", max = limits::IMAGE_ENTRIES)]
    TooManyEntries,
    /// An invalid entry of a layer.
    #[error("layer {number}: {path}: {problem}", number = layer + 1)]
    Entry {
        /// Position of the layer, 0 for the bottom one; the message counts from 1.
        layer: usize,
        /// Path of the entry.
        path: LayerPath,
        /// The problem.
        problem: Problem,
    },
}

/// The problem of an entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The root is listed as something else than a directory, or removed.
    #[error("the root must be a directory")]
    RootNotDirectory,
    /// Two entries of this path in the layer.
    #[error("listed twice")]
    Duplicate,
    /// A parent of this entry is listed in the same layer and is not a directory.
    #[error("lies below an entry of the same layer that is not a directory")]
    ParentNotDirectory,
    /// The target of the hard link does not exist.
    #[error("hard link to {0}, which does not exist")]
    DanglingLink(LayerPath),
    /// The hard link leads back to itself.
    #[error("hard link to {0}, which leads back here")]
    CyclicLink(LayerPath),
    /// The hard link leads to a directory.
    #[error("hard link to {0}, which is a directory")]
    LinkToDirectory(LayerPath),
    /// Two files have the same digest and different sizes.
    #[error("has {size} bytes, but another file with the same digest has {other_size}")]
    ObjectSize {
        /// Size of this file.
        size: u64,
        /// Size of the other one.
        other_size: u64,
    },
    /// Larger than [`limits::FILE_BYTES`].
    #[error("has {0} bytes; {max} are allowed", max = limits::FILE_BYTES)]
    FileSize(u64),
    /// Empty, longer than [`limits::SYMLINK_BYTES`], or with a NUL in it.
    #[error("the target of the symbolic link is empty, too long or has a NUL in it")]
    SymlinkTarget,
    /// Numbers out of range, or the character device 0:0, which overlayfs interprets as a whiteout.
    #[error("device {major}:{minor} is not allowed")]
    Device {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// Nanoseconds of 10⁹ or more.
    #[error("the time has {0} nanoseconds")]
    Nanoseconds(u32),
}
