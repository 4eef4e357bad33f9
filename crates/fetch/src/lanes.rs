//! Lanes decide which requests may put bytes on the wire: demand before early fetches, and never more than fits.
//!
//! Demand waits for room in its image's share and then in the host's. The replay of a boot pack waits for room in a share of its
//! own. Read-ahead has a small share, does not wait for it (no room means no read-ahead), and is limited to few requests at a time.
//! Both pause between pieces while a reader's request is on the wire, so they delay it by at most the piece that they are receiving.
//! Early requests that a reader has joined do not pause. Neighbours share the request of a reader that was alone on the wire, and
//! follow its piece. They block no request and do not pause, and delay the next one by at most a round trip's worth of bytes. The
//! rest of an image uses the room of read-ahead, and waits for it. It is fetched because readers wait nearly all the time, so
//! pausing for them would stop it: one piece at a time is received beside them.
//!
//! Whether a prefetcher may make a request at all is decided by the policy ([`crate::prefetch`]).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};

use crate::config::Config;

/// Why bytes are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// A reader waits.
    Demand,
    /// A recorded start predicts a read.
    Trace,
    /// A reader may need the bytes.
    Ahead,
    /// The rest of an image, because readers wait nearly all the time.
    Whole,
}

/// Bytes are counted in units of this size, so that any budget fits a semaphore's `u32`.
const UNIT: u64 = 1 << 10;

/// Requests of read-ahead at a time, on this host. Each may be a connection in slow start, and a dozen of these at once fill the
/// queue of a slow link: at 25 Mbit/s and 80 ms it dropped a quarter of the packets, with four 15 %, with two 9 %. Two are enough to
/// fill a link: while one ends, the other is under way.
const AHEAD_REQUESTS: usize = 2;

/// While the last bytes of a request arrive, it does not count among them: so many pass in a round trip of 80 ms at 100 Mbit/s. Of a short
/// request they are half, so that there are rarely more than twice as many requests: their bytes are limited in any case.
const LAST_BYTES: u64 = 1 << 20;

/// A bounded number of bytes.
#[derive(Clone)]
pub(crate) struct Budget {
    room: Arc<Semaphore>,
    units: u32,
}

impl Budget {
    pub(crate) fn new(bytes: u64) -> Self {
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX).max(1);
        Self { room: Arc::new(Semaphore::new(units as usize)), units }
    }

    /// Converts bytes to units. A request larger than the whole budget takes all of it, and runs alone.
    fn units(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).clamp(1, self.units)
    }

    async fn take(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        self.room.clone().acquire_many_owned(self.units(bytes)).await.ok()
    }

    fn try_take(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        self.room.clone().try_acquire_many_owned(self.units(bytes)).ok()
    }
}

/// The lanes of this host.
pub(crate) struct Lanes {
    host: Budget,
    trace: Budget,
    ahead: Budget,
    ahead_requests: Arc<Semaphore>,
    wire: watch::Sender<OnTheWire>,
    /// The whole download that receives a piece while readers wait.
    beside: Semaphore,
}

/// Requests that are under way.
#[derive(Default)]
struct OnTheWire {
    /// Requests made by readers.
    demand: usize,
    /// All requests.
    all: usize,
}

impl Lanes {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            host: Budget::new(config.host_bytes),
            trace: Budget::new(config.trace_bytes),
            ahead: Budget::new(config.ahead_bytes),
            ahead_requests: Arc::new(Semaphore::new(AHEAD_REQUESTS)),
            wire: watch::Sender::new(OnTheWire::default()),
            beside: Semaphore::new(1),
        }
    }

    /// Room for `bytes`. `None` if there is none for read-ahead. A request that a reader waits for by now gets the room of demand,
    /// so that the reader does not wait for a replay.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        image: &Budget,
        lane: Lane,
        priority: &Priority,
        bytes: u64,
    ) -> Option<Admission> {
        let permits = match lane {
            Lane::Demand => return self.admit_demand(image, bytes).await,
            Lane::Trace | Lane::Whole => tokio::select! {
                permit = if lane == Lane::Trace { &self.trace } else { &self.ahead }.take(bytes) => vec![permit?],
                () = self.awaited(priority) => return self.admit_demand(image, bytes).await,
            },
            Lane::Ahead => {
                let room = self.ahead.try_take(bytes)?;
                let turn = tokio::select! {
                    turn = self.ahead_requests.clone().acquire_owned() => Some(turn.ok()?),
                    () = self.awaited(priority) => None,
                };
                return Some(Admission { _room: vec![room], turn: Mutex::new(turn) });
            }
        };
        Some(Admission::of(permits))
    }

    /// Room for bytes that a reader waits for.
    pub(crate) async fn admit_demand(&self, image: &Budget, bytes: u64) -> Option<Admission> {
        Some(Admission::of(vec![image.take(bytes).await?, self.host.take(bytes).await?]))
    }

    /// Returns when a reader waits for the request.
    async fn awaited(&self, priority: &Priority) {
        // As below: this cannot fail.
        let _ = self.wire.subscribe().wait_for(|_| priority.is_awaited()).await;
    }

    /// Returns when the wire carries nothing that a reader waits for or may need soon.
    pub(crate) async fn quiet(&self) {
        // As below: this cannot fail.
        let _ = self.wire.subscribe().wait_for(|wire| wire.all == 0).await;
    }

    /// Returns when no request of a reader is on the wire.
    pub(crate) async fn no_demand(&self) {
        // As below: this cannot fail.
        let _ = self.wire.subscribe().wait_for(|wire| wire.demand == 0).await;
    }

    /// Whether a request of a reader is on the wire.
    pub(crate) fn has_demand(&self) -> bool {
        self.wire.borrow().demand > 0
    }

    /// Called by a request before each piece, and held while it is received. Returns at once for demand. Other requests wait until
    /// no demand is on the wire, a reader waits for them, or it is their turn beside demand.
    pub(crate) async fn give_way(&self, lane: Lane, priority: &Priority) -> Option<SemaphorePermit<'_>> {
        let mut wire = self.wire.subscribe();
        tokio::select! {
            biased;
            // The sender lives as long as `self`: this cannot fail.
            _ = wire.wait_for(|wire| wire.demand == 0 || priority.is_awaited()) => None,
            turn = self.beside.acquire(), if lane == Lane::Whole => turn.ok(),
        }
    }
}

/// Granted room, held until dropped.
pub(crate) struct Admission {
    _room: Vec<OwnedSemaphorePermit>,
    /// The turn of a request of read-ahead.
    turn: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Admission {
    fn of(room: Vec<OwnedSemaphorePermit>) -> Self {
        Self { _room: room, turn: Mutex::default() }
    }

    /// Gives the turn to the next request of read-ahead, whose round trip then passes while the last `left` of the `total` bytes of this one
    /// arrive. Does nothing before that.
    pub(crate) fn give_turn(&self, left: u64, total: u64) {
        if left <= LAST_BYTES.min(total / 2) {
            drop(self.turn.lock().take());
        }
    }
}

/// The lane of one request. An early request no longer waits for others once a reader waits for it. But only a request made by a
/// reader blocks others: the reader of a large file joins its own read-ahead, and would otherwise block the bytes it reads next. (A
/// file of 1 GiB at 1 Gbit/s and 1 ms took 1.2 times as long that way.)
pub(crate) struct Priority {
    lanes: Arc<Lanes>,
    is_awaited: AtomicBool,
    holds_up: AtomicBool,
    is_settled: AtomicBool,
}

impl Priority {
    pub(crate) fn new(lanes: &Arc<Lanes>, lane: Lane) -> Self {
        let holds_up = lane == Lane::Demand;
        lanes.wire.send_modify(|wire| {
            wire.all += 1;
            wire.demand += usize::from(holds_up);
        });
        let (is_awaited, is_settled) = (AtomicBool::new(holds_up), AtomicBool::new(false));
        Self { lanes: lanes.clone(), is_awaited, holds_up: AtomicBool::new(holds_up), is_settled }
    }

    /// Records that a reader waits for this request now.
    pub(crate) fn raise(&self) {
        if !self.is_awaited.swap(true, AcqRel) {
            // Only wakes the request itself, which may be pausing: the counts are unchanged.
            self.lanes.wire.send_modify(|_| {});
        }
    }

    pub(crate) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Acquire)
    }

    /// Stops blocking other requests: the bytes that readers waited for have arrived.
    pub(crate) fn lower(&self) {
        if self.holds_up.swap(false, AcqRel) {
            self.lanes.wire.send_modify(|wire| wire.demand -= 1);
        }
    }

    /// Ends the request.
    pub(crate) fn settle(&self) {
        if !self.is_settled.swap(true, AcqRel) {
            self.lower();
            self.lanes.wire.send_modify(|wire| wire.all -= 1);
        }
    }
}

impl Drop for Priority {
    fn drop(&mut self) {
        self.settle();
    }
}

#[cfg(test)]
mod interleavings;

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn lanes() -> Arc<Lanes> {
        Arc::new(Lanes::new(&Config { ahead_bytes: 4096, trace_bytes: 4096, host_bytes: 8192, ..Config::default() }))
    }

    #[tokio::test]
    async fn read_ahead_without_room_is_refused_and_demand_waits() {
        let (lanes, image) = (lanes(), Budget::new(1 << 20));
        let early = Priority::new(&lanes, Lane::Ahead);
        let ahead = lanes.admit(&image, Lane::Ahead, &early, 4096).await;
        assert!(ahead.is_some() && lanes.admit(&image, Lane::Ahead, &early, 1).await.is_none());
        let first = lanes.admit_demand(&image, 8192).await;
        let second = lanes.admit_demand(&image, 1);
        tokio::pin!(second);
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert!(second.await.is_some());
    }

    #[tokio::test]
    async fn few_requests_of_read_ahead_run_at_a_time_and_one_with_a_reader_runs_at_once() {
        let (lanes, image) = (Arc::new(Lanes::new(&Config::default())), Budget::new(1 << 20));
        let early: Vec<_> = (0..=AHEAD_REQUESTS).map(|_| Priority::new(&lanes, Lane::Ahead)).collect();
        let mut going = Vec::new();
        for priority in &early[..AHEAD_REQUESTS] {
            going.push(lanes.admit(&image, Lane::Ahead, priority, 1).now_or_never().flatten().unwrap());
        }
        let waiting = lanes.admit(&image, Lane::Ahead, &early[AHEAD_REQUESTS], 1);
        tokio::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        early[AHEAD_REQUESTS].raise();
        assert!(waiting.as_mut().now_or_never().flatten().is_some());
        let next = Priority::new(&lanes, Lane::Ahead);
        assert!(lanes.admit(&image, Lane::Ahead, &next, 1).now_or_never().is_none());
        going.pop();
        assert!(lanes.admit(&image, Lane::Ahead, &next, 1).now_or_never().flatten().is_some());
    }

    #[tokio::test]
    async fn the_next_read_ahead_begins_while_the_last_bytes_of_one_arrive() {
        let (lanes, image) = (Arc::new(Lanes::new(&Config::default())), Budget::new(1 << 20));
        let early: Vec<_> = (0..=AHEAD_REQUESTS).map(|_| Priority::new(&lanes, Lane::Ahead)).collect();
        let admit = |number: usize| lanes.admit(&image, Lane::Ahead, &early[number], 1).now_or_never().flatten();
        let going: Vec<_> = (0..AHEAD_REQUESTS).map(|number| admit(number).unwrap()).collect();
        for (left, total) in [(1000, 1000), (501, 1000), (LAST_BYTES + 1, 8 * LAST_BYTES)] {
            going[0].give_turn(left, total);
            assert!(admit(AHEAD_REQUESTS).is_none(), "{left} of {total}");
        }
        going[0].give_turn(LAST_BYTES, 8 * LAST_BYTES);
        let next = admit(AHEAD_REQUESTS);
        assert!(next.is_some());
        going[0].give_turn(1, 1000);
        assert!(admit(AHEAD_REQUESTS).is_none(), "a turn is given once");
    }

    #[tokio::test]
    async fn a_piece_larger_than_the_budget_runs_alone() {
        let (lanes, image) = (lanes(), Budget::new(1 << 20));
        let huge = lanes.admit_demand(&image, 1 << 40).await;
        assert!(huge.is_some() && lanes.admit_demand(&image, 1).now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_replay_that_a_reader_waits_for_does_not_wait_for_other_replays() {
        let (lanes, image) = (lanes(), Budget::new(1 << 20));
        let (one, other) = (Priority::new(&lanes, Lane::Trace), Priority::new(&lanes, Lane::Trace));
        let _all_there_is = lanes.admit(&image, Lane::Trace, &one, 1 << 40).await;
        let waiting = lanes.admit(&image, Lane::Trace, &other, 1);
        tokio::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        other.raise();
        assert!(waiting.as_mut().now_or_never().flatten().is_some());
    }

    #[tokio::test]
    async fn a_paused_request_continues_when_a_reader_joins_it() {
        let lanes = lanes();
        let (_demand, ahead) = (Priority::new(&lanes, Lane::Demand), Priority::new(&lanes, Lane::Ahead));
        let pausing = lanes.give_way(Lane::Ahead, &ahead);
        tokio::pin!(pausing);
        assert!(pausing.as_mut().now_or_never().is_none());
        ahead.raise();
        assert!(pausing.as_mut().now_or_never().is_some());
    }

    #[tokio::test]
    async fn one_whole_download_continues_beside_demand() {
        let lanes = lanes();
        let (demand, whole) = (Priority::new(&lanes, Lane::Demand), Priority::new(&lanes, Lane::Whole));
        let turn = lanes.give_way(Lane::Whole, &whole).now_or_never().flatten();
        assert!(turn.is_some() && lanes.give_way(Lane::Whole, &whole).now_or_never().is_none());
        drop(turn);
        assert!(lanes.give_way(Lane::Whole, &whole).now_or_never().is_some());
        drop(demand);
        assert!(
            lanes.give_way(Lane::Whole, &whole).now_or_never().is_some_and(|turn| turn.is_none()),
            "no turn is needed"
        );
    }

    #[tokio::test]
    async fn the_wire_is_quiet_without_requests() {
        let lanes = lanes();
        let replay = Priority::new(&lanes, Lane::Trace);
        assert!(lanes.quiet().now_or_never().is_none());
        replay.settle();
        assert!(lanes.quiet().now_or_never().is_some());
        drop(replay);
        assert!(lanes.quiet().now_or_never().is_some());
    }

    #[tokio::test]
    async fn read_ahead_pauses_until_demand_ends_or_joins_it() {
        let lanes = lanes();
        let ahead = Priority::new(&lanes, Lane::Ahead);
        let demand = Priority::new(&lanes, Lane::Demand);
        assert!(lanes.give_way(Lane::Ahead, &ahead).now_or_never().is_none());
        ahead.raise();
        assert!(lanes.give_way(Lane::Ahead, &ahead).now_or_never().is_some());
        let second = Priority::new(&lanes, Lane::Ahead);
        drop(demand);
        assert!(
            ahead.is_awaited() && lanes.give_way(Lane::Ahead, &second).now_or_never().is_some(),
            "a joined request delays no other"
        );
        drop(ahead);
        assert!(lanes.give_way(Lane::Ahead, &second).now_or_never().is_some());
    }
}
