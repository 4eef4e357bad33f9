//! What a mounted image answers, without a word of the kernel's.
//!
//! Two file systems implement the same [`Operations`]: [`ObjectFs`] serves the objects of all images under their
//! digests (mode `native`, below overlayfs), [`ImageFs`] serves one image's merged tree (mode `fuse`). Bytes
//! of files come from [`Objects`] through [`Reads`]. Errors become [`Errno`] here and nowhere else.
//!
//! Invariant: what is mounted never changes. There is no state but which inodes the kernel holds.

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
pub use operations::{Operations, Take, Totals};
pub use reads::Reads;
