//! The merged tree as an EROFS image without file data, out and in.
//!
//! The image holds what `stat`, `readdir`, `readlink` and `getxattr` need and nothing else. A regular file that is not
//! empty is one hole of its size and carries the two xattrs by which overlayfs finds its bytes in a data-only lower
//! layer: `trusted.overlay.metacopy` and `trusted.overlay.redirect=/ab/cdef…`. Inode numbers are EROFS nids.
//!
//! Written for Linux 6.5 and newer (on-disk features: chunked files, long xattr prefixes). Format source: the kernel's
//! `Documentation/filesystems/erofs.rst` and `fs/erofs/erofs_fs.h`.

mod check;
mod crc32c;
mod directory;
mod format;
mod image;
mod image_dump;
mod inode;
mod layout;
mod plan;
mod prefixes;
mod raw_inode;
mod read_dir;
mod read_xattr;
mod write;
mod write_xattr;

pub use check::Summary;
pub use format::Nid;
pub use image::{Image, ImageError};
pub use inode::Inode;
pub use read_dir::{DirEntry, ReadDir};
pub use read_xattr::{Xattr, Xattrs};
pub use write::write;
