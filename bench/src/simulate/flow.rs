//! [`Flow`]: an answer on a connection: packets through one or two links, with a window that opens as TCP's does.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::clock::{Clock, Moment, nanos};
use super::link::Link;

/// Bytes of a packet of the model: small enough that transfers share a link fairly, large enough for millions of them.
const PACKET: u64 = 32 << 10;
/// The first window: ten segments (RFC 6928).
const FIRST_WINDOW: u64 = 14_480;
/// The largest window: what Linux gives a receiver.
const LARGEST_WINDOW: u64 = 6 << 20;
/// Packets that wait for the receiver: as many as the largest window has.
pub(super) const WAITING: usize = (LARGEST_WINDOW / PACKET) as usize;
/// Bytes of the head of an answer.
const HEAD: u64 = 400;

/// A blob of the image, by number: the layer, the boot pack and the documents. Its hash decides which cache has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct BlobName {
    pub(super) number: u32,
    pub(super) hash: u32,
}

/// Bytes that have arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) arrived: Moment,
    pub(super) range: Range<u64>,
}

/// The links from a server to a client, and the time that a byte takes besides.
#[derive(Debug, Clone)]
pub(super) struct Path {
    /// The server's link, where transfers share.
    pub(super) first: Arc<Link>,
    /// The client's own.
    pub(super) last: Arc<Link>,
    /// In one direction.
    pub(super) delay: Duration,
}

impl Path {
    /// Time from a request to its answer, if nothing has to wait.
    pub(super) fn round_trip(&self) -> u64 {
        2 * nanos(self.delay)
    }
}

/// The state that a connection keeps from one answer to the next.
#[derive(Debug)]
pub(super) struct Connection {
    window: u64,
}

/// An answer that is being sent.
pub(super) struct Flow {
    clock: Clock,
    path: Path,
    connection: Connection,
    /// Moments at which sent packets are acknowledged, and their bytes.
    open: VecDeque<(Moment, u64)>,
    in_flight: u64,
    /// When the first link is free of the last packet.
    left: Moment,
}

impl Flow {
    /// An answer whose head leaves now. `connection` is one that is open already.
    pub(super) fn begin(clock: Clock, path: Path, connection: Option<Connection>, at: Moment) -> Self {
        let connection = connection.unwrap_or(Connection { window: FIRST_WINDOW });
        let left = path.first.pass(at, HEAD);
        Self { clock, path, connection, open: VecDeque::new(), in_flight: 0, left }
    }

    /// Sends bytes that the server has at `at`, and returns when the last of them arrives. Stops when the client is gone.
    pub(super) async fn send(&mut self, at: Moment, range: Range<u64>, to: Option<&mpsc::Sender<Packet>>) -> Moment {
        let (mut start, mut arrived) = (range.start, at);
        self.left = self.left.max(at);
        while start < range.end {
            let (at, room) = self.room(self.left);
            let bytes = PACKET.min(range.end - start).min(room);
            self.clock.until(at).await;
            self.left = self.path.first.pass(at, bytes);
            arrived = self.path.last.pass(self.left + nanos(self.path.delay), bytes);
            self.open.push_back((arrived + nanos(self.path.delay), bytes));
            self.in_flight += bytes;
            let packet = Packet { arrived, range: start..start + bytes };
            if let Some(to) = to
                && to.send(packet).await.is_err()
            {
                return arrived;
            }
            start += bytes;
            self.clock.until(self.left).await;
        }
        arrived
    }

    /// The earliest moment from `at` on at which the window has room, and for how many bytes.
    fn room(&mut self, mut at: Moment) -> (Moment, u64) {
        while let Some((acknowledged, sent)) = self.open.front().copied() {
            if acknowledged > at && self.in_flight < self.connection.window {
                break;
            }
            at = at.max(acknowledged);
            self.open.pop_front();
            self.in_flight -= sent;
            self.connection.window = (self.connection.window + sent).min(LARGEST_WINDOW);
        }
        (at, self.connection.window - self.in_flight)
    }

    /// The connection, for another answer.
    pub(super) fn end(self) -> Connection {
        self.connection
    }
}

/// Connections to a server that are open and idle.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<Vec<Connection>>);

impl Connections {
    /// Sends a request at `at`, over an idle connection or a new one. Returns the answer, and when it begins.
    pub(super) async fn request(&self, clock: Clock, path: &Path, mut at: Moment) -> (Flow, Moment) {
        let idle = self.0.lock().pop();
        if idle.is_none() {
            at += path.round_trip();
        }
        at += nanos(path.delay);
        clock.until(at).await;
        (Flow::begin(clock, path.clone(), idle, at), at)
    }

    pub(super) fn give_back(&self, connection: Connection) {
        self.0.lock().push(connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn path(rate: f64, delay: u64) -> Path {
        let delay = Duration::from_millis(delay);
        Path { first: Arc::new(Link::new(Some(rate))), last: Arc::new(Link::new(None)), delay }
    }

    /// How long a new connection takes for these bytes.
    async fn sent(clock: Clock, path: Path, bytes: u64) -> Moment {
        let at = clock.now();
        Flow::begin(clock, path, None, at).send(at, 0..bytes, None).await - at
    }

    #[tokio::test(start_paused = true)]
    async fn two_transfers_on_a_link_take_twice_as_long_each() {
        let clock = Clock::begin();
        let one = sent(clock, path(1e9, 0), 10 * MIB).await as f64;
        let shared = path(1e9, 0);
        let (first, second) = tokio::join!(sent(clock, shared.clone(), 10 * MIB), sent(clock, shared, 10 * MIB));
        for end in [first, second] {
            assert!((end as f64 / one - 2.0).abs() < 0.02, "{end} and {one}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_small_transfer_does_not_wait_for_the_end_of_a_large_one() {
        let (clock, shared) = (Clock::begin(), path(1e8, 0));
        let (large, small) = tokio::join!(sent(clock, shared.clone(), 10 * MIB), sent(clock, shared, MIB / 10));
        assert!(small < large / 20, "{small} and {large}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_sends_ten_segments_in_the_first_round_trip_and_twice_as_many_in_the_next() {
        let (clock, far) = (Clock::begin(), path(1e12, 50));
        let trip = far.round_trip();
        let trips = |end: Moment| (end as f64 / trip as f64 - 0.5).round();
        assert_eq!(trips(sent(clock, far.clone(), FIRST_WINDOW).await), 0.0);
        assert_eq!(trips(sent(clock, far.clone(), 3 * FIRST_WINDOW).await), 1.0);
        assert_eq!(trips(sent(clock, far, 7 * FIRST_WINDOW).await), 2.0);
    }
}
