//! One request: from a run of pieces to settled flights.
//!
//! The answer is cut into pieces while it arrives, and each piece is settled as soon as its last byte is received (`settle.rs`).
//! Wrong bytes are requested once more. After a source that fails, the next image that has the layer is tried. Early in an outage a
//! request that a reader waits for returns to the gate and retries (`gate.rs`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::task::JoinHandle;

use crate::body::Body;
use crate::breaker::Attempt;
use crate::config::{DECODING, PACK_STALL_SHARE};
use crate::error::PieceError;
use crate::flight::{Flight, Request, RequestFlights};
use crate::host::FetchHost;
use crate::ids::PieceKey;
use crate::image::Image;
use crate::lanes::{Admission, Lane, Priority};
use crate::plan::{self, Piece};
use crate::prefetch::rules::Prefetcher;

/// The pieces that one pass over a source's answer did not settle.
#[derive(Default)]
struct Leftover {
    /// Their bytes did not match.
    corrupt: Vec<Arc<Flight>>,
    /// Pieces that were not reached, and the cause.
    unread: Vec<Arc<Flight>>,
    error: Option<PieceError>,
}

impl FetchHost {
    /// Groups pieces into requests, whose tasks do not run yet.
    pub(crate) fn plan_requests(self: &Arc<Self>, pieces: Vec<Piece>, lane: Lane) -> Vec<RequestFlights> {
        let runs = plan::runs(pieces, &self.config);
        runs.into_iter().map(|run| self.make_request(run, Vec::new(), lane)).collect()
    }

    /// As [`FetchHost::plan_requests`] for pieces that a reader waits for. The neighbours follow the last of them.
    pub(crate) fn plan_demand(self: &Arc<Self>, pieces: Vec<Piece>, mut neighbours: Vec<Piece>) -> Vec<RequestFlights> {
        let mut runs = plan::runs(pieces, &self.config);
        let last = runs.pop().map(|run| {
            let ends = neighbours.iter().map(|piece| piece.range().end);
            let paid = run.last().map(|piece| piece.image.prefetch.allowance.spend(piece.range().end, ends));
            neighbours.truncate(paid.unwrap_or_default());
            self.make_request(run, neighbours, Lane::Demand)
        });
        runs.into_iter().map(|run| self.make_request(run, Vec::new(), Lane::Demand)).chain(last).collect()
    }

    fn make_request(self: &Arc<Self>, run: Vec<Piece>, neighbours: Vec<Piece>, lane: Lane) -> RequestFlights {
        let request = Request::new(&run, &neighbours, Priority::new(&self.lanes, lane), lane);
        let flights = run.into_iter().map(|piece| Flight::new(piece, lane, &request)).collect();
        let neighbours =
            neighbours.into_iter().map(|piece| Flight::new(piece, Prefetcher::Neighbours.lane(), &request)).collect();
        RequestFlights { flights, neighbours, registry: self.flights.clone(), request }
    }

    /// Starts the planned requests. Their tasks end when all pieces are settled.
    pub(crate) fn start(self: &Arc<Self>, planned: Vec<RequestFlights>) -> Vec<JoinHandle<()>> {
        let start = |flights: RequestFlights| {
            let request = flights.request.clone();
            let task = self.runtime.spawn(self.clone().fly(flights));
            request.started(task.abort_handle());
            task
        };
        planned.into_iter().map(start).collect()
    }

    /// Runs one request until all its flights are settled.
    async fn fly(self: Arc<Self>, flights: RequestFlights) {
        let Some(first) = flights.flights.first() else { return };
        if first.piece.needs_stream() {
            return self.fly_by_stream(&flights, first).await;
        }
        let mut sources = self.sources(first);
        let mut suspects: HashSet<PieceKey> = HashSet::new();
        let (mut pending, mut neighbours) = (flights.flights.clone(), &flights.neighbours[..]);
        let mut visits = 0;
        while !pending.is_empty() && !sources.is_empty() {
            // They arrive with the first answer, or not at all.
            let along = std::mem::take(&mut neighbours);
            let (visited, left) = self.visit(&flights.request, &pending, along, &sources, &suspects).await;
            visits += 1;
            match &visited {
                Some(source) => {
                    let others = sources.len() > 1;
                    if !self.stays(&flights.request, &pending, source, others, left.error.as_ref()).await {
                        sources.retain(|known| known.id != source.id);
                    }
                }
                None => sources.clear(),
            }
            pending = self.second_chances(left, &mut suspects, !sources.is_empty());
            // Wrong bytes are worth a second fetch even if there is only one source.
            if sources.is_empty() && visits < 2 {
                sources.extend(visited);
            }
        }
        for flight in pending {
            let error = PieceError::corrupt(&flight.piece.key, "wrong bytes from every source");
            self.give_up(&flight, error);
        }
    }

    /// Whether to request the pieces that the source did not deliver from it again. Not those of a boot pack: they pass no gate, so
    /// nothing would separate the requests, and readers can turn to the layers.
    async fn stays(
        &self,
        request: &Request,
        flights: &[Arc<Flight>],
        source: &Image,
        others: bool,
        error: Option<&PieceError>,
    ) -> bool {
        let is_of_a_pack = flights.first().is_some_and(|flight| flight.piece.is_of_a_pack());
        match error.filter(|_| !is_of_a_pack) {
            Some(error) => self.waits_on(request, flights, source, others, error).await,
            None => false,
        }
    }

    /// Queries the first available source, once there is room. A request that waits for a source holds no room that others could use.
    async fn visit(
        self: &Arc<Self>,
        request: &Request,
        flights: &[Arc<Flight>],
        neighbours: &[Arc<Flight>],
        sources: &[Arc<Image>],
        suspects: &HashSet<PieceKey>,
    ) -> (Option<Arc<Image>>, Leftover) {
        let unread = |error| (None, Leftover { unread: flights.to_vec(), error: Some(error), corrupt: Vec::new() });
        let (Some(first), Some(owner)) = (flights.first(), sources.first()) else { return (None, Leftover::default()) };
        let room = flights.iter().chain(neighbours).map(|flight| flight.piece.memory()).sum();
        let is_of_a_pack = first.piece.is_of_a_pack();
        let (source, admission) = loop {
            let source = match is_of_a_pack {
                true => owner.clone(),
                false => match self.gate(request, sources, flights).await {
                    Ok(source) => source,
                    Err(error) => return unread(error),
                },
            };
            let admitted = self.lanes.admit(&first.piece.image.budget, request.lane, &request.priority, room);
            let Some(admission) = admitted.await else { return unread(PieceError::Cancelled) };
            if is_of_a_pack || !source.breaker.has_outage() {
                break (source, admission);
            }
        };
        let left = self.pass(request, flights, neighbours, &source, suspects, &admission).await;
        (Some(source), left)
    }

    /// Decides which leftover pieces are requested again: wrong bytes once, unread bytes while there is another source.
    fn second_chances(&self, left: Leftover, suspects: &mut HashSet<PieceKey>, more: bool) -> Vec<Arc<Flight>> {
        let mut again = Vec::new();
        for flight in left.corrupt {
            if suspects.insert(flight.piece.key) {
                again.push(flight);
            } else if !flight.is_settled() {
                self.give_up(&flight, PieceError::corrupt(&flight.piece.key, "wrong bytes, twice"));
            }
        }
        let error = left.error.unwrap_or(PieceError::Cancelled);
        for flight in left.unread {
            if more { again.push(flight) } else { self.give_up(&flight, error.clone()) }
        }
        again.sort_by_key(|flight| flight.piece.key.offset);
        again
    }

    /// How long the answer may be silent, and the attempt that it counts for: a boot pack must leave a reader time to turn to the
    /// layer, and a missing pack is no reason to pause the source.
    fn terms(&self, image: &Arc<Image>, piece: &Piece) -> (Duration, Option<Attempt>) {
        match image.prefetch.pack().filter(|pack| piece.is_of(pack)) {
            Some(_) => (self.config.stall_limit / PACK_STALL_SHARE, None),
            None => (self.config.stall_limit, Some(Attempt::begin(&image.breaker))),
        }
    }

    /// Requests everything from the first to the last flight of one source, and settles each flight as its bytes arrive. The
    /// neighbours follow if that succeeded.
    async fn pass(
        self: &Arc<Self>,
        request: &Request,
        flights: &[Arc<Flight>],
        neighbours: &[Arc<Flight>],
        image: &Arc<Image>,
        suspects: &HashSet<PieceKey>,
        admission: &Admission,
    ) -> Leftover {
        let mut left = Leftover::default();
        let (Some(first), Some(last)) = (flights.first(), flights.last()) else { return left };
        let range = first.piece.range().start..neighbours.last().unwrap_or(last).piece.range().end;
        let (stall_limit, attempt) = self.terms(image, &first.piece);
        let mut body = match Body::open(image, first.piece.blob, range, stall_limit, attempt).await {
            Ok(body) => body,
            Err(error) => return Leftover { unread: flights.to_vec(), error: Some(error), ..left },
        };
        let mut decoding = FuturesUnordered::new();
        let (begin, end) = (first.piece.range().start, last.piece.range().end);
        for (index, flight) in flights.iter().enumerate() {
            admission.give_turn(end - flight.piece.range().start, end - begin);
            let turn = self.lanes.give_way(request.lane, &request.priority).await;
            let bytes = match self.receive(&mut body, flight).await {
                Ok(bytes) => bytes,
                Err(error) => {
                    left.unread = flights[index..].to_vec();
                    left.error = Some(error);
                    break;
                }
            };
            drop(turn);
            if !flight.piece.is_of_a_pack() {
                flight.piece.image.governor.brought(flight.lane, bytes.len());
            }
            if flight.lane == Lane::Demand {
                flight.piece.image.prefetch.allowance.earn(bytes.len());
            }
            let last_chance = suspects.contains(&flight.piece.key);
            decoding.push(self.clone().settle(flight.clone(), bytes, last_chance));
            // `push` polls nothing: without a poll the piece would be decoded only when the next one is here.
            while let Some(Some(corrupt)) = decoding.next().now_or_never() {
                left.corrupt.extend(corrupt);
            }
            while decoding.len() >= DECODING {
                left.corrupt.extend(decoding.next().await.flatten());
            }
        }
        while let Some(corrupt) = decoding.next().await {
            left.corrupt.extend(corrupt);
        }
        if !left.corrupt.is_empty() {
            // The next attempt is at another mirror, if there is one.
            image.source.distrust(&first.piece.blob.digest);
        }
        if left.corrupt.is_empty() && left.error.is_none() && !neighbours.is_empty() {
            request.priority.lower();
            self.take_neighbours(body, neighbours).await;
        }
        left
    }
}
