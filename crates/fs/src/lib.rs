//! The answers of a mounted image, independent of the kernel interface.
//!
//! These file systems implement the same [`Operations`]: [`ObjectFs`] serves the objects of all images under their
//! digests (mode `native`, below overlayfs), [`ImageFs`] serves one image's merged tree (mode `fuse`), [`StoreFs`] a
//! store for Podman with a [`DiffFs`] for each layer, and [`LayerStoreFs`] single layers on request. Bytes of files come
//! from [`Objects`] through [`Reads`]. Errors become [`Errno`] only here.
//!
//! Invariant: the meaning of a node id never changes. In [`StoreFs`] and [`LayerStoreFs`], names may lead to other nodes
//! later; the rest have no state except which inodes the kernel holds.

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
