//! [`TieredBlobs`]: the blobs of an image, from the tier where it has them, and else from their own source.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use tarpon_blob::{BlobSource, BlobStream, SourceError};
use tarpon_oci::{Blob, Digest};

use crate::error::Error;
use crate::layer::{Opened, SharedLayer, next_piece};
use crate::tier::Tier;

/// How long the tier may take for the head of a response. A reader waits 28 s at most, of which the source needs most if it is used.
const HEAD: Duration = Duration::from_secs(3);
/// How long it may be silent within a body.
const SILENCE: Duration = Duration::from_secs(3);

/// A source of blobs behind a tier.
pub struct TieredBlobs {
    tier: Arc<Tier>,
    source: Arc<dyn BlobSource>,
}

impl TieredBlobs {
    /// Reads from the tier, and from `source` what the tier lacks.
    pub fn new(tier: Arc<Tier>, source: Arc<dyn BlobSource>) -> Self {
        Self { tier, source }
    }

    async fn open(&self, blob: Blob, range: &Range<u64>) -> Option<BlobStream> {
        if !self.tier.may_have(&blob.digest) {
            return None;
        }
        // Failures are in the tier's account.
        match SharedLayer::new(&self.tier, blob).open(range.clone(), HEAD).await.ok()? {
            Opened::Body(body) => {
                self.tier.has_served(&blob.digest);
                let (tier, source) = (self.tier.clone(), self.source.clone());
                let response = Response { tier, source, blob, left: range.clone(), body: Body::Tier(body) };
                Some(futures::stream::unfold(response, Response::next).boxed())
            }
            Opened::Absent => {
                self.tier.is_absent(&blob.digest);
                None
            }
            Opened::OfSize(size) => {
                self.tier.is_wrong(&blob.digest, &format!("has {size} bytes instead of {}", blob.size));
                None
            }
        }
    }
}

impl BlobSource for TieredBlobs {
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        async move {
            match self.open(blob, &range).await {
                Some(stream) => Ok(stream),
                None => self.source.read(blob, range).await,
            }
        }
        .boxed()
    }

    fn probe(&self, blob: Blob, at: u64) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        async move {
            match self.open(blob, &(at..at + 1)).await {
                Some(stream) => Ok(stream),
                None => self.source.probe(blob, at).await,
            }
        }
        .boxed()
    }

    fn name(&self) -> String {
        self.source.name()
    }

    fn distrust(&self, blob: &Digest) -> bool {
        self.tier.distrust(blob) || self.source.distrust(blob)
    }

    fn is_local(&self) -> bool {
        self.source.is_local()
    }
}

/// A response that the tier began. If it breaks off, the source continues it.
struct Response {
    tier: Arc<Tier>,
    source: Arc<dyn BlobSource>,
    blob: Blob,
    left: Range<u64>,
    body: Body,
}

enum Body {
    Tier(BoxStream<'static, object_store::Result<Bytes>>),
    Source(BlobStream),
    Ended,
}

impl Response {
    async fn next(mut self) -> Option<(Result<Bytes, SourceError>, Self)> {
        if let Body::Tier(body) = &mut self.body {
            if self.left.is_empty() {
                return None;
            }
            match next_piece(body, SILENCE).await {
                Ok(Some(mut piece)) if !piece.is_empty() => {
                    let left = usize::try_from(self.left.end - self.left.start).unwrap_or(usize::MAX);
                    piece.truncate(left);
                    self.left.start += piece.len() as u64;
                    self.tier.received(piece.len() as u64);
                    return Some((Ok(piece), self));
                }
                Ok(_) => self.tier.failed(&Error::new("read a blob in the tier", "its response ended early")),
                Err(error) => self.tier.failed(&error),
            }
            match self.source.read(self.blob, self.left.clone()).await {
                Ok(stream) => self.body = Body::Source(stream),
                Err(error) => {
                    self.body = Body::Ended;
                    return Some((Err(error), self));
                }
            }
        }
        match &mut self.body {
            Body::Source(stream) => stream.next().await.map(|piece| (piece, self)),
            Body::Tier(_) | Body::Ended => None,
        }
    }
}
