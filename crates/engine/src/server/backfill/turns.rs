//! A source that is asked for a little at a time, with a look in between at whether somebody has something better to do.
//!
//! Whoever pauses in the middle of an answer does not stop it: the other side goes on sending until the kernel's buffers are full, which
//! is half a second of a link of 100 Mbit/s. Only what was not asked for does not come.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use tarpon_blob::{BlobSource, BlobStream, SourceError};
use tarpon_oci::Blob;
use tokio::time::Instant;

/// What a reader may have to wait for at worst, several streams together: one chunk of the customary sizes.
const LEAST_BYTES: u64 = 256 << 10;
/// As long as a fast link is asked for: round trips no longer count.
const MOST_BYTES: u64 = 8 << 20;
/// How long the bytes of a turn are to come, …
const TURN: Duration = Duration::from_millis(25);
/// … or so many times as long as the first of them takes to come, whichever is longer: four fifths of the link are used then.
const ROUND_TRIPS: u32 = 4;

/// A pause before each turn, and whether turns are of use at all.
pub(super) trait Turn: Send + Sync + 'static {
    /// Returns when the next turn may begin.
    fn begin(&self) -> BoxFuture<'_, ()>;

    /// Whether parts cannot be asked for: each would cost all that lies before it.
    fn is_whole(&self) -> bool;
}

/// The source, in turns.
pub(super) struct Turns<T> {
    source: Arc<dyn BlobSource>,
    turn: Arc<T>,
}

impl<T: Turn> Turns<T> {
    pub(super) fn new(source: Arc<dyn BlobSource>, turn: T) -> Self {
        Self { source, turn: Arc::new(turn) }
    }
}

/// An answer that is being read.
struct Reading<T> {
    source: Arc<dyn BlobSource>,
    turn: Arc<T>,
    blob: Blob,
    /// Not asked for yet.
    left: Range<u64>,
    current: Option<Current>,
    width: u64,
}

/// The turn under way.
struct Current {
    pieces: BlobStream,
    width: u64,
    asked: Instant,
    /// From the request to the first bytes.
    round_trip: Option<Duration>,
    /// How long the others were waited for, not counting what was done with them.
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

    /// How much to ask for next.
    fn next_width(&self) -> u64 {
        width(self.width, self.received_in, self.round_trip.unwrap_or_default())
    }
}

impl<T: Turn> BlobSource for Turns<T> {
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        let (source, turn) = (self.source.clone(), self.turn.clone());
        let reading = Reading { source, turn, blob, left: range, current: None, width: LEAST_BYTES };
        let pieces = stream::try_unfold(reading, |mut reading| async move {
            let piece = reading.next().await?;
            Ok(piece.map(|piece| (piece, reading)))
        });
        Box::pin(async move { Ok(pieces.boxed()) })
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

/// How much comes in a turn, if `bytes` came in that time.
fn width(bytes: u64, received_in: Duration, round_trip: Duration) -> u64 {
    let turn = TURN.max(round_trip * ROUND_TRIPS);
    let wanted = u128::from(bytes) * turn.as_micros() / received_in.as_micros().max(1);
    // Twice as much at most: one turn says little.
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

    /// Answers at once with as many zeros, until it breaks.
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

    fn turns(source: &Arc<Zeros>, permits: usize, is_whole: bool) -> Turns<Permits> {
        Turns::new(source.clone(), Permits(Semaphore::new(permits), is_whole))
    }

    #[tokio::test(start_paused = true)]
    async fn each_turn_is_asked_for_when_it_may_begin_and_all_together_are_the_layer() {
        let source = Arc::new(Zeros::default());
        let turns = turns(&source, 0, false);
        let mut pieces = turns.read(blob(), 2..SIZE).await.unwrap();
        assert!(pieces.next().now_or_never().is_none() && source.asked.lock().is_empty());
        turns.turn.0.add_permits(1);
        assert_eq!(pieces.next().await.unwrap().unwrap().len() as u64, LEAST_BYTES);
        assert!(pieces.next().now_or_never().is_none());
        assert!(source.asked.lock().iter().eq([&(2..LEAST_BYTES + 2)]));
        turns.turn.0.add_permits(10);
        let rest = pieces.map(|piece| piece.unwrap().len() as u64).collect::<Vec<_>>().await;
        assert_eq!(rest.iter().sum::<u64>(), SIZE - 2 - LEAST_BYTES);
        assert!(source.asked.lock().windows(2).all(|pair| pair[0].end == pair[1].start));
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_had_in_parts_is_asked_for_once() {
        let source = Arc::new(Zeros::default());
        let turns = turns(&source, 1, true);
        let pieces = turns.read(blob(), 0..SIZE).await.unwrap();
        assert_eq!(pieces.map(|piece| piece.unwrap().len() as u64).collect::<Vec<_>>().await, [SIZE]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_ends_the_answer() {
        let source = Arc::new(Zeros { breaks: true, ..Zeros::default() });
        let turns = turns(&source, 9, false);
        let mut pieces = turns.read(blob(), 0..SIZE).await.unwrap();
        assert!(pieces.next().await.unwrap().is_ok());
        assert!(pieces.next().await.unwrap().unwrap_err().to_string().contains("reset"));
        assert!(pieces.next().await.is_none());
    }

    /// 100 ms to the first byte, 10 MB/s from there: a turn that counted round trips would stay as it began.
    #[tokio::test(start_paused = true)]
    async fn a_far_source_is_asked_for_more_at_a_time() {
        let source = Arc::new(Far::default());
        let turns = Turns::new(source.clone(), Permits(Semaphore::new(100), false));
        let blob = Blob { size: 64 << 20, ..blob() };
        let pieces = turns.read(blob, 0..blob.size).await.unwrap();
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
