//! Reads and writes the merged tree as an EROFS image without file data.
//!
//! The image has the data for `stat`, `readdir`, `readlink` and `getxattr` and nothing else. A regular file that is not empty is
//! one hole of its size and carries the two xattrs by which overlayfs finds its bytes in a data-only lower layer:
//! `trusted.overlay.metacopy` and `trusted.overlay.redirect=/ab/cdef…`. Inode numbers are EROFS nids.
//!
//! Written for Linux 6.5 and newer (on-disk features: chunked files, long xattr prefixes); [`for_ordinary_layers`] rewrites an image
//! for Linux 5.15 to 6.4. Format source: the kernel's `Documentation/filesystems/erofs.rst` and `fs/erofs/erofs_fs.h`.
//!
//! Why not the `composefs` crate (0.9.4 was tried as writer and reader)? For 230,000 files it takes 2.4 s of CPU, 300 MiB
//! of memory and 60 MB of image; this module and the merge take 0.5 s, 95 MiB and 45 MB (`examples/large_tree.rs`). Its
//! format 2 drops nanoseconds; its format 1 keeps them but puts 256 whiteouts into the root; both name objects by
//! fs-verity digests and end symbolic links at 1,024 bytes, where images have 4,095. It borrows nothing, so the tree
//! would exist twice. Large uids, directories of 100,000 names and large xattrs it does as well.

mod check;
mod crc32c;
mod directory;
mod error;
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
mod rewrite;
mod write;
mod write_xattr;

pub use check::Summary;
pub use error::ImageError;
pub use format::Nid;
pub use image::Image;
pub use inode::Inode;
pub use read_dir::{DirEntry, ReadDir};
pub use read_xattr::{Xattr, Xattrs};
pub use rewrite::{for_ordinary_layers, renew};
pub use write::{write, write_to};
pub use write_xattr::redirect_to;
