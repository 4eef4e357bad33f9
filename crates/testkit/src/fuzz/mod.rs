//! The bodies of the fuzz targets, as plain functions: `tests/fuzz` wraps them for cargo-fuzz, and a normal test of the
//! crate concerned replays the seeds in `fixtures/fuzz`.
//!
//! Each states the invariant it checks in its first comment, and takes any bytes.

mod chunk_table;
mod content_range;
mod decode_chunk;
mod digest_reference;
mod erofs_image;
mod estargz_footer_toc;
mod manifest_index;
mod pax;
mod record_json;
mod tar_walk;
mod tree_build;
mod www_authenticate;
mod zstd_chunked_toc;

pub use chunk_table::chunk_table;
pub use content_range::content_range;
pub use decode_chunk::decode_chunk;
pub use digest_reference::digest_reference;
pub use erofs_image::erofs_image;
pub use estargz_footer_toc::estargz_footer_toc;
pub use manifest_index::manifest_index;
pub use pax::pax;
pub use record_json::record_json;
pub use tar_walk::tar_walk;
pub use tree_build::tree_build;
pub use www_authenticate::www_authenticate;
pub use zstd_chunked_toc::zstd_chunked_toc;
