//! The job of streaming one layer.

use std::sync::Arc;

use tarpon_blob::BlobSource;
use tarpon_layer::Allowance;
use tarpon_oci::{Blob, Digest};
use tarpon_store::Store;

/// A layer to be streamed.
pub(super) struct StreamJob {
    pub(super) blob: Blob,
    /// The hash of the decompressed layer by the image config.
    pub(super) diff_id: Digest,
    /// Claimed to be eStargz or zstd:chunked, though not readable as such.
    pub(super) hides_toc_files: bool,
    pub(super) source: Arc<dyn BlobSource>,
    pub(super) store: Store,
    /// Whether the result is useless unless the store keeps its objects.
    pub(super) must_keep: bool,
    /// The resource allowance for reading the image.
    pub(super) allowance: Allowance,
}
