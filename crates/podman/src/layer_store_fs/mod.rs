//! [`LayerStoreFs`]: an additional layer store for containers/storage.
//!
//! ```text
//! /<base64 of the image's name>/<digest>/diff/    the layer, as presented to overlayfs
//!                                        info     its description, as JSON
//!                                        blob     the layer as stored in the registry
//!                                        use      never exists: an attempt to create it adds one use of the layer
//! ```
//!
//! Directories of images and layers exist as soon as they are looked up, because only a registry knows what a layer's
//! directory contains. The registry is queried when one of the three names in it is looked up, and the lookup waits for
//! it. An attempt to remove the directory of a layer subtracts one use. In both cases Podman expects the answer `ENOENT`.
//!
//! Nodes live as long as the kernel refers to them, except those of layers, which stay: containers use them without their names.
//!
//! A directory or number of a layer is saved ([`journal`]) before the kernel gets it, so that a successor of this server
//! knows it.

mod files;
mod journal;
mod layers;
mod nodes;

pub(crate) use files::LayerStoreFs;
pub(crate) use layers::{LayerKey, Layers, ShownLayer, Use};

#[cfg(test)]
mod tests;
