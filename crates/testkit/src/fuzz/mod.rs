//! The bodies of the fuzz targets, as plain functions: `tests/fuzz` wraps them for cargo-fuzz, and a normal test of the
//! crate concerned replays the seeds in `fixtures/fuzz`.
//!
//! Each states the invariant it checks in its first comment, and takes any bytes.

mod erofs_image;
mod tree_build;

pub use erofs_image::erofs_image;
pub use tree_build::tree_build;
