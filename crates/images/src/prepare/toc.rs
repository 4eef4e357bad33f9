//! Fetches a layer's table of contents: one range, or two where the first guess was too short.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use tarpon_blob::{BlobSource, SourceError};
use tarpon_layer::decode::Compression;
use tarpon_layer::toc::{Format, TocClaim, TocError, TocPlace};
use tarpon_layer::{Allowance, LayerIndex};
use tarpon_oci::Blob;
use tarpon_store::LayerKind;

/// Why there is no index.
pub enum TocFailure {
    /// The bytes could not be fetched.
    Source(SourceError),
    /// The layer can be read, but not piece by piece.
    NotLazy(String),
    /// The layer must not be used.
    Refused(TocError),
}

impl From<SourceError> for TocFailure {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

impl From<TocError> for TocFailure {
    fn from(error: TocError) -> Self {
        match error {
            TocError::NotLazy(reason) => Self::NotLazy(reason.to_string()),
            // Streaming a layer receives more bytes than its table of contents, so more is allowed.
            TocError::Excess(excess) => Self::NotLazy(excess.to_string()),
            other => Self::Refused(other),
        }
    }
}

/// The compression of a blob in this format.
pub fn compression(format: Format) -> Compression {
    match format {
        Format::Estargz => Compression::Gzip,
        Format::ZstdChunked => Compression::Zstd,
    }
}

/// The kind that is recorded for a layer in this format.
pub fn kind(format: Format) -> LayerKind {
    match format {
        Format::Estargz => LayerKind::Estargz,
        Format::ZstdChunked => LayerKind::ZstdChunked,
    }
}

/// Fetches, checks and parses the table of contents of `blob`. Also returns the end of the blob's range to prefetch. Bytes that are not
/// those of the layer are fetched once more, as those of other blobs are: a cache on the way may have damaged them.
pub async fn fetch(
    claim: &TocClaim,
    blob: Blob,
    source: &dyn BlobSource,
    allowance: &Allowance,
    received: impl Fn(u64),
) -> Result<(LayerIndex, Option<u64>), TocFailure> {
    let received = |bytes| {
        allowance.receive(bytes);
        received(bytes);
    };
    match attempt(claim, blob, source, allowance, &received).await {
        Err(TocFailure::Refused(error)) if may_be_damaged(&error) => {
            tracing::debug!(%error, "fetching the table of contents again");
            source.distrust(&blob.digest);
            attempt(claim, blob, source, allowance, &received).await
        }
        done => done,
    }
}

/// Whether other bytes than the layer's cause this error. What follows the check of the digest was written by the publisher.
fn may_be_damaged(error: &TocError) -> bool {
    use TocError::{Container, Decode, Digest, Footer, Incomplete, Tar};
    matches!(error, Digest(_) | Footer(_) | Incomplete { .. } | Decode(_) | Tar(_) | Container(_))
}

async fn attempt(
    claim: &TocClaim,
    blob: Blob,
    source: &dyn BlobSource,
    allowance: &Allowance,
    received: &impl Fn(u64),
) -> Result<(LayerIndex, Option<u64>), TocFailure> {
    let first = read(source, blob, claim.first_range(), received).await?;
    let place = claim.locate(&first)?;
    let encoded = match (&place, claim.within(&place, &first)) {
        (_, Some(all)) => Bytes::copy_from_slice(all),
        (TocPlace::InBlob(range), None) => {
            // The bytes fetched so far are the end of it.
            let missing = range.start..claim.first_range().start.min(range.end);
            let mut all = BytesMut::from(&read(source, blob, missing, received).await?[..]);
            let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
            all.extend_from_slice(first.get(..length.saturating_sub(all.len())).unwrap_or(&first));
            all.freeze()
        }
        (TocPlace::External { .. }, None) => {
            return Err(TocFailure::NotLazy("its table of contents is in an image of its own".into()));
        }
    };
    // Hundreds of thousands of entries take a while; the responses for other layers must not wait for it.
    let (claim, allowance) = (claim.clone(), allowance.clone());
    tokio::task::spawn_blocking(move || claim.open(&place, &encoded, &allowance)?.index_and_prefetch())
        .await
        .map_err(|error| TocFailure::NotLazy(error.to_string()))?
        .map_err(TocFailure::from)
}

/// Reads the whole of `range`.
async fn read(
    source: &dyn BlobSource,
    blob: Blob,
    range: Range<u64>,
    received: &impl Fn(u64),
) -> Result<Bytes, SourceError> {
    let mut all = BytesMut::new();
    if range.is_empty() {
        return Ok(all.freeze());
    }
    let mut pieces = source.read(blob, range).await?;
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        received(piece.len() as u64);
        all.extend_from_slice(&piece);
    }
    Ok(all.freeze())
}
