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
use tokio::time::Instant;

use crate::error::Error;
use crate::health::{Purpose, Sent};
use crate::layer::{Opened, SharedLayer, next_piece};
use crate::tier::Tier;
use crate::timing::SILENCE;

/// How long the tier may take for the head of a response. A reader waits 28 s in all, of which the source's own limits take 23 s: there is
/// time for this, then for [`SILENCE`], and then for the source.
const HEAD: Duration = Duration::from_secs(2);
/// Least bytes of a body within [`SILENCE`], unless it ends: 32 KiB/s. A tier that sends less is slower than any registry.
const LEAST_BYTES: u64 = 64 << 10;

const STEP: &str = "read a blob in the tier";

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
        let sent = self.tier.sent();
        // Failures are in the tier's account.
        match SharedLayer::new(&self.tier, blob).open(range.clone(), HEAD).await.ok()? {
            Opened::Body(body) => {
                self.tier.has_served(&blob.digest);
                let (tier, source) = (self.tier.clone(), self.source.clone());
                let body = Body::Tier { body, sent, rate: Rate::default() };
                let response = Response { tier, source, blob, left: range.clone(), body };
                Some(futures::stream::unfold(response, Response::next).boxed())
            }
            Opened::Absent => {
                self.tier.was_read(sent);
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

/// Detects a body that delivers too little. Time in which no bytes are requested does not count.
#[derive(Default)]
struct Rate {
    waited: Duration,
    received: u64,
}

impl Rate {
    /// The next piece of a body of which so many bytes are wanted.
    async fn next_piece(
        &mut self,
        body: &mut BoxStream<'static, object_store::Result<Bytes>>,
        wanted: u64,
    ) -> Result<Option<Bytes>, Error> {
        let began = Instant::now();
        let piece = next_piece(body, SILENCE.saturating_sub(self.waited)).await;
        self.waited += began.elapsed();
        let is_late = self.waited >= SILENCE;
        let too_slow = || Error::new(STEP, format!("it sends less than {LEAST_BYTES} bytes in {SILENCE:?}"));
        match piece {
            Ok(Some(piece)) => {
                self.received += piece.len() as u64;
                if self.received >= LEAST_BYTES {
                    *self = Self::default();
                } else if is_late && (piece.len() as u64) < wanted {
                    return Err(too_slow());
                }
                Ok(Some(piece))
            }
            Err(_) if is_late && self.received > 0 => Err(too_slow()),
            ended => ended,
        }
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
    Tier { body: BoxStream<'static, object_store::Result<Bytes>>, sent: Sent, rate: Rate },
    Source(BlobStream),
    Ended,
}

impl Response {
    async fn next(mut self) -> Option<(Result<Bytes, SourceError>, Self)> {
        if let Body::Tier { body, sent, rate } = &mut self.body {
            if self.left.is_empty() {
                return None;
            }
            let wanted = self.left.end - self.left.start;
            match rate.next_piece(body, wanted).await {
                Ok(Some(mut piece)) if !piece.is_empty() => {
                    piece.truncate(usize::try_from(wanted).unwrap_or(usize::MAX));
                    self.left.start += piece.len() as u64;
                    self.tier.received(piece.len() as u64);
                    if self.left.is_empty() {
                        self.tier.was_read(*sent);
                    }
                    return Some((Ok(piece), self));
                }
                Ok(_) => self.tier.failed(Purpose::Read, &Error::new(STEP, "its response ended early")),
                Err(error) => self.tier.failed(Purpose::Read, &error),
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
            Body::Tier { .. } | Body::Ended => None,
        }
    }
}
