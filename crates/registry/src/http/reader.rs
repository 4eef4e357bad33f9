//! The body of a range, piece by piece: checked for stalls, continued where a connection broke.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::{FutureExt as _, stream};
use tarpon_blob::{BlobSource, BlobStream, Fault, SourceError};
use tarpon_oci::{Blob, Digest, limits};
use tokio::time::{Instant, sleep, timeout};

use super::blobs::{Answer, Ask};
use super::endpoints::{Endpoints, Number};
use crate::timing;
use crate::transport::{Body, TransportError};

/// Serves the blobs of a repository.
pub(crate) struct RemoteBlobs {
    pub(crate) endpoints: Arc<Endpoints>,
    pub(crate) name: String,
}

impl BlobSource for RemoteBlobs {
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        async move {
            if range.is_empty() || range.end > blob.size {
                let message = format!("bytes {}-{} are not in a blob of {}", range.start, range.end, blob.size);
                return Err(SourceError::new(Fault::BadData, message));
            }
            let answer = self.endpoints.open(blob, range.clone(), 0).await?;
            Ok(RangeReader::new(self.endpoints.clone(), blob, range, answer).into_stream())
        }
        .boxed()
    }

    fn probe(&self, blob: Blob, at: u64) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        async move {
            let answer = self.endpoints.probe(blob, at).await?;
            Ok(RangeReader::new(self.endpoints.clone(), blob, at..at + 1, answer).into_stream())
        }
        .boxed()
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn distrust(&self, blob: &Digest) -> bool {
        self.endpoints.distrust(blob)
    }
}

/// The rest of a range, and the body it comes from.
struct RangeReader {
    endpoints: Arc<Endpoints>,
    /// The endpoint that sends the body, or sent the last one.
    sender: Number,
    /// The first endpoint that may continue: not a mirror whose body broke off.
    from: Number,
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
    stall: Duration,
}

/// Detects bodies that deliver too little. Time in which no bytes are requested does not count.
#[derive(Default)]
struct StallWatch {
    waited: Duration,
    received: u64,
}

impl RangeReader {
    fn new(endpoints: Arc<Endpoints>, blob: Blob, range: Range<u64>, (sender, answer): (Number, Answer)) -> Self {
        let answer = Some(Open::new(answer, endpoints.is_mirror(sender)));
        Self { endpoints, sender, from: 0, blob, range, answer, failed: 0, progress: 0 }
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
                    let (sender, answer) = self.endpoints.open(self.blob, self.range.clone(), self.from).await?;
                    self.sender = sender;
                    self.answer.insert(Open::new(answer, self.endpoints.is_mirror(sender)))
                }
            };
            match open.next().await {
                Ok(Some(piece)) => match self.take(piece) {
                    Ok(Some(piece)) => return Ok(Some(piece)),
                    Ok(None) => {}
                    Err(error) if self.leave_mirror(&error) => self.answer = None,
                    Err(error) => return Err(error),
                },
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
        if self.range.is_empty() {
            // All bytes had arrived. Only the end of the body was missing.
            return Ok(());
        }
        let error = self.error(fault, why);
        tracing::debug!("{error}");
        // Each mirror fails once, and the attempts are for the registry.
        if self.leave_mirror(&error) {
            return Ok(());
        }
        if self.progress >= timing::PROGRESS_BYTES {
            self.failed = 0;
        }
        self.progress = 0;
        self.failed += 1;
        if self.failed >= limits::ATTEMPTS {
            return Err(self.error(fault, &format!("{why} ({} attempts)", self.failed)));
        }
        sleep(timing::BACKOFF * (1 << (self.failed - 1))).await;
        Ok(())
    }

    /// If the body that failed was a mirror's, the rest is requested from the endpoints behind it.
    fn leave_mirror(&mut self, error: &SourceError) -> bool {
        let was_mirror = self.endpoints.broke_off(self.sender, &self.blob.digest, error);
        if was_mirror {
            self.from = self.sender + 1;
        }
        was_mirror
    }

    fn error(&self, fault: Fault, why: &str) -> SourceError {
        let ask = Ask { blob: self.blob, range: Some((self.range.start, self.range.end)) };
        SourceError::new(fault, format!("{}: {why}", self.endpoints.blobs(self.sender).shown(ask)))
    }
}

enum Broken {
    Stalled,
    Transport(TransportError),
}

impl Open {
    fn new(answer: Answer, is_of_mirror: bool) -> Self {
        let whole = answer.response.status == http::StatusCode::OK;
        // A reader that waits for a mirror has to have time for the next endpoint.
        let stall = if is_of_mirror { timing::MIRROR } else { timing::STALL };
        Self { body: answer.response.body, skip: answer.skip, whole, watch: StallWatch::default(), stall }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Broken> {
        let started = Instant::now();
        let time_limit = self.stall.saturating_sub(self.watch.waited);
        let piece = timeout(time_limit, self.body.next()).await;
        self.watch.waited += started.elapsed();
        match piece {
            Ok(Some(Ok(piece))) => {
                self.watch.received += u64::try_from(piece.len()).unwrap_or(u64::MAX);
                if self.watch.received >= timing::STALL_BYTES {
                    self.watch = StallWatch::default();
                } else if self.watch.waited >= self.stall {
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
