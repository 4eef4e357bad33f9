//! What requests to a source cost: the time to the first byte, and how fast the others follow.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Before so many bytes came behind first ones, the bandwidth is not known: at 100 Mbit/s they take 20 ms.
const SAMPLE_BYTES: u64 = 256 << 10;
/// After so many bytes, what was measured counts half: a link changes within minutes, not within requests.
const MEMORY_BYTES: u64 = 64 << 20;
/// The part of a new round trip in the average: one slow answer does not make a slow link.
const SMOOTHING: u32 = 8;

/// The link to one source, as its requests saw it.
///
/// The first part of an answer comes with its head and says nothing about the speed; only what follows is counted, and the time that
/// it takes. Of requests side by side the time counts once, for they share the link.
#[derive(Default)]
pub(crate) struct Link(Mutex<Measured>);

#[derive(Default)]
struct Measured {
    round_trip: Option<Duration>,
    bytes: u64,
    busy: Duration,
    /// Answers that are coming just now, and since when there are any.
    waiting: usize,
    since: Option<Instant>,
}

impl Measured {
    fn advance(&mut self, now: Instant) {
        if let Some(since) = self.since.filter(|_| self.waiting > 0) {
            self.busy += now.saturating_duration_since(since);
        }
        self.since = Some(now);
    }
}

impl Link {
    /// A first byte came.
    pub(crate) fn answered(&self, after: Duration) {
        let mut measured = self.0.lock();
        let before = measured.round_trip.unwrap_or(after);
        measured.round_trip = Some((before * (SMOOTHING - 1) + after) / SMOOTHING);
    }

    /// The answer to a request goes on coming, …
    pub(crate) fn begin(&self) {
        let mut measured = self.0.lock();
        measured.advance(Instant::now());
        measured.waiting += 1;
    }

    /// … until here. What it was not read for in between counts too: bytes come all the same, and are had at once afterwards.
    pub(crate) fn end(&self) {
        let mut measured = self.0.lock();
        measured.advance(Instant::now());
        measured.waiting -= 1;
    }

    /// They came.
    pub(crate) fn received(&self, bytes: usize) {
        let mut measured = self.0.lock();
        measured.bytes += bytes as u64;
        if measured.bytes > MEMORY_BYTES {
            measured.bytes /= 2;
            measured.busy /= 2;
        }
    }

    /// From a request to its first byte; nothing if there was none.
    pub(crate) fn round_trip(&self) -> Duration {
        self.0.lock().round_trip.unwrap_or_default()
    }

    /// Bytes in a second, if enough came to tell.
    pub(crate) fn bandwidth(&self) -> Option<u64> {
        let measured = self.0.lock();
        if measured.bytes < SAMPLE_BYTES {
            return None;
        }
        let per_second = u128::from(measured.bytes) * 1_000_000_000 / measured.busy.as_nanos().max(1);
        Some(u64::try_from(per_second).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn receive(link: &Link, millis: u64, bytes: usize) {
        link.begin();
        tokio::time::sleep(Duration::from_millis(millis)).await;
        link.end();
        link.received(bytes);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_side_by_side_share_the_link_and_time_between_them_does_not_count() {
        let link = Link::default();
        receive(&link, 10, 100_000).await;
        assert_eq!(link.bandwidth(), None);
        tokio::time::sleep(Duration::from_secs(5)).await;
        tokio::join!(receive(&link, 20, 100_000), receive(&link, 20, 100_000));
        assert_eq!(link.bandwidth(), Some(10_000_000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_that_becomes_slow_is_known_to_be_slow_soon() {
        let link = Link::default();
        receive(&link, 1_000, 60 << 20).await;
        for _ in 0..8 {
            receive(&link, 20_000, 20 << 20).await;
        }
        assert!(link.bandwidth().is_some_and(|bandwidth| bandwidth < 2 << 20), "{:?}", link.bandwidth());
    }

    #[test]
    fn one_slow_answer_does_not_make_a_slow_link() {
        let link = Link::default();
        link.answered(Duration::from_millis(10));
        link.answered(Duration::from_millis(90));
        assert_eq!(link.round_trip(), Duration::from_millis(20));
    }
}
