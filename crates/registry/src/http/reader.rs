//! The body of a range, piece by piece: checked for stalls, continued where a connection broke.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::{FutureExt as _, stream};
use tarpon_blob::{BlobSource, BlobStream, Fault, SourceError};
use tarpon_oci::{Blob, limits};
use tokio::time::{Instant, sleep, timeout};

use super::blobs::{Answer, Ask, Blobs};
use crate::timing;
use crate::transport::{Body, TransportError};

/// Serves the blobs of a repository.
pub(crate) struct RemoteBlobs {
    pub(crate) blobs: Arc<Blobs>,
    pub(crate) name: String,
}

impl BlobSource for RemoteBlobs {
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        async move {
            if range.is_empty() || range.end > blob.size {
                let message = format!("bytes {}-{} are not in a blob of {}", range.start, range.end, blob.size);
                return Err(SourceError::new(Fault::BadData, message));
            }
            let answer = self.blobs.open(blob, range.clone()).await?;
            Ok(RangeReader::new(self.blobs.clone(), blob, range, answer).into_stream())
        }
        .boxed()
    }

    fn probe(&self, blob: Blob, at: u64) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        async move {
            let answer = self.blobs.probe(blob, at).await?;
            Ok(RangeReader::new(self.blobs.clone(), blob, at..at + 1, answer).into_stream())
        }
        .boxed()
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// The rest of a range, and the body it comes from.
struct RangeReader {
    blobs: Arc<Blobs>,
    blob: Blob,
    range: Range<u64>,
    answer: Option<Open>,
    /// Failed bodies since the last one that delivered [`timing::PROGRESS_BYTES`].
    failed: u32,
    progress: u64,
}

/// A body being read.
struct Open {
    body: Body,
    /// Bytes before the range, when the whole blob is being sent.
    skip: u64,
    whole: bool,
    watch: StallWatch,
}

/// Detects bodies that deliver too little. Time in which no bytes are requested does not count.
#[derive(Default)]
struct StallWatch {
    waited: Duration,
    received: u64,
}

impl RangeReader {
    fn new(blobs: Arc<Blobs>, blob: Blob, range: Range<u64>, answer: Answer) -> Self {
        let answer = Some(Open::new(answer));
        Self { blobs, blob, range, answer, failed: 0, progress: 0 }
    }

    fn into_stream(self) -> BlobStream {
        stream::unfold(Some(self), |reader| async {
            let mut reader = reader?;
            match reader.next().await {
                Ok(Some(piece)) => Some((Ok(piece), Some(reader))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
        .boxed()
    }

    async fn next(&mut self) -> Result<Option<Bytes>, SourceError> {
        loop {
            let open = match &mut self.answer {
                Some(open) => open,
                None if self.range.is_empty() => return Ok(None),
                None => {
                    let answer = self.blobs.open(self.blob, self.range.clone()).await?;
                    self.answer.insert(Open::new(answer))
                }
            };
            match open.next().await {
                Ok(Some(piece)) => {
                    if let Some(piece) = self.take(piece)? {
                        return Ok(Some(piece));
                    }
                }
                Ok(None) if self.range.is_empty() => return Ok(None),
                Ok(None) => self.broken(Fault::Unavailable, "the body ended early").await?,
                Err(Broken::Stalled) => self.broken(Fault::Timeout, "the body stalled").await?,
                Err(Broken::Transport(error)) => self.broken(Fault::Unavailable, &error.to_string()).await?,
            }
        }
    }

    /// Cuts the bytes of the range out of `piece`. The last piece is returned only when the body is known to end there or its rest
    /// was not needed.
    fn take(&mut self, mut piece: Bytes) -> Result<Option<Bytes>, SourceError> {
        let Some(open) = &mut self.answer else { return Ok(None) };
        let length = u64::try_from(piece.len()).unwrap_or(u64::MAX);
        if open.skip >= length {
            open.skip -= length;
            return Ok(None);
        }
        drop(piece.split_to(usize::try_from(open.skip).unwrap_or(usize::MAX).min(piece.len())));
        open.skip = 0;
        let left = self.range.end - self.range.start;
        let length = u64::try_from(piece.len()).unwrap_or(u64::MAX);
        if length > left {
            if !open.whole || self.range.end == self.blob.size {
                return Err(self.error(Fault::BadData, "the body is longer than requested"));
            }
            piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        }
        let length = length.min(left);
        self.range.start += length;
        self.progress += length;
        if self.range.is_empty() && open.whole && self.range.end < self.blob.size {
            // The rest of the blob is not needed: dropping the body closes the connection.
            self.answer = None;
        }
        Ok((!piece.is_empty()).then_some(piece))
    }

    /// Handles a broken body: pauses before the rest is requested, or returns the final error.
    async fn broken(&mut self, fault: Fault, why: &str) -> Result<(), SourceError> {
        self.answer = None;
        if self.progress >= timing::PROGRESS_BYTES {
            self.failed = 0;
        }
        self.progress = 0;
        self.failed += 1;
        if self.range.is_empty() {
            // All bytes had arrived. Only the end of the body was missing.
            return Ok(());
        }
        if self.failed >= limits::ATTEMPTS {
            return Err(self.error(fault, &format!("{why} ({} attempts)", self.failed)));
        }
        tracing::debug!("{}", self.error(fault, why));
        sleep(timing::BACKOFF * (1 << (self.failed - 1))).await;
        Ok(())
    }

    fn error(&self, fault: Fault, why: &str) -> SourceError {
        let ask = Ask { blob: self.blob, range: Some((self.range.start, self.range.end)) };
        SourceError::new(fault, format!("{}: {why}", self.blobs.shown(ask)))
    }
}

enum Broken {
    Stalled,
    Transport(TransportError),
}

impl Open {
    fn new(answer: Answer) -> Self {
        let whole = answer.response.status == http::StatusCode::OK;
        Self { body: answer.response.body, skip: answer.skip, whole, watch: StallWatch::default() }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Broken> {
        let started = Instant::now();
        let time_limit = timing::STALL.saturating_sub(self.watch.waited);
        let piece = timeout(time_limit, self.body.next()).await;
        self.watch.waited += started.elapsed();
        match piece {
            Ok(Some(Ok(piece))) => {
                self.watch.received += u64::try_from(piece.len()).unwrap_or(u64::MAX);
                if self.watch.received >= timing::STALL_BYTES {
                    self.watch = StallWatch::default();
                } else if self.watch.waited >= timing::STALL {
                    return Err(Broken::Stalled);
                }
                Ok(Some(piece))
            }
            Ok(Some(Err(error))) => Err(Broken::Transport(error)),
            Ok(None) => Ok(None),
            Err(_) => Err(Broken::Stalled),
        }
    }
}
