//! The bodies of the fuzz targets, as plain functions: `tests/fuzz` wraps them for cargo-fuzz, and a normal test of the
//! crate concerned replays the seeds in `fixtures/fuzz`.
//!
//! Each states its invariant in its first comment, and accepts any bytes.

mod boot_index;
mod chunk_table;
mod content_range;
mod decode_chunk;
mod digest_reference;
mod erofs_image;
mod estargz_footer_toc;
#[cfg(feature = "mount")]
mod fuse;
#[cfg(feature = "mount")]
mod fuse_requests;
mod http;
mod http_responses;
mod index_lock;
mod manifest_index;
mod packed_index;
mod pax;
mod policy;
mod predicted_start;
mod record_json;
mod registries_conf;
mod spanned_layer;
mod tar_walk;
mod trace_file;
mod tree_build;
#[cfg(feature = "worker")]
mod worker_requests;
#[cfg(feature = "worker")]
mod worker_responses;
mod write_layer;
mod www_authenticate;
mod zstd_chunked_toc;
mod ztoc;

use tarpon_layer::Allowance;
use tarpon_layer::toc::{Claim, Toc, TocPlace};
use tarpon_oci::MediaType;

use crate::layers::Layer;
use tar_walk::Sink;

pub use boot_index::boot_index;
pub use chunk_table::chunk_table;
pub use content_range::content_range;
pub use decode_chunk::decode_chunk;
pub use digest_reference::digest_reference;
pub use erofs_image::erofs_image;
pub use estargz_footer_toc::estargz_footer_toc;
#[cfg(feature = "mount")]
pub use fuse_requests::fuse_requests;
pub use http_responses::http_responses;
pub use index_lock::index_lock;
pub use manifest_index::manifest_index;
pub use packed_index::packed_index;
pub use pax::pax;
pub use policy::policy;
pub use predicted_start::predicted_start;
pub use record_json::record_json;
pub use registries_conf::registries_conf;
pub use spanned_layer::spanned_layer;
pub use tar_walk::tar_walk;
pub use trace_file::trace_file;
pub use tree_build::tree_build;
#[cfg(feature = "worker")]
pub use worker_requests::worker_requests;
#[cfg(feature = "worker")]
pub use worker_responses::worker_responses;
pub use write_layer::write_layer;
pub use www_authenticate::www_authenticate;
pub use zstd_chunked_toc::zstd_chunked_toc;
pub use ztoc::ztoc;

/// The TOC of a layer written by testkit.
fn toc_of(layer: &Layer) -> Toc {
    let size = layer.blob.len() as u64;
    let claim = Claim::of(&MediaType::Layer(layer.compression), &layer.annotations, size);
    let Ok(Claim::Toc(claim)) = claim else { panic!("the claim is sound") };
    let first = &layer.blob[usize::try_from(claim.first_range().start).expect("small")..];
    let place = claim.locate(first).expect("the footer is sound");
    let TocPlace::InBlob(range) = &place else { panic!("the TOC is in the blob") };
    let [start, end] = [range.start, range.end].map(|place| usize::try_from(place).expect("small"));
    claim.open(&place, &layer.blob[start..end], &Allowance::default()).expect("the digest is right")
}
