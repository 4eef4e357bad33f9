//! Writes layers that can be read piece by piece: [`estargz`] and [`zstd_chunked`].
//!
//! A writer reads the decompressed tar of a layer and returns a blob, and its description for a manifest ([`Written`]). The tar is
//! walked by the same reader that imports plain layers. A tar that it refuses cannot be converted. At the end the new table of
//! contents is read back as any reader does, and must describe exactly the tar: a layer that would look different after conversion
//! is an error ([`WriteError::OrderMatters`]).
//!
//! The same tar and options give the same bytes, whatever the number of threads: a blob does not depend on the clock, the host or
//! the order in which threads finish. Memory does not grow with the files of a layer, only with their number, and that is charged
//! to an [`Allowance`] before it is used.

mod contents;
mod crc64;
mod cutter;
mod encode;
mod error;
mod estargz;
mod header;
mod ordered;
mod own_tar;
mod prioritised;
mod record;
mod source;
mod tar_split;
pub(crate) mod time;
mod zstd_chunked;

use std::collections::BTreeMap;

use tarpon_oci::{Blob, Compression, Digest, MediaType};

pub use contents::Counts;
pub use error::{Unrepresentable, WriteError};
pub use estargz::{DEFAULT_ESTARGZ_CHUNK_BYTES, DEFAULT_GZIP_LEVEL, EstargzOptions, estargz, estargz_prioritised};
pub use zstd_chunked::{DEFAULT_ZSTD_LEVEL, ZstdChunkedOptions, zstd_chunked};

use crate::Allowance;
use crate::toc::{Claim, TocPlace};
use contents::Meaning;

/// Most compression threads for one layer: beyond that, reading the tar on one thread is slower.
pub const MAX_THREADS: usize = 64;
/// A run of headers without any payload is cut into pieces of about this size, because memory is bounded.
const HEADER_RUN_BYTES: usize = 1 << 20;

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

/// Number of threads for the requested one.
fn threads(asked: usize) -> usize {
    asked.clamp(1, MAX_THREADS)
}

/// Reads the new table of contents back through the descriptor, as any reader does, and compares it with the tar.
fn check(meaning: Meaning, written: &Written, place: &TocPlace, toc: &[u8]) -> Result<(), WriteError> {
    let media_type = MediaType::Layer(written.compression);
    match Claim::of(&media_type, &written.annotations, written.blob.size)? {
        // It describes the tar, which was within bounds, and the records that it was made of are gone.
        Claim::Toc(claim) => meaning.check(claim.open(place, toc, &Allowance::unbounded())?.index()?),
        Claim::Plain => Err(WriteError::Options("the new layer claims no table of contents")),
    }
}
