//! Singleflight: whoever wants a piece that is on its way waits for the request that brings it.
//!
//! Invariant: a piece is in [`Flights`] from the moment it is asked for until its bytes are kept, so at no moment do two
//! requests of an image bring it. (Readers of an object that several images have ask for pieces of the same image.) A waiter
//! that goes away takes nothing from the others; when the last one has gone, the request ends, unless it was asked to go on.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tarpon_oci::Verified;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::breaker::Order;
use crate::chunk::PieceChunk;
use crate::clock::Clock;
use crate::config::{Config, MEMO_ENTRIES};
use crate::decode::Decoded;
use crate::error::PieceError;
use crate::ids::PieceKey;
use crate::journal::{WaitedFor, Waiting};
use crate::lanes::{Lane, Priority};
use crate::lru::Lru;
use crate::plan::Piece;

/// What became of a piece.
#[derive(Clone)]
pub(crate) enum Outcome {
    /// Its chunks, in the order of [`Piece::chunks`].
    Chunks(Arc<[Decoded]>),
    /// It is where the next round of a read finds it: too large for memory, or there already.
    Kept,
}

/// A piece on its way.
pub(crate) struct Flight {
    pub(crate) piece: Piece,
    /// What it is brought for: in a reader's request, neighbours come as read-ahead.
    pub(crate) lane: Lane,
    request: Arc<Request>,
    outcome: watch::Sender<Option<Result<Outcome, PieceError>>>,
}

/// What the flights of one request have in common.
pub(crate) struct Request {
    /// What it was made for; a reader may have joined it since.
    pub(crate) lane: Lane,
    pub(crate) priority: Priority,
    /// Changed under the lock of [`Flights`] alone.
    tickets: AtomicUsize,
    detached: AtomicBool,
    abort: Mutex<Option<AbortHandle>>,
    /// Of its own pieces, and then of their neighbours.
    keys: Vec<PieceKey>,
    /// How many it was made for.
    own: usize,
    /// When it was made.
    pub(crate) began: Instant,
    pub(crate) order: Order,
    /// It waits for a source that does not answer.
    stuck: AtomicBool,
    /// When the grace ends of the first outage that it met.
    grace_ends: OnceLock<Instant>,
}

impl Request {
    /// A request for `run`, and for the neighbours that come along, whose task is not running yet. Only one that readers made ends with
    /// the last of them.
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
        })
    }

    /// It meets an outage whose grace ends at `ends`. Returns when that of the first such outage ends.
    pub(crate) fn grace_ends(&self, ends: Instant) -> Instant {
        *self.grace_ends.get_or_init(|| ends)
    }

    /// Whether it waits for a source that does not answer, from now on. Returns whether it did before.
    pub(crate) fn is_stuck(&self, stuck: bool) -> bool {
        self.stuck.swap(stuck, Relaxed)
    }

    /// It goes on even if nobody waits.
    pub(crate) fn detach(&self) {
        self.detached.store(true, Relaxed);
    }

    /// The task that works on it.
    pub(crate) fn started(&self, abort: AbortHandle) {
        *self.abort.lock() = Some(abort);
    }
}

type Flying = HashMap<PieceKey, Arc<Flight>>;

/// A remembered failure: when it happened, and until when it counts.
struct Memo {
    noted: Instant,
    until: Instant,
    error: PieceError,
}

/// All pieces on their way, and the failures that are remembered.
pub(crate) struct Flights {
    flying: Mutex<Flying>,
    failures: Mutex<Lru<PieceKey, Memo>>,
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

    /// Joins the flights of those pieces that have one, hands the others to `plan`, which makes requests of them and of the neighbours up to
    /// the first that is on its way, and returns a ticket for each piece. A piece that was on its way when the reader looked for it
    /// may have landed since: the caller looks once more, settles what is here ([`Flights::is_here`]) and starts the requests. Both would
    /// hold up everybody else if it was done here, under the lock. The reader came at `came`: what failed before is remembered for it, what
    /// failed since it asks for again.
    pub(crate) fn join_or_plan(
        self: &Arc<Self>,
        came: Instant,
        pieces: Vec<Piece>,
        mut neighbours: Vec<Piece>,
        plan: impl FnOnce(Vec<Piece>, Vec<Piece>) -> Vec<Boarded>,
    ) -> (Vec<Ticket>, Vec<Boarded>) {
        let mut tickets = Vec::with_capacity(pieces.len());
        let mut missing = Vec::new();
        let mut flying = self.flying.lock();
        for piece in pieces {
            if let Some(error) = self.remembered(&piece.key, Some(came)) {
                tickets.push(Ticket::Failed(error));
            } else if let Some(flight) = flying.get(&piece.key) {
                flight.request.priority.raise();
                tickets.push(Ticket::board(self, flight, Boards::Joining));
            } else {
                missing.push(piece);
            }
        }
        let idle = neighbours.iter().take_while(|piece| self.is_idle(&flying, piece)).count();
        neighbours.truncate(idle);
        let planned = if missing.is_empty() { Vec::new() } else { plan(missing, neighbours) };
        for flight in planned.iter().flat_map(|boarded| &boarded.flights) {
            flying.insert(flight.piece.key, flight.clone());
            tickets.push(Ticket::board(self, flight, Boards::First));
        }
        for flight in planned.iter().flat_map(|boarded| &boarded.neighbours) {
            flying.insert(flight.piece.key, flight.clone());
        }
        (tickets, planned)
    }

    /// As [`Flights::join_or_plan`] for pieces that nobody waits for: leaves out what is on its way or failed just now.
    pub(crate) fn plan_missing(
        &self,
        pieces: Vec<Piece>,
        plan: impl FnOnce(Vec<Piece>) -> Vec<Boarded>,
    ) -> Vec<Boarded> {
        let mut flying = self.flying.lock();
        let missing: Vec<Piece> = pieces.into_iter().filter(|piece| self.is_idle(&flying, piece)).collect();
        let planned = if missing.is_empty() { Vec::new() } else { plan(missing) };
        for flight in planned.iter().flat_map(|boarded| &boarded.flights) {
            flying.insert(flight.piece.key, flight.clone());
        }
        planned
    }

    /// Hands the result to everybody who waits; for bytes, [`Flights::land`] follows once they are kept.
    pub(crate) fn deliver(&self, flight: &Flight, outcome: Outcome) {
        self.failures.lock().remove(&flight.piece.key);
        flight.outcome.send_replace(Some(Ok(outcome)));
    }

    /// The piece need not be asked for after all.
    pub(crate) fn is_here(&self, flight: &Flight) {
        self.deliver(flight, Outcome::Kept);
        self.land(flight);
    }

    /// The piece is where the next reader finds it: no more joining.
    pub(crate) fn land(&self, flight: &Flight) {
        let mut flying = self.flying.lock();
        if flying.get(&flight.piece.key).is_some_and(|known| std::ptr::eq(&**known, flight)) {
            flying.remove(&flight.piece.key);
        }
    }

    /// No bytes will come. Final failures are remembered.
    pub(crate) fn fail(&self, flight: &Flight, error: PieceError) {
        if !matches!(error, PieceError::Cancelled) {
            self.remember(flight.piece.key, error.clone());
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

    /// Reads of the piece fail at once for a while.
    pub(crate) fn remember(&self, key: PieceKey, error: PieceError) {
        let noted = Instant::now();
        let until = noted + self.memo_of(&error);
        self.failures.lock().insert(key, Memo { noted, until, error }, 1);
    }

    /// How long a failure is remembered.
    pub(crate) fn memo_of(&self, error: &PieceError) -> Duration {
        if error.is_outage() || matches!(error, PieceError::Source(_)) { self.outage_memo } else { self.memo }
    }

    /// Whether nobody brings the piece, and nobody failed to just now.
    fn is_idle(&self, flying: &Flying, piece: &Piece) -> bool {
        !flying.contains_key(&piece.key) && self.remembered(&piece.key, None).is_none()
    }

    /// The failure of the piece that counts for whoever came at `came`; for anybody if that is `None`.
    fn remembered(&self, key: &PieceKey, came: Option<Instant>) -> Option<PieceError> {
        let mut failures = self.failures.lock();
        let memo = failures.get(key)?;
        if Instant::now() < memo.until {
            let counts = !memo.error.is_outage() || came.is_none_or(|came| came >= memo.noted);
            return counts.then(|| memo.error.clone());
        }
        failures.remove(key);
        None
    }

    /// A new source has come: what failed before may work now.
    pub(crate) fn forget_failures(&self) {
        self.failures.lock().retain(|_, _| false);
    }

    /// Whether somebody brings the piece.
    pub(crate) fn is_flying(&self, key: &PieceKey) -> bool {
        self.flying.lock().contains_key(key)
    }

    /// Pieces on their way.
    pub(crate) fn count(&self) -> usize {
        self.flying.lock().len()
    }

    /// A waiter has gone. The last one ends the request, and nobody can join it from this moment on. Once all that it was made for is
    /// here, what comes along may come.
    fn leave(&self, flight: &Flight) {
        let mut flying = self.flying.lock();
        let request = &flight.request;
        if request.tickets.fetch_sub(1, Relaxed) != 1 || request.detached.load(Relaxed) {
            return;
        }
        // What has arrived is being kept, and stays joinable until it is.
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
        Arc::new(Self { piece, lane, request: request.clone(), outcome: watch::Sender::new(None) })
    }

    /// Readers look at what became of it, although it has no outcome: they may have something better to wait for.
    pub(crate) fn wake_readers(&self) {
        self.outcome.send_modify(|_| {});
    }

    /// Whether everybody who waits has the answer.
    pub(crate) fn is_settled(&self) -> bool {
        self.outcome.borrow().is_some()
    }
}

/// A waiter's claim on a flight.
pub(crate) enum Ticket {
    /// On its way.
    Flying(Claim),
    /// It failed a moment ago.
    Failed(PieceError),
}

/// Counts as interest in a flight until it is dropped.
pub(crate) struct Claim {
    flights: Arc<Flights>,
    flight: Arc<Flight>,
    boards: Boards,
}

/// Who made the request of a flight that a reader waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Boards {
    /// The reader.
    First,
    /// Somebody before him.
    Joining,
}

impl Claim {
    fn waited_for(&self) -> WaitedFor {
        let piece = &self.flight.piece;
        match (self.boards, self.flight.lane) {
            _ if piece.is_of_a_pack() => WaitedFor::Pack,
            _ if piece.needs_stream() => WaitedFor::WholeLayer,
            (Boards::First, _) => WaitedFor::OwnRequest,
            (Boards::Joining, Lane::Demand) => WaitedFor::OtherReader,
            (Boards::Joining, Lane::Trace) => WaitedFor::Pack,
            (Boards::Joining, Lane::Ahead) => WaitedFor::ReadAhead,
            (Boards::Joining, Lane::Whole) => WaitedFor::WholeDownload,
        }
    }
}

impl Ticket {
    fn board(flights: &Arc<Flights>, flight: &Arc<Flight>, boards: Boards) -> Self {
        flight.request.tickets.fetch_add(1, Relaxed);
        Self::Flying(Claim { flights: flights.clone(), flight: flight.clone(), boards })
    }

    /// Says in `waiting` that a reader waited so long for it.
    pub(crate) fn note(&self, waiting: &mut Waiting, waited: Duration) {
        if let Self::Flying(claim) = self {
            let piece = &claim.flight.piece;
            let layer = (!piece.is_of_a_pack()).then_some(piece.blob.digest);
            waiting.note(waited, claim.waited_for(), layer);
        }
    }

    /// Waits until the piece is here or the reader's time is over. In the latter case the request goes on for later
    /// readers, and the piece counts as failed for a while.
    pub(crate) async fn wait(&self, clock: Clock, limit: Duration) -> Result<Arrival, PieceError> {
        let claim = match self {
            Self::Failed(error) => return Err(error.clone()),
            Self::Flying(claim) => claim,
        };
        let mut outcome = claim.flight.outcome.subscribe();
        let request = &claim.flight.request;
        let settled =
            outcome.wait_for(|outcome| outcome.is_some() || (clock.others_left && request.stuck.load(Relaxed)));
        match tokio::time::timeout_at(clock.until, settled).await {
            Ok(Ok(settled)) => match &*settled {
                Some(Ok(outcome)) => Ok(Arrival { flight: claim.flight.clone(), outcome: outcome.clone() }),
                // The source was asked before this reader came, and may have come back since: the next round asks it again.
                Some(Err(error)) if error.is_outage() && claim.flight.request.began < clock.came => {
                    Err(PieceError::Cancelled)
                }
                Some(Err(error)) => Err(error.clone()),
                None => Err(claim.flight.piece.image.breaker.why_resting().unwrap_or(PieceError::Cancelled)),
            },
            Ok(Err(_closed)) => Err(PieceError::Cancelled),
            Err(_elapsed) => {
                let (piece, late) = (&claim.flight.piece, PieceError::Late(limit));
                request.detach();
                claim.flights.remember(piece.key, late.clone());
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

/// A piece that is here.
pub(crate) struct Arrival {
    flight: Arc<Flight>,
    outcome: Outcome,
}

/// What an arrival means for one chunk.
pub(crate) enum Found {
    /// Its bytes.
    Bytes(Verified<Bytes>),
    /// The store has it.
    InStore,
    /// The piece came, but these bytes did not match.
    Corrupt,
    /// It is not among the chunks that were taken out of the piece.
    Unknown,
}

impl Arrival {
    /// Looks for the bytes of `chunk`.
    pub(crate) fn find(&self, chunk: &PieceChunk) -> Found {
        let Outcome::Chunks(chunks) = &self.outcome else { return Found::InStore };
        let mut known = self.flight.piece.chunks.iter().zip(chunks.iter()).filter(|(c, _)| c.same_bytes(chunk));
        let found = |(_, decoded): (&PieceChunk, &Decoded)| match decoded {
            Decoded::Bytes(bytes) => Some(Found::Bytes(bytes.clone())),
            Decoded::Here => Some(Found::InStore),
            Decoded::Wrong => None,
        };
        match known.find_map(found) {
            Some(found) => found,
            None if self.flight.piece.chunks.iter().any(|known| known.same_bytes(chunk)) => Found::Corrupt,
            None => Found::Unknown,
        }
    }
}

impl Arrival {
    /// What came.
    pub(crate) fn piece(&self) -> &Piece {
        &self.flight.piece
    }

    /// Why a chunk of it cannot be used.
    pub(crate) fn corrupt(&self) -> PieceError {
        PieceError::corrupt(&self.flight.piece.key, "a chunk does not match its digest")
    }
}

/// The flights of a request while its task works on them. Whatever ends the task, nobody waits for ever: what has no
/// outcome by then is cancelled.
pub(crate) struct Boarded {
    pub(crate) flights: Vec<Arc<Flight>>,
    /// What comes along behind them.
    pub(crate) neighbours: Vec<Arc<Flight>>,
    pub(crate) registry: Arc<Flights>,
    pub(crate) request: Arc<Request>,
}

impl Drop for Boarded {
    fn drop(&mut self) {
        for flight in self.neighbours.iter().filter(|flight| !flight.is_settled()) {
            flight.piece.image.allowance.give_back(flight.piece.key.length);
        }
        for flight in self.flights.iter().chain(&self.neighbours) {
            if !flight.is_settled() {
                self.registry.fail(flight, PieceError::Cancelled);
            }
        }
        self.request.priority.settle();
    }
}
