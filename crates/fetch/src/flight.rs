//! Singleflight: a reader of a piece that is on its way waits for the request that fetches it.
//!
//! Invariant: a piece is in [`Flights`] from its request until its bytes are kept, so two requests of an image never fetch it at
//! the same time. (Readers of an object that several images have request pieces of the same image.) A waiter that leaves does not
//! affect the others. The request ends with the last waiter, unless it is detached.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tarpon_oci::Verified;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::breaker::Order;
use crate::chunk::PieceChunk;
use crate::clock::Clock;
use crate::config::{Config, MEMO_ENTRIES, pause_after};
use crate::decode::Decoded;
use crate::error::PieceError;
use crate::ids::PieceKey;
use crate::journal::{WaitedFor, Waiting};
use crate::lanes::{Lane, Priority};
use crate::lru::Lru;
use crate::plan::Piece;
use crate::sync::Mutex;

/// The result of a flight.
#[derive(Clone)]
pub(crate) enum Outcome {
    /// Its chunks, in the order of [`Piece::chunks`].
    Chunks(Arc<[Decoded]>),
    /// The next round of a read finds the piece: it is too large for memory, or was local already.
    Kept,
}

/// A piece on its way.
pub(crate) struct Flight {
    pub(crate) piece: Piece,
    /// The lane of its bytes: neighbours in a reader's request count as read-ahead.
    pub(crate) lane: Lane,
    request: Arc<Request>,
    outcome: watch::Sender<Option<Result<Outcome, PieceError>>>,
    /// Its first chunk, if that was decoded before the rest arrived (`first_chunk.rs`).
    first: OnceLock<Verified<Bytes>>,
}

/// The state that the flights of one request share.
pub(crate) struct Request {
    /// The lane it was made for; a reader may have joined it since.
    pub(crate) lane: Lane,
    pub(crate) priority: Priority,
    /// Changed only under the lock of [`Flights`].
    tickets: AtomicUsize,
    detached: AtomicBool,
    abort: Mutex<Option<AbortHandle>>,
    /// The keys of its own pieces, followed by those of their neighbours.
    keys: Vec<PieceKey>,
    /// Number of its own pieces.
    own: usize,
    /// When it was made.
    pub(crate) began: Instant,
    pub(crate) order: Order,
    /// Whether it waits for a source in an outage.
    stuck: AtomicBool,
    /// End of the grace of the first outage that it met.
    grace_ends: OnceLock<Instant>,
    /// How often it failed early in an outage, and why the last time.
    failed_early: Mutex<(u32, Option<PieceError>)>,
}

impl Request {
    /// A request for `run` and the neighbours, whose task does not run yet. Only a request of readers ends with the last of them.
    pub(crate) fn new(run: &[Piece], neighbours: &[Piece], priority: Priority, lane: Lane) -> Arc<Self> {
        Arc::new(Self {
            lane,
            priority,
            tickets: AtomicUsize::new(0),
            detached: AtomicBool::new(lane != Lane::Demand),
            abort: Mutex::new(None),
            keys: run.iter().chain(neighbours).map(|piece| piece.key).collect(),
            own: run.len(),
            began: Instant::now(),
            order: Order::now(),
            stuck: AtomicBool::new(false),
            grace_ends: OnceLock::new(),
            failed_early: Mutex::new((0, None)),
        })
    }

    /// Records an outage whose grace ends at `ends`. Returns the end of the grace of the first outage that it met.
    pub(crate) fn grace_ends(&self, ends: Instant) -> Instant {
        *self.grace_ends.get_or_init(|| ends)
    }

    /// Records a failure early in an outage. Returns the number of them, and the pause before the next attempt, if it needs one: that of
    /// probes.
    pub(crate) fn failed_early(&self, error: &PieceError) -> (u32, Duration) {
        let mut failed = self.failed_early.lock();
        let earlier = failed.0;
        *failed = (earlier.saturating_add(1), Some(error.clone()));
        (failed.0, pause_after(earlier))
    }

    fn early_failure(&self) -> Option<PieceError> {
        self.failed_early.lock().1.clone()
    }

    /// Sets whether it waits for a source in an outage. Returns the previous value.
    pub(crate) fn set_stuck(&self, stuck: bool) -> bool {
        self.stuck.swap(stuck, Relaxed)
    }

    /// Lets it continue without waiters.
    pub(crate) fn detach(&self) {
        self.detached.store(true, Relaxed);
    }

    /// Sets its task.
    pub(crate) fn started(&self, abort: AbortHandle) {
        *self.abort.lock() = Some(abort);
    }
}

type Flying = HashMap<PieceKey, Arc<Flight>>;

/// A remembered failure: the time of it, and until when it counts.
struct RememberedFailure {
    noted: Instant,
    until: Instant,
    error: PieceError,
    /// Whether a reader had waited for the piece: one that no reader waits for fails early in an outage.
    was_awaited: bool,
}

/// All flights, and the remembered failures.
pub(crate) struct Flights {
    flying: Mutex<Flying>,
    failures: Mutex<Lru<PieceKey, RememberedFailure>>,
    /// As [`Config::failure_memo`] and [`Config::outage_memo`].
    memo: Duration,
    outage_memo: Duration,
}

impl Flights {
    pub(crate) fn new(config: &Config) -> Self {
        let failures = Mutex::new(Lru::new(MEMO_ENTRIES));
        let Config { failure_memo: memo, outage_memo, .. } = *config;
        Self { flying: Mutex::default(), failures, memo, outage_memo }
    }

    /// Returns a ticket for each piece, and the planned requests. Joins the flights of the pieces that have one. Passes the others to `plan`,
    /// with the neighbours up to the first that is on its way.
    ///
    /// The caller then looks for the planned pieces in the store again, because they may have arrived meanwhile, calls [`Flights::end_as_local`]
    /// for those that have, and starts the requests. None of that is done here, under the lock that all readers take.
    ///
    /// The reader came at `came`. An outage that was remembered before makes it fail at once. A piece that failed after it is requested again.
    pub(crate) fn join_or_plan(
        self: &Arc<Self>,
        came: Instant,
        pieces: Vec<Piece>,
        mut neighbours: Vec<Piece>,
        plan: impl FnOnce(Vec<Piece>, Vec<Piece>) -> Vec<RequestFlights>,
    ) -> (Vec<Ticket>, Vec<RequestFlights>) {
        let mut tickets = Vec::with_capacity(pieces.len());
        let mut missing = Vec::new();
        let mut flying = self.flying.lock();
        for piece in pieces {
            if let Some(error) = self.remembered(&piece.key, Some(came)) {
                tickets.push(Ticket::Failed(error));
            } else if let Some(flight) = flying.get(&piece.key) {
                flight.request.priority.raise();
                tickets.push(Ticket::take(self, flight, RequestOrigin::Joined));
            } else {
                missing.push(piece);
            }
        }
        let idle = neighbours.iter().take_while(|piece| self.is_idle(&flying, piece)).count();
        neighbours.truncate(idle);
        let planned = if missing.is_empty() { Vec::new() } else { plan(missing, neighbours) };
        for flight in planned.iter().flat_map(|request| &request.flights) {
            flying.insert(flight.piece.key, flight.clone());
            tickets.push(Ticket::take(self, flight, RequestOrigin::Own));
        }
        for flight in planned.iter().flat_map(|request| &request.neighbours) {
            flying.insert(flight.piece.key, flight.clone());
        }
        (tickets, planned)
    }

    /// As [`Flights::join_or_plan`] for pieces without a reader: omits those that are on their way or failed recently.
    pub(crate) fn plan_missing(
        &self,
        pieces: Vec<Piece>,
        plan: impl FnOnce(Vec<Piece>) -> Vec<RequestFlights>,
    ) -> Vec<RequestFlights> {
        let mut flying = self.flying.lock();
        let missing: Vec<Piece> = pieces.into_iter().filter(|piece| self.is_idle(&flying, piece)).collect();
        let planned = if missing.is_empty() { Vec::new() } else { plan(missing) };
        for flight in planned.iter().flat_map(|request| &request.flights) {
            flying.insert(flight.piece.key, flight.clone());
        }
        planned
    }

    /// Delivers the result to all waiters; [`Flights::land`] follows once the bytes are kept.
    pub(crate) fn deliver(&self, flight: &Flight, outcome: Outcome) {
        self.failures.lock().remove(&flight.piece.key);
        flight.outcome.send_replace(Some(Ok(outcome)));
    }

    /// Delivers the first chunk to the waiters that need no other. The request continues without them: the rest of the piece is kept, and
    /// a connection that is closed in the middle of a response is lost.
    pub(crate) fn deliver_first(&self, flight: &Flight, chunk: Verified<Bytes>) {
        // First: a reader that sees the chunk may leave as the last one.
        flight.request.detach();
        if flight.first.set(chunk).is_ok() {
            flight.wake_readers();
        }
    }

    /// Ends the flight of a piece that turned out to be local: no request is needed.
    pub(crate) fn end_as_local(&self, flight: &Flight) {
        self.deliver(flight, Outcome::Kept);
        self.land(flight);
    }

    /// Ends the flight: the next reader finds the piece, and the flight cannot be joined any more.
    pub(crate) fn land(&self, flight: &Flight) {
        let mut flying = self.flying.lock();
        if flying.get(&flight.piece.key).is_some_and(|known| std::ptr::eq(&**known, flight)) {
            flying.remove(&flight.piece.key);
        }
    }

    /// Fails the flight. Failures other than a cancellation are remembered.
    pub(crate) fn fail(&self, flight: &Flight, error: PieceError) {
        if !matches!(error, PieceError::Cancelled) {
            self.remember(flight.piece.key, error.clone(), flight.request.priority.is_awaited());
        }
        self.land(flight);
        flight.outcome.send_if_modified(|outcome| {
            let first = outcome.is_none();
            if first {
                *outcome = Some(Err(error));
            }
            first
        });
    }

    /// Lets reads of the piece fail at once for a while. An outage only does if `was_awaited`: if a reader has waited for the piece.
    fn remember(&self, key: PieceKey, error: PieceError, was_awaited: bool) {
        let noted = Instant::now();
        let until = noted + self.memo_of(&error);
        self.failures.lock().insert(key, RememberedFailure { noted, until, error, was_awaited }, 1);
    }

    /// How long a failure is remembered.
    pub(crate) fn memo_of(&self, error: &PieceError) -> Duration {
        if error.is_outage() || matches!(error, PieceError::Source(_)) { self.outage_memo } else { self.memo }
    }

    /// Whether the piece has no flight and no remembered failure.
    fn is_idle(&self, flying: &Flying, piece: &Piece) -> bool {
        !flying.contains_key(&piece.key) && self.remembered(&piece.key, None).is_none()
    }

    /// The remembered failure of the piece that counts for a reader that came at `came`, or for a request without a reader (`None`).
    fn remembered(&self, key: &PieceKey, came: Option<Instant>) -> Option<PieceError> {
        let mut failures = self.failures.lock();
        let memo = failures.get(key)?;
        if Instant::now() < memo.until {
            let counts_for = |came| memo.was_awaited && came >= memo.noted;
            let counts = !memo.error.is_outage() || came.is_none_or(counts_for);
            return counts.then(|| memo.error.clone());
        }
        failures.remove(key);
        None
    }

    /// Forgets failures after a new source was registered, which may succeed.
    pub(crate) fn forget_failures(&self) {
        self.failures.lock().retain(|_, _| false);
    }

    /// Whether the piece has a flight.
    pub(crate) fn is_flying(&self, key: &PieceKey) -> bool {
        self.flying.lock().contains_key(key)
    }

    /// Number of flights.
    pub(crate) fn count(&self) -> usize {
        self.flying.lock().len()
    }

    /// Removes a waiter. The last one ends the request, which cannot be joined from then on. Once all its own pieces are local, the
    /// neighbours are still fetched.
    fn leave(&self, flight: &Flight) {
        let mut flying = self.flying.lock();
        let request = &flight.request;
        if request.tickets.fetch_sub(1, Relaxed) != 1 || request.detached.load(Relaxed) {
            return;
        }
        // Pieces that have arrived stay joinable until they are kept.
        let unsettled = |known: &Arc<Flight>| Arc::ptr_eq(&known.request, request) && !known.is_settled();
        let is_given_up = |key: &&PieceKey| flying.get(key).is_some_and(unsettled);
        if !request.keys.iter().take(request.own).any(|key| is_given_up(&key)) {
            return;
        }
        let given_up: Vec<PieceKey> = request.keys.iter().filter(is_given_up).copied().collect();
        for key in &given_up {
            flying.remove(key);
        }
        let abort = request.abort.lock().take();
        drop(flying);
        if let Some(abort) = abort {
            abort.abort();
        }
    }
}

impl Flight {
    pub(crate) fn new(piece: Piece, lane: Lane, request: &Arc<Request>) -> Arc<Self> {
        Arc::new(Self {
            piece,
            lane,
            request: request.clone(),
            outcome: watch::Sender::new(None),
            first: OnceLock::new(),
        })
    }

    /// Wakes the readers without a result: they may turn to another source.
    pub(crate) fn wake_readers(&self) {
        self.outcome.send_modify(|_| {});
    }

    /// Whether readers have its first chunk.
    pub(crate) fn has_first(&self) -> bool {
        self.first.get().is_some()
    }

    /// Whether its first chunk has arrived and `wanted` selects no other.
    fn is_first_enough(&self, wanted: &impl Fn(&PieceChunk) -> bool) -> bool {
        self.has_first() && !self.piece.chunks.iter().skip(1).any(wanted)
    }

    /// Whether the waiters have the result.
    pub(crate) fn is_settled(&self) -> bool {
        self.outcome.borrow().is_some()
    }
}

/// A waiter's claim on a flight.
pub(crate) enum Ticket {
    /// On its way.
    Flying(Claim),
    /// The piece failed recently.
    Failed(PieceError),
}

/// Counts as interest in a flight until it is dropped.
pub(crate) struct Claim {
    flights: Arc<Flights>,
    flight: Arc<Flight>,
    origin: RequestOrigin,
}

/// Which reader made the request that a reader waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestOrigin {
    /// The same reader.
    Own,
    /// An earlier one.
    Joined,
}

impl Claim {
    /// The first chunk of the piece, as an arrival.
    fn first(&self) -> Arrival {
        let chunks = self.flight.first.get().cloned().map(Decoded::Bytes).into_iter().collect();
        Arrival { flight: self.flight.clone(), outcome: Outcome::Chunks(chunks) }
    }

    fn waited_for(&self) -> WaitedFor {
        let piece = &self.flight.piece;
        match (self.origin, self.flight.lane) {
            _ if piece.is_of_a_pack() => WaitedFor::Pack,
            _ if piece.needs_stream() => WaitedFor::WholeLayer,
            (RequestOrigin::Own, _) => WaitedFor::OwnRequest,
            (RequestOrigin::Joined, Lane::Demand) => WaitedFor::OtherReader,
            (RequestOrigin::Joined, Lane::Trace) => WaitedFor::Pack,
            (RequestOrigin::Joined, Lane::Ahead) => WaitedFor::ReadAhead,
            (RequestOrigin::Joined, Lane::Whole) => WaitedFor::WholeDownload,
        }
    }
}

impl Ticket {
    fn take(flights: &Arc<Flights>, flight: &Arc<Flight>, origin: RequestOrigin) -> Self {
        flight.request.tickets.fetch_add(1, Relaxed);
        Self::Flying(Claim { flights: flights.clone(), flight: flight.clone(), origin })
    }

    /// Adds the reader's wait for it to `waiting`.
    pub(crate) fn note(&self, waiting: &mut Waiting, waited: Duration) {
        if let Self::Flying(claim) = self {
            let piece = &claim.flight.piece;
            let layer = (!piece.is_of_a_pack()).then_some(piece.blob.digest);
            waiting.note(waited, claim.waited_for(), layer);
        }
    }

    /// Waits until the `wanted` chunks of the piece have arrived or the reader's deadline. In the latter case the request continues for
    /// later readers, and the piece counts as failed for a while.
    pub(crate) async fn wait(
        &self,
        clock: Clock,
        limit: Duration,
        wanted: impl Fn(&PieceChunk) -> bool,
    ) -> Result<Arrival, PieceError> {
        let claim = match self {
            Self::Failed(error) => return Err(error.clone()),
            Self::Flying(claim) => claim,
        };
        let mut outcome = claim.flight.outcome.subscribe();
        let request = &claim.flight.request;
        let settled = outcome.wait_for(|outcome| {
            outcome.is_some()
                || claim.flight.is_first_enough(&wanted)
                || (clock.others_left && request.stuck.load(Relaxed))
        });
        match tokio::time::timeout_at(clock.until, settled).await {
            Ok(Ok(settled)) => match &*settled {
                // Also if the rest has failed since.
                None | Some(Err(_)) if claim.flight.is_first_enough(&wanted) => Ok(claim.first()),
                Some(Ok(outcome)) => Ok(Arrival { flight: claim.flight.clone(), outcome: outcome.clone() }),
                // The request was sent before this reader arrived, and the source may answer again: the next round retries.
                Some(Err(error)) if error.is_outage() && claim.flight.request.began < clock.came => {
                    Err(PieceError::Cancelled)
                }
                Some(Err(error)) => Err(error.clone()),
                None => {
                    let outage = claim.flight.piece.image.breaker.outage_error();
                    Err(outage.or_else(|| request.early_failure()).unwrap_or(PieceError::Cancelled))
                }
            },
            Ok(Err(_closed)) => Err(PieceError::Cancelled),
            Err(_elapsed) => {
                let (piece, late) = (&claim.flight.piece, PieceError::Late(limit));
                request.detach();
                claim.flights.remember(piece.key, late.clone(), true);
                if !piece.is_of_a_pack() {
                    piece.image.breaker.waited_in_vain(request.order, request.began.max(clock.came), &late);
                }
                Err(late)
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.flights.leave(&self.flight);
    }
}

/// A piece that has arrived.
pub(crate) struct Arrival {
    flight: Arc<Flight>,
    outcome: Outcome,
}

/// The result of an arrival for one chunk.
pub(crate) enum ChunkArrival {
    /// Its bytes.
    Bytes(Verified<Bytes>),
    /// The store has it.
    InStore,
    /// The piece arrived, but these bytes did not match.
    Corrupt,
    /// The chunk is not part of the piece.
    Unknown,
}

impl Arrival {
    /// Looks for the bytes of `chunk`.
    pub(crate) fn find(&self, chunk: &PieceChunk) -> ChunkArrival {
        let Outcome::Chunks(chunks) = &self.outcome else { return ChunkArrival::InStore };
        let mut known = self.flight.piece.chunks.iter().zip(chunks.iter()).filter(|(c, _)| c.same_bytes(chunk));
        let found = |(_, decoded): (&PieceChunk, &Decoded)| match decoded {
            Decoded::Bytes(bytes) => Some(ChunkArrival::Bytes(bytes.clone())),
            Decoded::Here => Some(ChunkArrival::InStore),
            Decoded::Wrong => None,
        };
        match known.find_map(found) {
            Some(found) => found,
            None if self.flight.piece.chunks.iter().any(|known| known.same_bytes(chunk)) => ChunkArrival::Corrupt,
            None => ChunkArrival::Unknown,
        }
    }
}

impl Arrival {
    /// The piece.
    pub(crate) fn piece(&self) -> &Piece {
        &self.flight.piece
    }

    /// The error of a chunk that does not match.
    pub(crate) fn corrupt(&self) -> PieceError {
        PieceError::corrupt(&self.flight.piece.key, "a chunk does not match its digest")
    }
}

/// The flights of a request, held by its task. However the task ends, no waiter hangs: flights without a result are cancelled on drop.
pub(crate) struct RequestFlights {
    pub(crate) flights: Vec<Arc<Flight>>,
    /// The flights of the neighbours behind them.
    pub(crate) neighbours: Vec<Arc<Flight>>,
    pub(crate) registry: Arc<Flights>,
    pub(crate) request: Arc<Request>,
}

impl Drop for RequestFlights {
    fn drop(&mut self) {
        for flight in self.neighbours.iter().filter(|flight| !flight.is_settled()) {
            flight.piece.image.prefetch.allowance.give_back(flight.piece.key.length);
        }
        for flight in self.flights.iter().chain(&self.neighbours) {
            if !flight.is_settled() {
                self.registry.fail(flight, PieceError::Cancelled);
            }
        }
        self.request.priority.settle();
    }
}

#[cfg(test)]
mod tests;
