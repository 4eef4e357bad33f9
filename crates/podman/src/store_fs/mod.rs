//! [`StoreFs`]: a directory tree of small files that is replaced as a whole, with immutable layers
//! ([`DiffFs`](crate::diff_fs::DiffFs)) in it.
//!
//! Podman reads it as a store of images. Everything that may change is replaced at once ([`StoreFs::set`]), and the
//! meaning of a node id never changes: a file with other bytes is another node, as if it had been rewritten and renamed
//! over the old one. So an open file always reads as it was, the kernel may keep its pages, and only *names* must be
//! looked up again each time. Directories keep their node ids, which mounts on top of them hold.
//!
//! A layer gets its own range of node ids, and keeps it while the file system is mounted: containers may use it long after
//! its name is removed.
//!
//! ```text
//! StoreFs::set ─► next Nodes ─► saved ─► shown        StoreFs::restored: saved ─► Nodes ─► set, with the same ids
//! ```
//!
//! Each tree is saved before it is shown, so a successor of this server knows all node ids that the kernel may use.

mod files;
mod item;
mod nodes;
mod saved;

pub(crate) use files::StoreFs;
pub(crate) use item::{Directory, Item};
pub(crate) use nodes::LayerIdentity;

#[cfg(test)]
mod tests;
