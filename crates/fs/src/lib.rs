//! What a mounted image answers, without a word of the kernel's.
//!
//! These file systems implement the same [`Operations`]: [`ObjectFs`] serves the objects of all images under their
//! digests (mode `native`, below overlayfs), [`ImageFs`] serves one image's merged tree (mode `fuse`), [`StoreFs`] a store of
//! Podman's with a [`DiffFs`] for each layer, and [`LayerStoreFs`] single layers to who asks for them. Bytes of files come from [`Objects`] through [`Reads`]. Errors become [`Errno`]
//! here and nowhere else.
//!
//! Invariant: what a node id stands for never changes. In [`StoreFs`] and [`LayerStoreFs`] names may lead to others later; in the rest there is no
//! state but which inodes the kernel holds.

mod attr;
mod diff_fs;
mod errno;
mod fetched;
mod image_fs;
mod layer_store_fs;
mod object_fs;
mod objects;
mod operations;
mod reads;
mod store_fs;

pub use attr::{Attr, Content, DirEntry, Kind, NodeId};
pub use diff_fs::DiffFs;
pub use errno::Errno;
pub use image_fs::ImageFs;
pub use layer_store_fs::{LayerKey, LayerStoreFs, Layers, ShownLayer, Use};
pub use object_fs::ObjectFs;
pub use objects::Objects;
pub use operations::{Attempt, Operations, Take, Totals};
pub use reads::Reads;
pub use store_fs::{Directory, Item, StoreFs};
pub use tarpon_blob::LogLimit;
