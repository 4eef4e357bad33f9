//! [`Pace`]: a limit of bytes per second; [`Paced`]: a source whose bytes are counted, and arrive at a limited rate.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tarpon_oci::{Blob, Digest};
use tokio::time::Instant;

use crate::{BlobSource, BlobStream, SourceError};

/// A limit of bytes per second, which all users share.
#[derive(Debug)]
pub struct Pace {
    /// Bytes per second. `None`: no limit.
    rate: Option<NonZeroU64>,
    next: Mutex<Instant>,
}

impl Pace {
    /// A limit of `rate` bytes per second; `None` for no limit.
    pub fn new(rate: Option<NonZeroU64>) -> Self {
        Self { rate, next: Mutex::new(Instant::now()) }
    }

    /// Bytes per second. `None`: no limit.
    pub fn rate(&self) -> Option<NonZeroU64> {
        self.rate
    }

    /// The time at which the bytes after these may follow.
    fn after(&self, bytes: u64) -> Option<Instant> {
        let rate = self.rate?.get();
        // A piece is far below 2⁶⁴ ns × B/s. Any larger one takes forever anyway.
        let nanoseconds = u128::from(bytes).saturating_mul(1_000_000_000) / u128::from(rate);
        let duration = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let mut next = self.next.lock();
        *next = Instant::now().max(*next) + duration;
        Some(*next)
    }

    /// Notes these bytes, and waits until the next ones may follow.
    pub async fn pass(&self, bytes: u64) {
        if let Some(next) = self.after(bytes) {
            tokio::time::sleep_until(next).await;
        }
    }
}

/// The source. All its responses share the rate.
pub struct Paced {
    source: Arc<dyn BlobSource>,
    gate: Arc<Gate>,
}

struct Gate {
    pace: Pace,
    count: Box<dyn Fn(u64) + Send + Sync>,
}

impl Paced {
    /// `count` is called with the size of each piece.
    pub fn new(
        source: Arc<dyn BlobSource>,
        rate: Option<NonZeroU64>,
        count: impl Fn(u64) + Send + Sync + 'static,
    ) -> Self {
        Self { source, gate: Arc::new(Gate { pace: Pace::new(rate), count: Box::new(count) }) }
    }
}

impl BlobSource for Paced {
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        async move {
            let pieces = self.source.read(blob, range).await?;
            let gate = self.gate.clone();
            let paced = pieces.then(move |piece| {
                let gate = gate.clone();
                async move {
                    if let Ok(bytes) = &piece {
                        let bytes = bytes.len() as u64;
                        (gate.count)(bytes);
                        gate.pace.pass(bytes).await;
                    }
                    piece
                }
            });
            Ok(paced.boxed())
        }
        .boxed()
    }

    fn probe(&self, blob: Blob, at: u64) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        self.source.probe(blob, at)
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use bytes::Bytes;
    use futures::stream;

    use super::*;

    /// Replies with zeros, 100 at a time.
    struct Zeros;

    impl BlobSource for Zeros {
        fn read(&self, _: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
            let pieces = (range.end - range.start) / 100;
            let pieces = stream::iter(0..pieces).map(|_| Ok(Bytes::from_static(&[0; 100])));
            async move { Ok(pieces.boxed()) }.boxed()
        }

        fn name(&self) -> String {
            "zeros".to_owned()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_bytes_pass_in_a_second_than_may_and_all_are_counted() {
        let blob = Blob { digest: Digest::of(b"blob"), size: 5_000 };
        let counted = Arc::new(AtomicU64::new(0));
        let count = counted.clone();
        let count = move |bytes| {
            count.fetch_add(bytes, Ordering::Relaxed);
        };
        let paced = Paced::new(Arc::new(Zeros), NonZeroU64::new(1000), count);
        let began = Instant::now();
        for _ in 0..2 {
            let mut pieces = paced.read(blob, 0..2_500).await.unwrap();
            while let Some(piece) = pieces.next().await {
                piece.unwrap();
            }
        }
        assert_eq!((began.elapsed(), counted.load(Ordering::Relaxed)), (Duration::from_secs(5), 5_000));
    }
}
