//! The bodies of the fuzz targets, as plain functions: `tests/fuzz` wraps them for cargo-fuzz, and a normal test of the
//! crate concerned replays the seeds in `fixtures/fuzz`.
//!
//! Each states the invariant it checks in its first comment, and takes any bytes.

mod content_range;
mod digest_reference;
mod erofs_image;
mod manifest_index;
mod tree_build;
mod www_authenticate;

pub use content_range::content_range;
pub use digest_reference::digest_reference;
pub use erofs_image::erofs_image;
pub use manifest_index::manifest_index;
pub use tree_build::tree_build;
pub use www_authenticate::www_authenticate;
