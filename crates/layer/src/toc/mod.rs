//! Layers that carry a table of contents: eStargz and zstd:chunked.
//!
//! The order of steps is the order of trust. [`Claim::of`] reads the descriptor (whose manifest was verified) and returns the
//! digest that the TOC must have. [`TocClaim::locate`] finds the TOC in the blob, [`TocClaim::open`] checks the digest, and only a
//! checked TOC can be parsed: [`Toc::index`].
//!
//! A TOC that contradicts itself is refused. One that is valid but not sufficient to read the layer piece by piece is
//! [`TocError::NotLazy`]: the caller streams the layer instead ([`plain`](crate::plain)). An eStargz blob whose descriptor does not
//! name its TOC is a plain layer: the TOC has no trusted digest.

mod build;
mod claim;
mod error;
mod footer;
mod json;
mod open;

pub(crate) use claim::ESTARGZ_DIGEST;
pub use claim::{Claim, ClaimError, Format, TocClaim};
pub use error::{EntryProblem, NotLazy, TocError};
pub use open::{Toc, TocPlace};

use crate::index::LayerPath;

/// Tag suffix of the image that holds the TOCs of an image whose layers end in an external-TOC footer.
pub const EXTERNAL_TOC_TAG_SUFFIX: &str = "-esgztoc";
/// Annotation on the layers of that image: the digest of the layer that the TOC describes.
pub(crate) const EXTERNAL_TOC_LAYER_ANNOTATION: &str = "containerd.io/snapshot/stargz/layer.digest";

/// Name of the TOC in an eStargz tar.
pub(crate) const TOC_NAME: &[u8] = b"stargz.index.json";
/// Name of the file that marks the end of the part to prefetch. [`NO_PREFETCH_LANDMARK`] marks that there is none.
pub(crate) const PREFETCH_LANDMARK: &str = ".prefetch.landmark";
/// See [`PREFETCH_LANDMARK`].
pub(crate) const NO_PREFETCH_LANDMARK: &str = ".no.prefetch.landmark";

/// Whether a regular file at this path belongs to the format and not to the image: the TOC and the landmarks.
pub(crate) fn is_toc_file(path: &LayerPath) -> bool {
    [TOC_NAME, PREFETCH_LANDMARK.as_bytes(), NO_PREFETCH_LANDMARK.as_bytes()].contains(&path.as_bytes())
}
