//! [`LayerStore`]: the images of which Podman pulls layers lazily, in one mount on the store's `podman-layers` folder.
//!
//! ```text
//! podman pull ─► stat …/diff ─► find: a process prepares the image ─► show: record, layers ─► get
//!                …/use, rmdir ─► count: record
//! ```
//!
//! The mount has a record among those of mounts, and so has each image: by its name and manifest, with the number of uses of each layer by
//! Podman. The record protects the image from eviction and lets the next server show it again, because Podman reports each use only once.
//! An image without uses is removed when Podman reports the last one as released, or after some time without any.

mod entry;
mod exhibit;
mod find;
mod finding;
mod spool;
mod status;
mod store;
mod uses;

pub(super) use store::LayerStore;

#[cfg(test)]
mod tests;
