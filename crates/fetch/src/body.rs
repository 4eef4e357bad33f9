//! The bytes of one answer, cut into pieces as they arrive.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::future::BoxFuture;
use tarpon_blob::{BlobStream, Fault, SourceError};
use tarpon_oci::Blob;
use tokio::time::Instant;

use crate::breaker::Attempt;
use crate::chunk::SHARED_BYTES;
use crate::error::PieceError;
use crate::image::Image;
use crate::lanes::Lane;
use crate::stats::InFlight;

/// An answer that is being received.
pub(crate) struct Body {
    stream: BlobStream,
    image: Arc<Image>,
    /// Offset in the blob of the first byte of `pending`, or of the next byte of the stream.
    at: u64,
    pending: Bytes,
    /// The byte before `at`, if it was returned: the next range may begin with it.
    last: Option<u8>,
    stall_limit: Duration,
    attempt: Option<Attempt>,
    /// Time until the head of the answer, kept until its first byte has arrived too.
    head: Option<Duration>,
    /// Whether it measures the link. A boot pack does not: it may have arrived already.
    measures: bool,
    _gauge: InFlight,
}

impl Body {
    /// Sends a request to the image's source. The outcome counts for `attempt`, if there is one.
    pub(crate) async fn open(
        image: &Arc<Image>,
        blob: Blob,
        range: Range<u64>,
        stall_limit: Duration,
        attempt: Option<Attempt>,
    ) -> Result<Self, PieceError> {
        let (at, length) = (range.start, range.end - range.start);
        Self::ask(image, at, length, stall_limit, attempt, image.source.read(blob, range)).await
    }

    /// Checks whether the image's source answers ([`tarpon_blob::BlobSource::probe`]).
    pub(crate) async fn probe(
        image: &Arc<Image>,
        blob: Blob,
        at: u64,
        stall_limit: Duration,
        attempt: Attempt,
    ) -> Result<Self, PieceError> {
        Self::ask(image, at, 1, stall_limit, Some(attempt), image.source.probe(blob, at)).await
    }

    async fn ask(
        image: &Arc<Image>,
        at: u64,
        length: u64,
        stall_limit: Duration,
        mut attempt: Option<Attempt>,
        answer: BoxFuture<'_, Result<BlobStream, SourceError>>,
    ) -> Result<Self, PieceError> {
        let gauge = image.tally.in_flight(length);
        image.tally.add(|counters| &counters.requests, 1);
        let began = Instant::now();
        let answer = tokio::time::timeout(stall_limit, answer).await;
        let answer = answer.map_err(|_elapsed| PieceError::Stalled(stall_limit));
        let stream = answer.and_then(|answer| Ok(answer?)).inspect_err(|error| failed(&mut attempt, error))?;
        let (image, head) = (image.clone(), Some(began.elapsed()));
        let (pending, last, measures) = (Bytes::new(), None, attempt.is_some());
        Ok(Self { stream, image, at, pending, last, stall_limit, attempt, head, measures, _gauge: gauge })
    }

    /// Returns the bytes of a range that starts where the last one ended, or [`SHARED_BYTES`] before that, or behind it. Bytes in
    /// between are dropped. The bytes count as fetched for `lane`.
    pub(crate) async fn take(&mut self, range: Range<u64>, lane: Lane) -> Result<Bytes, PieceError> {
        self.skip_to(range.start, lane).await?;
        let wanted = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let mut whole = match self.last.filter(|_| self.at - range.start == SHARED_BYTES) {
            Some(shared) => BytesMut::from(&[shared][..]),
            None => {
                let first = self.next(wanted, lane).await?;
                if first.len() == wanted {
                    return Ok(first);
                }
                BytesMut::from(first)
            }
        };
        // A piece has a limit, so this allocates once and no more than that.
        whole.reserve(wanted - whole.len());
        while whole.len() < wanted {
            let part = self.next(wanted - whole.len(), lane).await?;
            whole.extend_from_slice(&part);
        }
        Ok(whole.freeze())
    }

    async fn skip_to(&mut self, offset: u64, lane: Lane) -> Result<(), PieceError> {
        while self.at < offset {
            self.next(usize::try_from(offset - self.at).unwrap_or(usize::MAX), lane).await?;
        }
        Ok(())
    }

    /// Marks the rest as not waited for: it may be silent for this long, and its outcome is no evidence about the source.
    pub(crate) fn set_stall_limit(&mut self, stall_limit: Duration) {
        (self.stall_limit, self.attempt) = (stall_limit, None);
    }

    /// The next bytes, at least one and at most `limit`, fetched for `lane`.
    pub(crate) async fn next(&mut self, limit: usize, lane: Lane) -> Result<Bytes, PieceError> {
        loop {
            if !self.pending.is_empty() {
                let bytes = self.pending.split_to(limit.min(self.pending.len()));
                self.at += bytes.len() as u64;
                self.last = bytes.last().copied();
                self.image.tally.fetched_for(lane, bytes.len());
                return Ok(bytes);
            }
            self.pending = self.next_part().await.inspect_err(|error| failed(&mut self.attempt, error))?;
            if let Some(attempt) = &mut self.attempt {
                attempt.progressed();
            }
        }
    }

    async fn next_part(&mut self) -> Result<Bytes, PieceError> {
        let began = Instant::now();
        let next = tokio::time::timeout(self.stall_limit, self.stream.next()).await;
        let part = next.map_err(|_elapsed| PieceError::Stalled(self.stall_limit))?;
        let part = part.unwrap_or_else(|| Err(SourceError::new(Fault::BadData, "the response ended early")))?;
        if self.measures {
            let link = &self.image.governor.link;
            match self.head.take() {
                Some(head) => {
                    link.answered(head + began.elapsed());
                    link.begin();
                }
                None => link.received(part.len()),
            }
        }
        Ok(part)
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if self.measures && self.head.is_none() {
            self.image.governor.link.end();
        }
    }
}

fn failed(attempt: &mut Option<Attempt>, error: &PieceError) {
    if let Some(attempt) = attempt {
        attempt.failed(error);
    }
}
