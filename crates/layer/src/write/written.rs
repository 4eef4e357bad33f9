//! [`Written`]: the description of a written layer, and its final check.

use std::collections::BTreeMap;

use tarpon_oci::{Blob, Compression, Digest, MediaType};

use super::contents::{Counts, Meaning};
use super::error::WriteError;
use crate::Allowance;
use crate::toc::{Claim, TocPlace};

/// A written layer, as a manifest and a config describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Digest and size of the blob.
    pub blob: Blob,
    /// Its compression, which also determines its media type ([`Compression::layer_media_type`]).
    pub compression: Compression,
    /// Digest of the decompressed blob.
    pub diff_id: Digest,
    /// Size of the decompressed blob in bytes.
    pub uncompressed_size: u64,
    /// Annotations of the blob's descriptor.
    pub annotations: BTreeMap<String, String>,
    /// The table of contents, if it is not part of the blob.
    pub external_toc: Option<ExternalToc>,
    /// Prioritised paths that were not moved: they do not occur, or their meaning depends on the order of the tar.
    pub not_prioritised: Vec<crate::LayerPath>,
    /// Counts of the contents.
    pub counts: Counts,
}

/// A table of contents as the one layer of an image of its own
/// (see [`EXTERNAL_TOC_TAG_SUFFIX`](crate::toc::EXTERNAL_TOC_TAG_SUFFIX)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalToc {
    /// The blob, a gzip-compressed tar.
    pub bytes: Vec<u8>,
    /// Digest of that tar.
    pub diff_id: Digest,
    /// Annotations of the descriptor of this blob.
    pub annotations: BTreeMap<String, String>,
}

/// Reads the new table of contents back through the descriptor, as any reader does, and compares it with the tar.
pub(super) fn check(meaning: Meaning, written: &Written, place: &TocPlace, toc: &[u8]) -> Result<(), WriteError> {
    let media_type = MediaType::Layer(written.compression);
    match Claim::of(&media_type, &written.annotations, written.blob.size)? {
        // It describes the tar, which was within bounds, and the records that it was made of are gone.
        Claim::Toc(claim) => meaning.check(claim.open(place, toc, &Allowance::unbounded())?.index()?),
        Claim::Plain => Err(WriteError::Options("the new layer claims no table of contents")),
    }
}
