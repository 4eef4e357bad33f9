//! Fetches a boot pack before its image is mounted: the client still fetches and merges the image's index, and the link would be idle.
//!
//! The bytes are held in memory, unverified, as [`BlobSource`] passes them on anyway. A reader of the pack through [`EarlyPack::before`]
//! gets these bytes first, and the rest from the image's source.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use parking_lot::Mutex;
use tarpon_blob::{BlobSource, BlobStream, SourceError};
use tarpon_fetch::{EARLY_REQUESTS, REPLAY_FIRST_BYTES, REPLAY_MOST_BYTES};
use tarpon_oci::{Blob, Digest};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Maximum number of bytes fetched early: the amount of three seconds at 100 Mbit/s. An index takes less time.
const MOST_BYTES: u64 = 32 << 20;
/// The bytes are dropped after this time. By then a replay has read them, or the client will not mount the image.
const KEPT: Duration = Duration::from_secs(60);

/// The beginning of a boot pack, as far as it was fetched.
pub(super) struct EarlyPack {
    blob: Blob,
    segments: Mutex<Vec<Arc<Segment>>>,
    /// Whether no more requests are made.
    is_enough: watch::Sender<bool>,
}

/// The range of one request.
struct Segment {
    range: Range<u64>,
    held: watch::Sender<Received>,
}

#[derive(Default)]
struct Received {
    pieces: Vec<Bytes>,
    bytes: u64,
    /// Whether the response has ended.
    is_over: bool,
}

impl EarlyPack {
    pub(super) fn new(blob: Blob) -> Self {
        Self { blob, segments: Mutex::default(), is_enough: watch::Sender::default() }
    }

    /// Fetches the beginning, in requests as those of the replay that follows, until [`EarlyPack::stop`]. Before each request, `give_way`
    /// waits for more urgent work.
    pub(super) async fn prefetch<Quiet: Future<Output = ()>>(
        &self,
        source: Arc<dyn BlobSource>,
        give_way: impl Fn() -> Quiet,
    ) {
        let until = self.blob.size.min(MOST_BYTES);
        let (mut next, mut width) = (0, REPLAY_FIRST_BYTES);
        let mut under_way = JoinSet::new();
        while next < until && !*self.is_enough.borrow() {
            tokio::select! {
                () = give_way() => {}
                () = self.stopped() => break,
            }
            let end = (next + width).min(until);
            under_way.spawn(self.begin(next..end).fetch(self.blob, source.clone()));
            (next, width) = (end, (width * 2).min(REPLAY_MOST_BYTES));
            while under_way.len() >= EARLY_REQUESTS {
                let _ended = under_way.join_next().await;
            }
        }
        while under_way.join_next().await.is_some() {}
    }

    fn begin(&self, range: Range<u64>) -> Arc<Segment> {
        let segment = Arc::new(Segment { range, held: watch::Sender::default() });
        self.segments.lock().push(segment.clone());
        segment
    }

    /// Makes no more requests, because the pack is being read now. Pending requests continue.
    pub(super) fn stop(&self) {
        self.is_enough.send_replace(true);
    }

    /// Returns when no more requests are made.
    async fn stopped(&self) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self.is_enough.subscribe().wait_for(|is_enough| *is_enough).await;
    }

    /// Drops the bytes after a while. Holds `user` until the pack is read, or until then.
    pub(super) async fn forget_later<T>(&self, user: T) {
        let until = Instant::now() + KEPT;
        let _in_time = tokio::time::timeout_at(until, self.stopped()).await;
        drop(user);
        tokio::time::sleep_until(until).await;
        self.drop_bytes();
    }

    /// Makes no more requests, and drops the bytes: they are requested again when they are read. Returns whether there were any, or some
    /// were pending.
    fn drop_bytes(&self) -> bool {
        self.stop();
        !std::mem::take(&mut *self.segments.lock()).is_empty()
    }

    /// Wraps `source`, so that the fetched and pending bytes of the pack are not requested again.
    pub(super) fn before(self: Arc<Self>, source: Arc<dyn BlobSource>) -> Arc<dyn BlobSource> {
        Arc::new(Source { pack: self, rest: source })
    }

    fn segment_at(&self, offset: u64) -> Option<Arc<Segment>> {
        self.segments.lock().iter().find(|segment| segment.range.contains(&offset)).cloned()
    }
}

impl Segment {
    /// Fetches the range. On an error the reader requests it again.
    async fn fetch(self: Arc<Self>, blob: Blob, source: Arc<dyn BlobSource>) {
        let failed: Result<(), SourceError> = async {
            let mut pieces = source.read(blob, self.range.clone()).await?;
            while let Some(piece) = pieces.next().await {
                let piece = piece?;
                self.held.send_modify(|held| {
                    held.bytes += piece.len() as u64;
                    held.pieces.push(piece);
                });
            }
            Ok(())
        }
        .await;
        if let Err(error) = failed {
            tracing::debug!(%error, "the beginning of a boot pack did not come early");
        }
        self.held.send_modify(|held| held.is_over = true);
    }

    /// The contiguous bytes at `offset`, up to `end`. Waits for at least one. `None` if there will be none.
    async fn at(&self, offset: u64, end: u64) -> Option<Bytes> {
        let skip = offset.checked_sub(self.range.start)?;
        let mut changes = self.held.subscribe();
        let held = changes.wait_for(|held| held.bytes > skip || held.is_over).await.ok()?;
        let mut start = 0;
        let piece = held.pieces.iter().find(|piece| {
            start += piece.len() as u64;
            start > skip
        })?;
        let from = usize::try_from(skip - (start - piece.len() as u64)).ok()?;
        let most = usize::try_from(end - offset).unwrap_or(usize::MAX);
        Some(piece.slice(from..piece.len().min(from.saturating_add(most))))
    }
}

/// The source of the image's bytes. The beginning of one blob may be in memory.
struct Source {
    pack: Arc<EarlyPack>,
    rest: Arc<dyn BlobSource>,
}

/// A response that is being read.
struct Reading {
    pack: Arc<EarlyPack>,
    rest: Arc<dyn BlobSource>,
    left: Range<u64>,
    /// The response for the bytes that are not in memory, once requested.
    asked: Option<BlobStream>,
}

impl BlobSource for Source {
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        if blob != self.pack.blob || self.pack.segment_at(range.start).is_none() {
            return self.rest.read(blob, range);
        }
        let reading = Reading { pack: self.pack.clone(), rest: self.rest.clone(), left: range, asked: None };
        let pieces = stream::unfold(reading, |mut reading| async move { Some((reading.next().await?, reading)) });
        Box::pin(async move { Ok(pieces.boxed()) })
    }

    fn probe(&self, blob: Blob, at: u64) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        self.rest.probe(blob, at)
    }

    fn distrust(&self, blob: &Digest) -> bool {
        // First, so that a request that begins meanwhile goes to another mirror already.
        let is_another_asked = self.rest.distrust(blob);
        let had_it = *blob == self.pack.blob.digest && self.pack.drop_bytes();
        is_another_asked || had_it
    }

    fn name(&self) -> String {
        self.rest.name()
    }

    fn is_local(&self) -> bool {
        self.rest.is_local()
    }
}

impl Reading {
    async fn next(&mut self) -> Option<Result<Bytes, SourceError>> {
        if self.left.is_empty() {
            return None;
        }
        if self.asked.is_none()
            && let Some(segment) = self.pack.segment_at(self.left.start)
            && let Some(piece) = segment.at(self.left.start, self.left.end).await
        {
            self.left.start += piece.len() as u64;
            return Some(Ok(piece));
        }
        let asked = match self.asked.take() {
            Some(asked) => Ok(asked),
            None => self.rest.read(self.pack.blob, self.left.clone()).await,
        };
        let piece = match asked {
            Ok(mut pieces) => {
                let piece = pieces.next().await?;
                self.asked = Some(pieces);
                piece
            }
            Err(error) => Err(error),
        };
        if piece.is_err() {
            // A response ends at an error.
            self.left.start = self.left.end;
        }
        Some(piece)
    }
}

#[cfg(test)]
mod tests;
