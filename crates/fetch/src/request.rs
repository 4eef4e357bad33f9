//! One request: from a run of pieces to verified chunks.
//!
//! The answer is taken apart while it arrives: as soon as a piece's last byte is in, the piece is decoded, each of its
//! chunks is checked against its digest, handed to whoever waits, and kept. Wrong bytes are thrown away and asked for
//! once more; a source that gives up is followed by the next image that has the layer. Early in an outage a request that a reader waits for
//! goes back to the gate and asks again (`gate.rs`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::task::JoinHandle;

use crate::body::Body;
use crate::breaker::Attempt;
use crate::chunk::PieceChunk;
use crate::config::{DECODING, PACK_STALL_SHARE};
use crate::decode::{self, Decoded};
use crate::error::PieceError;
use crate::flight::{Boarded, Flight, Outcome, Request};
use crate::host::Host;
use crate::ids::PieceKey;
use crate::image::Image;
use crate::journal::Event;
use crate::lanes::{Lane, Priority};
use crate::plan::{self, Piece};

/// The pieces that one pass over a source's answer left over.
#[derive(Default)]
struct Leftover {
    /// Their bytes did not match.
    corrupt: Vec<Arc<Flight>>,
    /// They were not reached, and why.
    unread: Vec<Arc<Flight>>,
    error: Option<PieceError>,
}

impl Host {
    /// Makes requests of pieces; their tasks do not run yet.
    pub(crate) fn plan_requests(self: &Arc<Self>, pieces: Vec<Piece>, lane: Lane) -> Vec<Boarded> {
        let runs = plan::runs(pieces, &self.config);
        runs.into_iter().map(|run| self.board(run, Vec::new(), lane)).collect()
    }

    /// As [`Host::plan_requests`] for pieces that a reader waits for; the neighbours come behind the last of them.
    pub(crate) fn plan_demand(self: &Arc<Self>, pieces: Vec<Piece>, mut neighbours: Vec<Piece>) -> Vec<Boarded> {
        let mut runs = plan::runs(pieces, &self.config);
        let last = runs.pop().map(|run| {
            let ends = neighbours.iter().map(|piece| piece.range().end);
            let paid = run.last().map(|piece| piece.image.allowance.spend(piece.range().end, ends));
            neighbours.truncate(paid.unwrap_or_default());
            self.board(run, neighbours, Lane::Demand)
        });
        runs.into_iter().map(|run| self.board(run, Vec::new(), Lane::Demand)).chain(last).collect()
    }

    fn board(self: &Arc<Self>, run: Vec<Piece>, neighbours: Vec<Piece>, lane: Lane) -> Boarded {
        let request = Request::new(&run, &neighbours, Priority::new(&self.lanes, lane), lane);
        let flights = run.into_iter().map(|piece| Flight::new(piece, lane, &request)).collect();
        let neighbours = neighbours.into_iter().map(|piece| Flight::new(piece, Lane::Ahead, &request)).collect();
        Boarded { flights, neighbours, registry: self.flights.clone(), request }
    }

    /// Sets the planned requests going; their tasks end when all is settled.
    pub(crate) fn start(self: &Arc<Self>, planned: Vec<Boarded>) -> Vec<JoinHandle<()>> {
        let start = |boarded: Boarded| {
            let request = boarded.request.clone();
            let task = self.runtime.spawn(self.clone().fly(boarded));
            request.started(task.abort_handle());
            task
        };
        planned.into_iter().map(start).collect()
    }

    /// Brings all flights of one request home.
    async fn fly(self: Arc<Self>, boarded: Boarded) {
        let Some(first) = boarded.flights.first() else { return };
        if first.piece.needs_stream() {
            return self.fly_by_stream(&boarded, first).await;
        }
        let mut sources = self.sources(first);
        let mut suspects: HashSet<PieceKey> = HashSet::new();
        let (mut pending, mut neighbours) = (boarded.flights.clone(), &boarded.neighbours[..]);
        let mut visits = 0;
        while !pending.is_empty() && !sources.is_empty() {
            // They come with the first answer, or not at all.
            let along = std::mem::take(&mut neighbours);
            let (visited, left) = self.visit(&boarded.request, &pending, along, &sources, &suspects).await;
            visits += 1;
            match &visited {
                Some(source) if !self.stays(&boarded.request, source, left.error.as_ref()) => {
                    sources.retain(|known| known.id != source.id);
                }
                Some(_) => {}
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

    /// The images whose sources have the flight's layer, in the order in which they are asked: those that do not answer come last.
    pub(crate) fn sources(&self, flight: &Flight) -> Vec<Arc<Image>> {
        let mut sources = self.images.serving(&flight.piece.key.layer, &flight.piece.image);
        sources.sort_by_key(|image| image.breaker.is_resting());
        sources
    }

    /// Whether the source is asked again for what it did not bring.
    fn stays(&self, request: &Request, source: &Image, error: Option<&PieceError>) -> bool {
        error.is_some_and(|error| self.waits_on(request, source, error))
    }

    /// Asks the first of the sources that may be asked, once there is room. Who waits for a source holds no room that others could use.
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
        let (source, _admission) = loop {
            let source = match is_of_a_pack {
                true => owner.clone(),
                false => match self.gate(request, sources, flights).await {
                    Ok(source) => source,
                    Err(error) => return unread(error),
                },
            };
            let admitted = self.lanes.admit(&first.piece.image.budget, request.lane, &request.priority, room);
            let Some(admission) = admitted.await else { return unread(PieceError::Cancelled) };
            if is_of_a_pack || !source.breaker.is_resting() {
                break (source, admission);
            }
        };
        let left = self.pass(request, flights, neighbours, &source, suspects).await;
        (Some(source), left)
    }

    /// Decides what of the leftover is asked for again: wrong bytes once, unread bytes while there is another source.
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

    pub(crate) fn give_up(&self, flight: &Arc<Flight>, error: PieceError) {
        if self.pack_is_to_blame(&flight.piece, &error) {
            return self.flights.fail(flight, PieceError::Cancelled); // the next round asks the layer
        }
        if !matches!(error, PieceError::Cancelled) {
            let image = &flight.piece.image;
            if let Some(left_out) = image.log.of(&error).admit() {
                tracing::warn!(image = %image.name, %error, "a piece cannot be had{left_out}");
            }
            image.tally.failed(&error);
            image.journal.note(Event::SourceFailed { reason: error.to_string() });
        }
        self.flights.fail(flight, error);
    }

    /// Whether a piece failed because its boot pack is not there, or not what it should be. Then nothing more is taken from the pack.
    pub(crate) fn pack_is_to_blame(&self, piece: &Piece, error: &PieceError) -> bool {
        let Some(pack) = piece.image.pack.get().filter(|pack| piece.is_of(pack) && error.is_of_the_blob()) else {
            return false;
        };
        if pack.give_up() {
            let text =
                format!("the boot pack of {} is given up, and the layers are read instead: {error}", piece.image.name);
            tracing::warn!("{text}");
            piece.image.tally.failed(&text);
            piece.image.journal.note(Event::PackGivenUp { reason: error.to_string() });
        }
        true
    }

    /// How long the answer may be silent, and whether it says something about the source: a boot pack must leave a reader time to
    /// turn to the layer, and one that is not there is no reason to leave the source alone.
    fn terms(&self, image: &Arc<Image>, piece: &Piece) -> (Duration, Option<Attempt>) {
        match image.pack.get().filter(|pack| piece.is_of(pack)) {
            Some(_) => (self.config.stall_limit / PACK_STALL_SHARE, None),
            None => (self.config.stall_limit, Some(Attempt::begin(&image.breaker))),
        }
    }

    /// Asks one source for everything from the first to the last flight, and settles each as its bytes come in. The neighbours follow if
    /// that went well.
    async fn pass(
        self: &Arc<Self>,
        request: &Request,
        flights: &[Arc<Flight>],
        neighbours: &[Arc<Flight>],
        image: &Arc<Image>,
        suspects: &HashSet<PieceKey>,
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
        for (index, flight) in flights.iter().enumerate() {
            let turn = self.lanes.give_way(request.lane, &request.priority).await;
            let bytes = match body.take(flight.piece.range(), flight.lane).await {
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
                flight.piece.image.allowance.earn(bytes.len());
            }
            let last_chance = suspects.contains(&flight.piece.key);
            decoding.push(self.clone().settle(flight.clone(), bytes, last_chance));
            while decoding.len() >= DECODING {
                left.corrupt.extend(decoding.next().await.flatten());
            }
        }
        while let Some(corrupt) = decoding.next().await {
            left.corrupt.extend(corrupt);
        }
        if left.corrupt.is_empty() && left.error.is_none() && !neighbours.is_empty() {
            request.priority.lower();
            self.bring_along(body, neighbours).await;
        }
        left
    }

    /// Decodes and checks a piece, hands it over and keeps it. Gives the flight back if its bytes were wrong.
    pub(crate) async fn settle(
        self: Arc<Self>,
        flight: Arc<Flight>,
        encoded: Bytes,
        last_chance: bool,
    ) -> Option<Arc<Flight>> {
        let (host, same) = (self.clone(), flight.clone());
        if flight.piece.work_bytes() > self.config.inline_bytes {
            let work = move || match host.open_up(&same, &encoded, last_chance) {
                Some(chunks) => {
                    host.hand_over(&same, chunks);
                    None
                }
                None => Some(same),
            };
            // The runtime is going down, or decoding panicked: not bytes that may be used.
            return self.runtime.spawn_blocking(work).await.unwrap_or(Some(flight));
        }
        let Some(chunks) = self.open_up(&flight, &encoded, last_chance) else { return Some(flight) };
        // Everything that this process can be fetching fits: then no write has to wait for room, however many there are at
        // the same time. Otherwise it may wait for seconds, which this thread must not.
        if self.store.has_room(self.config.host_bytes + self.config.trace_bytes + self.config.ahead_bytes) {
            self.hand_over(&flight, chunks);
            return None;
        }
        let chunks: Arc<[_]> = chunks.into();
        self.deliver(&flight, chunks.clone());
        let _going_down = self.runtime.spawn_blocking(move || host.keep_all(&same, &chunks)).await;
        None
    }

    /// Decodes and checks; `None` if the bytes were wrong.
    fn open_up(&self, flight: &Flight, encoded: &Bytes, last_chance: bool) -> Option<Vec<Decoded>> {
        let piece = &flight.piece;
        let chunks = match decode::piece(piece, encoded, |chunk| self.is_here(&piece.image, chunk)) {
            Ok(chunks) => chunks,
            Err(reason) => {
                self.alarm(&piece.image, &PieceError::corrupt(&piece.key, &reason));
                return None;
            }
        };
        if chunks.iter().any(|chunk| matches!(chunk, Decoded::Wrong)) {
            self.alarm(&piece.image, &PieceError::corrupt(&piece.key, "a chunk does not match its digest"));
            // The second time, those chunks that do match are not to suffer for the others.
            if !last_chance || !chunks.iter().any(|chunk| matches!(chunk, Decoded::Bytes(_))) {
                return None;
            }
        }
        Some(chunks)
    }

    /// Whether a chunk that nobody asked for is here, as far as a glance tells.
    pub(crate) fn is_here(&self, image: &Arc<Image>, chunk: &PieceChunk) -> bool {
        if self.store.contains(&self.contents.kept_as(&chunk.object)) {
            return true;
        }
        let by_parts =
            || self.live_object(image, &chunk.object).is_some_and(|object| object.has_at(chunk.object_offset));
        !chunk.is_whole_object() && by_parts()
    }

    pub(crate) fn hand_over(self: &Arc<Self>, flight: &Arc<Flight>, chunks: Vec<Decoded>) {
        let chunks: Arc<[_]> = chunks.into();
        self.deliver(flight, chunks.clone());
        self.keep_all(flight, &chunks);
    }

    /// Hands chunks to everybody who waits for them.
    fn deliver(&self, flight: &Flight, chunks: Arc<[Decoded]>) {
        for (chunk, decoded) in flight.piece.chunks.iter().zip(&*chunks) {
            if matches!(decoded, Decoded::Bytes(_)) {
                flight.piece.image.brought(flight.lane, chunk);
            }
        }
        self.flights.deliver(flight, Outcome::Chunks(chunks));
    }

    fn keep_all(self: &Arc<Self>, flight: &Arc<Flight>, chunks: &[Decoded]) {
        for (chunk, decoded) in flight.piece.chunks.iter().zip(chunks) {
            if let Decoded::Bytes(bytes) = decoded {
                self.keep(&flight.piece.image, chunk, bytes);
            }
        }
        self.flights.land(flight);
    }

    /// Bytes that are not what they should be: counted, logged, remembered for `status`.
    pub(crate) fn alarm(&self, image: &Image, error: &PieceError) {
        if let Some(left_out) = image.log.corrupt.admit() {
            tracing::error!(image = %image.name, "{error}{left_out}");
        }
        image.tally.add(|counters| &counters.digest_failures, 1);
        image.journal.note(Event::Corrupt { reason: error.to_string() });
        image.tally.failed(error);
    }
}
