//! The answers of a mounted image, independent of the kernel interface.
//!
//! These file systems implement the same [`Operations`]: [`ObjectFs`] serves the objects of all images under their
//! digests (mode `native`, below overlayfs), [`ImageFs`] serves one image's merged tree (mode `fuse`). Bytes of files come
//! from [`Objects`] through [`Reads`]. Errors become [`Errno`] only here.
//!
//! Invariant: the meaning of a node id never changes. They have no state except which inodes the kernel holds.

mod attr;
mod errno;
mod fetched;
mod image_fs;
mod object_fs;
mod objects;
mod operations;
mod reads;

pub use attr::{Attr, Content, DirEntry, Kind, NodeId};
pub use errno::Errno;
pub use image_fs::ImageFs;
pub use object_fs::ObjectFs;
pub use objects::Objects;
pub use operations::{Attempt, Operations, Take, Totals};
pub use reads::Reads;
pub use tarpon_blob::LogLimit;
