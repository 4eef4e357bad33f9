//! [`Link`] and [`Processors`]: what hosts share, first come, first served.
//!
//! A transfer has one packet at a time in the queue of its first link, and work is cut into slices. So a queue serves all transfers and
//! all programs in turn, which is fair sharing, at the cost of one event for each packet.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::clock::{Clock, Moment, nanos};

/// Bytes on the wire for each byte of content: Ethernet, IP and TCP headers of 66 bytes for each 1,448.
const WIRE: f64 = 1514.0 / 1448.0;
/// Longest slice of a processor: what Linux gives a program while others wait.
const SLICE: Duration = Duration::from_millis(4);

/// One direction of a link.
#[derive(Debug)]
pub(super) struct Link {
    /// Of a byte on the wire.
    nanos_per_byte: f64,
    /// Processors that carry it, and their time for each MiB.
    carrier: Option<(Arc<Processors>, Duration)>,
    state: Mutex<LinkState>,
}

#[derive(Debug, Default)]
struct LinkState {
    free: f64,
    bytes: u64,
}

impl Link {
    /// A link of this many bits per second; `None` for one that takes no time.
    pub(super) fn new(bits_per_second: Option<f64>) -> Self {
        Self::carried(bits_per_second, None)
    }

    /// As [`Link::new`], for a link that is made in software, on these processors.
    pub(super) fn carried(bits_per_second: Option<f64>, carrier: Option<(Arc<Processors>, Duration)>) -> Self {
        Self { nanos_per_byte: bits_per_second.map_or(0.0, |rate| 8e9 / rate), carrier, state: Mutex::default() }
    }

    /// Sends content that is ready at `at`, behind all that was sent before. Returns when the last byte has left.
    pub(super) fn pass(&self, at: Moment, bytes: u64) -> Moment {
        if let Some((processors, per_mib)) = &self.carrier {
            // Before other work: a thread that wakes up for a packet runs at once.
            processors.reserve(at, nanos(work_of(bytes, *per_mib)));
        }
        let mut state = self.state.lock();
        let wire = bytes as f64 * WIRE;
        state.free = state.free.max(at as f64) + wire * self.nanos_per_byte;
        state.bytes += bytes;
        whole(state.free)
    }

    /// All bytes so far, with headers.
    pub(super) fn wire_bytes(&self) -> u64 {
        whole(self.state.lock().bytes as f64 * WIRE)
    }
}

/// The work for these bytes.
pub(super) fn work_of(bytes: u64, per_mib: Duration) -> Duration {
    per_mib.mul_f64(bytes as f64 / f64::from(1 << 20))
}

/// A time or a number of bytes, which is never negative.
fn whole(value: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is neither negative nor that large"
    )]
    let whole = value.round() as u64;
    whole
}

/// Equal processors with one queue.
#[derive(Debug)]
pub(super) struct Processors {
    free: Mutex<Vec<Moment>>,
}

impl Processors {
    pub(super) fn new(count: usize) -> Self {
        Self { free: Mutex::new(vec![0; count.max(1)]) }
    }

    /// Runs work that is ready at `at`, in slices. Returns when it is done.
    pub(super) async fn run(&self, clock: &Clock, mut at: Moment, work: Duration) -> Moment {
        let mut left = nanos(work);
        while left > 0 {
            let slice = left.min(nanos(SLICE));
            at = self.reserve(at, slice);
            clock.until(at).await;
            left -= slice;
        }
        at
    }

    fn reserve(&self, at: Moment, slice: u64) -> Moment {
        let mut free = self.free.lock();
        let Some(first) = free.iter_mut().min() else { return at + slice };
        *first = (*first).max(at) + slice;
        *first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_second_leaves_after_what_was_sent_first() {
        let link = Link::new(Some(8e9 * WIRE));
        assert_eq!((link.pass(0, 1_000), link.pass(0, 1_000), link.pass(5_000, 1_000)), (1_000, 2_000, 6_000));
        assert_eq!(Link::new(None).pass(7, 1 << 30), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn three_programs_on_two_processors_take_half_as_long_again() {
        let (clock, two) = (Clock::begin(), Processors::new(2));
        let work = Duration::from_millis(120);
        let ends = futures::future::join_all((0..3).map(|_| two.run(&clock, 0, work))).await;
        let last = Duration::from_nanos(ends.into_iter().max().unwrap());
        assert!((176..=184).contains(&last.as_millis()), "{last:?}");
    }
}
