//! A boot pack that is on its way before its image is: the index of the image is still being fetched and merged by the client, and the
//! link would have nothing else to do.
//!
//! What comes is held in memory, unchecked, as [`BlobSource`] hands it on anyway: whoever reads the pack through
//! [`EarlyPack::before`] gets these bytes first, and the rest from where all bytes come from.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use parking_lot::Mutex;
use tarpon_blob::{BlobSource, BlobStream, SourceError};
use tarpon_fetch::{REPLAY_FIRST_BYTES, REPLAY_MOST_BYTES, REPLAY_REQUESTS};
use tarpon_oci::Blob;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Most that is brought before the image is there: what comes in three seconds at 100 Mbit/s, and an index takes less.
const MOST_BYTES: u64 = 32 << 20;
/// Its bytes are given back after this: a client that has not mounted the image by then will not, and a replay has read them long ago.
const KEPT: Duration = Duration::from_secs(60);

/// The beginning of a boot pack, as far as it has come.
pub(super) struct EarlyPack {
    blob: Blob,
    segments: Mutex<Vec<Arc<Segment>>>,
    /// Whether nothing more is asked for.
    is_enough: watch::Sender<bool>,
}

/// What one request brings.
struct Segment {
    range: Range<u64>,
    held: watch::Sender<Held>,
}

#[derive(Default)]
struct Held {
    pieces: Vec<Bytes>,
    bytes: u64,
    /// Nothing more will come.
    is_over: bool,
}

impl EarlyPack {
    pub(super) fn new(blob: Blob) -> Self {
        Self { blob, segments: Mutex::default(), is_enough: watch::Sender::default() }
    }

    /// Brings the beginning, as the replay that follows would, until [`EarlyPack::stop`]; before each request `give_way` says when there is nothing better to do.
    pub(super) async fn bring<Quiet: Future<Output = ()>>(
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
            under_way.spawn(self.begin(next..end).bring(self.blob, source.clone()));
            (next, width) = (end, (width * 2).min(REPLAY_MOST_BYTES));
            while under_way.len() >= REPLAY_REQUESTS {
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

    /// Asks for no more: somebody reads the pack now. What was asked for still comes.
    pub(super) fn stop(&self) {
        self.is_enough.send_replace(true);
    }

    /// Returns when no more is asked for.
    async fn stopped(&self) {
        // The sender lives as long as `self`: this cannot fail.
        let _ = self.is_enough.subscribe().wait_for(|is_enough| *is_enough).await;
    }

    /// Gives the bytes back after a while. `user` is held until somebody reads them, or until then.
    pub(super) async fn forget_later<T>(&self, user: T) {
        let until = Instant::now() + KEPT;
        let _in_time = tokio::time::timeout_at(until, self.stopped()).await;
        drop(user);
        tokio::time::sleep_until(until).await;
        self.stop();
        self.segments.lock().clear();
    }

    /// `source`, but what has come of the pack, or is on its way, is not asked for again.
    pub(super) fn before(self: Arc<Self>, source: Arc<dyn BlobSource>) -> Arc<dyn BlobSource> {
        Arc::new(Source { pack: self, rest: source })
    }

    fn segment_at(&self, offset: u64) -> Option<Arc<Segment>> {
        self.segments.lock().iter().find(|segment| segment.range.contains(&offset)).cloned()
    }
}

impl Segment {
    /// What goes wrong here is asked for again by whoever reads.
    async fn bring(self: Arc<Self>, blob: Blob, source: Arc<dyn BlobSource>) {
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

    /// The bytes at `offset`, up to `end`, as many as lie together. Waits until there are any; `None` if there will be none.
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

/// Where the image's bytes come from, of which the beginning of one blob may be here.
struct Source {
    pack: Arc<EarlyPack>,
    rest: Arc<dyn BlobSource>,
}

/// An answer that is being read.
struct Reading {
    pack: Arc<EarlyPack>,
    rest: Arc<dyn BlobSource>,
    left: Range<u64>,
    /// What is not here, once that was asked for.
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
            // An error is the end of an answer.
            self.left.start = self.left.end;
        }
        Some(piece)
    }
}

#[cfg(test)]
mod tests;
