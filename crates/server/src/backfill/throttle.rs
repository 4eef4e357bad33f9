//! [`Throttle`]: a source that is read in small requests, with a check for more urgent work between them.
//!
//! A pause in the middle of a response does not stop it: the other side continues to send until the kernel's buffers are full, which is
//! half a second of a link of 100 Mbit/s. Only data that was not requested does not arrive.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use tarpon_blob::{BlobSource, BlobStream, SourceError};
use tarpon_oci::{Blob, Digest};
use tokio::time::Instant;

/// Smallest request, which bounds the worst delay of a reader with several streams together: one chunk of common size.
const LEAST_BYTES: u64 = 256 << 10;
/// Largest request, for a fast link: round trips no longer matter.
const MOST_BYTES: u64 = 8 << 20;
/// Target duration of a turn's transfer, …
const TURN: Duration = Duration::from_millis(25);
/// … or this multiple of the time to the first byte, whichever is longer. Then four fifths of the link are used.
const ROUND_TRIPS: u32 = 4;

/// A pause before each turn, and whether turns are useful at all.
pub(super) trait Turn: Send + Sync + 'static {
    /// Returns when the next turn may begin.
    fn begin(&self) -> BoxFuture<'_, ()>;

    /// Whether ranges cannot be requested: each would cost all bytes before it.
    fn is_whole(&self) -> bool;
}

/// The source, read in turns.
pub(super) struct Throttle<T> {
    source: Arc<dyn BlobSource>,
    turn: Arc<T>,
}

impl<T: Turn> Throttle<T> {
    pub(super) fn new(source: Arc<dyn BlobSource>, turn: T) -> Self {
        Self { source, turn: Arc::new(turn) }
    }
}

/// A response that is being read.
struct Reading<T> {
    source: Arc<dyn BlobSource>,
    turn: Arc<T>,
    blob: Blob,
    /// Not yet requested.
    left: Range<u64>,
    current: Option<Current>,
    width: u64,
}

/// The current turn.
struct Current {
    pieces: BlobStream,
    width: u64,
    asked: Instant,
    /// Time from the request to the first bytes.
    round_trip: Option<Duration>,
    /// Time waited for the other pieces, without the time spent processing them.
    received_in: Duration,
}

impl Current {
    async fn next(&mut self) -> Option<Result<Bytes, SourceError>> {
        let began = Instant::now();
        let piece = self.pieces.next().await?;
        match self.round_trip {
            None => self.round_trip = Some(self.asked.elapsed()),
            Some(_) => self.received_in += began.elapsed(),
        }
        Some(piece)
    }

    /// Size of the next request.
    fn next_width(&self) -> u64 {
        width(self.width, self.received_in, self.round_trip.unwrap_or_default())
    }
}

impl<T: Turn> BlobSource for Throttle<T> {
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        let (source, turn) = (self.source.clone(), self.turn.clone());
        let reading = Reading { source, turn, blob, left: range, current: None, width: LEAST_BYTES };
        let pieces = stream::try_unfold(reading, |mut reading| async move {
            let piece = reading.next().await?;
            Ok(piece.map(|piece| (piece, reading)))
        });
        Box::pin(async move { Ok(pieces.boxed()) })
    }

    fn distrust(&self, blob: &Digest) -> bool {
        self.source.distrust(blob)
    }

    fn name(&self) -> String {
        self.source.name()
    }

    fn is_local(&self) -> bool {
        self.source.is_local()
    }
}

impl<T: Turn> Reading<T> {
    async fn next(&mut self) -> Result<Option<Bytes>, SourceError> {
        loop {
            if let Some(current) = &mut self.current {
                if let Some(piece) = current.next().await {
                    return piece.map(Some);
                }
                self.width = current.next_width();
            }
            if self.left.is_empty() {
                return Ok(None);
            }
            self.current = Some(self.ask().await?);
        }
    }

    async fn ask(&mut self) -> Result<Current, SourceError> {
        self.current = None;
        self.turn.begin().await;
        let (asked, left) = (Instant::now(), self.left.end - self.left.start);
        let width = if self.turn.is_whole() { left } else { self.width.min(left) };
        let range = self.left.start..self.left.start + width;
        let pieces = self.source.read(self.blob, range).await?;
        self.left.start += width;
        Ok(Current { pieces, width, asked, round_trip: None, received_in: Duration::ZERO })
    }
}

/// Bytes that arrive in one turn, given that `bytes` arrived in `received_in`.
fn width(bytes: u64, received_in: Duration, round_trip: Duration) -> u64 {
    let turn = TURN.max(round_trip * ROUND_TRIPS);
    let wanted = u128::from(bytes) * turn.as_micros() / received_in.as_micros().max(1);
    // At most twice as much, because a single turn is a small sample.
    u64::try_from(wanted).unwrap_or(u64::MAX).min(bytes.saturating_mul(2)).clamp(LEAST_BYTES, MOST_BYTES)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use parking_lot::Mutex;
    use tarpon_blob::Fault;
    use tarpon_oci::Digest;
    use tokio::sync::Semaphore;

    use super::*;

    const SIZE: u64 = 5 * LEAST_BYTES + 3;

    fn blob() -> Blob {
        Blob { digest: Digest::of(b"layer"), size: SIZE }
    }

    /// Replies at once with as many zeros as requested, until it fails.
    #[derive(Default)]
    struct Zeros {
        asked: Mutex<Vec<Range<u64>>>,
        breaks: bool,
    }

    impl BlobSource for Zeros {
        fn read(&self, _: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
            self.asked.lock().push(range.clone());
            let bytes = Ok(Bytes::from(vec![0; usize::try_from(range.end - range.start).unwrap()]));
            let broken = self.breaks.then(|| Err(SourceError::new(Fault::Unavailable, "reset")));
            Box::pin(async move { Ok(stream::iter([bytes].into_iter().chain(broken)).boxed()) })
        }

        fn name(&self) -> String {
            "zeros".to_owned()
        }
    }

    struct Permits(Semaphore, bool);

    impl Turn for Permits {
        fn begin(&self) -> BoxFuture<'_, ()> {
            async move { self.0.acquire().await.unwrap().forget() }.boxed()
        }

        fn is_whole(&self) -> bool {
            self.1
        }
    }

    fn throttle(source: &Arc<Zeros>, permits: usize, is_whole: bool) -> Throttle<Permits> {
        Throttle::new(source.clone(), Permits(Semaphore::new(permits), is_whole))
    }

    #[tokio::test(start_paused = true)]
    async fn each_turn_is_asked_for_when_it_may_begin_and_all_together_are_the_layer() {
        let source = Arc::new(Zeros::default());
        let throttled = throttle(&source, 0, false);
        let mut pieces = throttled.read(blob(), 2..SIZE).await.unwrap();
        assert!(pieces.next().now_or_never().is_none() && source.asked.lock().is_empty());
        throttled.turn.0.add_permits(1);
        assert_eq!(pieces.next().await.unwrap().unwrap().len() as u64, LEAST_BYTES);
        assert!(pieces.next().now_or_never().is_none());
        assert!(source.asked.lock().iter().eq([&(2..LEAST_BYTES + 2)]));
        throttled.turn.0.add_permits(10);
        let rest = pieces.map(|piece| piece.unwrap().len() as u64).collect::<Vec<_>>().await;
        assert_eq!(rest.iter().sum::<u64>(), SIZE - 2 - LEAST_BYTES);
        assert!(source.asked.lock().windows(2).all(|pair| pair[0].end == pair[1].start));
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_had_in_parts_is_asked_for_once() {
        let source = Arc::new(Zeros::default());
        let throttled = throttle(&source, 1, true);
        let pieces = throttled.read(blob(), 0..SIZE).await.unwrap();
        assert_eq!(pieces.map(|piece| piece.unwrap().len() as u64).collect::<Vec<_>>().await, [SIZE]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_ends_the_answer() {
        let source = Arc::new(Zeros { breaks: true, ..Zeros::default() });
        let throttled = throttle(&source, 9, false);
        let mut pieces = throttled.read(blob(), 0..SIZE).await.unwrap();
        assert!(pieces.next().await.unwrap().is_ok());
        assert!(pieces.next().await.unwrap().unwrap_err().to_string().contains("reset"));
        assert!(pieces.next().await.is_none());
    }

    /// 100 ms to the first byte, 10 MB/s after that. A turn that counted round trips would stay at its initial size.
    #[tokio::test(start_paused = true)]
    async fn a_far_source_is_asked_for_more_at_a_time() {
        let source = Arc::new(Far::default());
        let throttled = Throttle::new(source.clone(), Permits(Semaphore::new(100), false));
        let blob = Blob { size: 64 << 20, ..blob() };
        let pieces = throttled.read(blob, 0..blob.size).await.unwrap();
        assert_eq!(
            pieces.map(|piece| piece.unwrap().len() as u64).collect::<Vec<_>>().await.iter().sum::<u64>(),
            blob.size
        );
        assert!(source.0.load(std::sync::atomic::Ordering::Relaxed) < 24);
    }

    /// Counts its requests.
    #[derive(Default)]
    struct Far(std::sync::atomic::AtomicU32);

    impl BlobSource for Far {
        fn read(&self, _: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
            const PART: u64 = 64 << 10;
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let parts = stream::unfold(range, |left| async move {
                let length = PART.min(left.end - left.start);
                tokio::time::sleep(Duration::from_micros(length / 10)).await;
                let bytes = Bytes::from(vec![0; usize::try_from(length).unwrap()]);
                (length > 0).then_some((Ok(bytes), left.start + length..left.end))
            });
            async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                Ok(parts.boxed())
            }
            .boxed()
        }

        fn name(&self) -> String {
            "far".to_owned()
        }
    }

    #[test]
    fn a_turn_becomes_as_wide_as_the_link_allows() {
        let (second, near) = (Duration::from_secs(1), Duration::from_millis(1));
        assert_eq!(width(LEAST_BYTES, second, near), LEAST_BYTES, "never narrower");
        assert_eq!(width(LEAST_BYTES, Duration::ZERO, near), 2 * LEAST_BYTES, "slowly wider");
        assert_eq!(width(1 << 20, TURN, near), 1 << 20);
        assert_eq!(width(MOST_BYTES, TURN / 10, near), MOST_BYTES);
        assert_eq!(width(1 << 20, TURN * 2, Duration::from_millis(25)), 2 << 20, "round trips are worth more");
    }
}
