//! Measures what requests to a source cost: the time to the first byte, and the rate of the following bytes.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The bandwidth is unknown until this many bytes arrived after first ones: at 100 Mbit/s they take 20 ms.
const SAMPLE_BYTES: u64 = 256 << 10;
/// After this many bytes, older measurements count half: a link changes within minutes, not within requests.
const MEMORY_BYTES: u64 = 64 << 20;
/// The part of a new round trip in the average: one slow answer does not make a slow link.
const SMOOTHING: u32 = 8;

/// The link to one source, as measured by its requests.
///
/// The first part of an answer arrives with its head and is no measure of the speed. Only the following bytes and their time are
/// counted. The time of parallel requests counts once, because they share the link.
#[derive(Default)]
pub(crate) struct Link(Mutex<Measured>);

#[derive(Default)]
struct Measured {
    round_trip: Option<Duration>,
    bytes: u64,
    busy: Duration,
    /// Answers that are being received, and the start of the time in which there are any.
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
    /// Records the time to the first byte.
    pub(crate) fn answered(&self, after: Duration) {
        let mut measured = self.0.lock();
        let before = measured.round_trip.unwrap_or(after);
        measured.round_trip = Some((before * (SMOOTHING - 1) + after) / SMOOTHING);
    }

    /// Starts the clock for the rest of an answer.
    pub(crate) fn begin(&self) {
        let mut measured = self.0.lock();
        measured.advance(Instant::now());
        measured.waiting += 1;
    }

    /// Stops the clock of [`Link::begin`]. Time in which the answer was not read counts too: bytes still arrive, and are available
    /// at once afterwards.
    pub(crate) fn end(&self) {
        let mut measured = self.0.lock();
        measured.advance(Instant::now());
        measured.waiting -= 1;
    }

    /// Counts bytes after the first ones.
    pub(crate) fn received(&self, bytes: usize) {
        let mut measured = self.0.lock();
        measured.bytes += bytes as u64;
        if measured.bytes > MEMORY_BYTES {
            measured.bytes /= 2;
            measured.busy /= 2;
        }
    }

    /// Time from a request to its first byte. Zero if there was none.
    pub(crate) fn round_trip(&self) -> Duration {
        self.0.lock().round_trip.unwrap_or_default()
    }

    /// Bytes per second, if enough bytes were counted.
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
