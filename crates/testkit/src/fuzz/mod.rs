//! The bodies of the fuzz targets, as plain functions: `tests/fuzz` wraps them for cargo-fuzz, and a normal test of the
//! crate concerned replays the seeds in `fixtures/fuzz`.
//!
//! Each states the invariant it checks in its first comment, and takes any bytes.

mod erofs_image;
mod tree_build;

pub use erofs_image::erofs_image;
pub use tree_build::tree_build;
mod content_range;
pub use content_range::content_range;
mod digest_reference;
pub use digest_reference::digest_reference;
mod manifest_index;
pub use manifest_index::manifest_index;
mod www_authenticate;
pub use www_authenticate::www_authenticate;
