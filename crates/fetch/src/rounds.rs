//! Reads chunks by one image's chunk list: uses local chunks, requests missing ones, and waits for them. One pass of this is a
//! *round*. A read repeats it until it has all chunks.

use std::ops::Range;
use std::sync::Arc;

use tarpon_blob::Opened;
use tarpon_layer::ObjectId;
use tokio::time::Instant;

use crate::chunk::PieceChunk;
use crate::clock::Clock;
use crate::config::READ_ROUNDS;
use crate::content::ObjectBytes;
use crate::error::PieceError;
use crate::flight::{ChunkArrival, RequestFlights, Ticket};
use crate::gather::{Arrived, missing};
use crate::host::FetchHost;
use crate::journal::Waiting;
use crate::object::{Numbered, Object};
use crate::plan::Piece;
use crate::prefetch::read_ahead::Window;
use crate::prefetch::rules::{Prefetcher, Step};

impl FetchHost {
    /// As [`FetchHost::read_through`], but returns only bytes that were checked against the chunk list of this image.
    pub(crate) async fn read_chunks(
        self: &Arc<Self>,
        object: &Arc<Object>,
        range: Range<u64>,
        clock: Clock,
    ) -> Result<ObjectBytes, PieceError> {
        let mut arrived = Arrived::new();
        for _round in 0..READ_ROUNDS {
            let mut waiting = Waiting::default();
            if let Some(bytes) = self.read_round(object, &range, clock, &mut arrived, &mut waiting).await? {
                return Ok(bytes);
            }
        }
        Err(PieceError::Cancelled)
    }

    /// One round: returns the bytes if all are local, otherwise requests the missing chunks and waits for them.
    pub(crate) async fn read_round(
        self: &Arc<Self>,
        object: &Arc<Object>,
        range: &Range<u64>,
        clock: Clock,
        arrived: &mut Arrived,
        waiting: &mut Waiting,
    ) -> Result<Option<ObjectBytes>, PieceError> {
        self.search(object, range, arrived).await;
        if let Some(bytes) = self.gather(object, range, arrived) {
            return Ok(Some(bytes));
        }
        let missing: Vec<Numbered> = missing(object, range, arrived).collect();
        if missing.is_empty() {
            // All chunks are local, and the object is too large to be hashed for each read while it is being published.
            if tokio::time::timeout_at(clock.until, object.published()).await.is_err() {
                // No piece is late. If other images have the object, the read continues with them.
                if !clock.others_left {
                    self.late_reads.remember(&object.id, &self.late(&object.id));
                }
                return Err(PieceError::Late(self.config.read_deadline));
            }
            return Ok(None);
        }
        let tickets = self.request(object, &missing, clock);
        self.look_ahead(object, range.clone());
        for ticket in &tickets {
            let began = Instant::now();
            let waited = self.wait(object, &missing, ticket, clock, arrived).await;
            ticket.note(waiting, began.elapsed());
            waited?;
        }
        Ok(None)
    }

    /// Uses chunks of the bypass, and those that an earlier process left.
    async fn search(self: &Arc<Self>, object: &Arc<Object>, range: &Range<u64>, arrived: &mut Arrived) {
        let mut missing: Vec<Numbered> = missing(object, range, arrived).collect();
        missing.retain(|(number, chunk)| {
            let bypassed = self.bypass.chunk(&object.chunk_name(chunk)).map(|bytes| (*number, bytes));
            let is_missing = bypassed.is_none();
            arrived.extend(bypassed);
            is_missing
        });
        let candidates = object.candidates(&*self.store, missing);
        if candidates.is_empty() {
            return;
        }
        // Hashing blocks, so it runs on another thread.
        let (host, object) = (self.clone(), object.clone());
        let check = move || host.take_leftover_chunks(&object, candidates);
        arrived.extend(self.runtime.spawn_blocking(check).await.unwrap_or_default());
    }

    /// Joins or starts requests for these chunks.
    fn request(self: &Arc<Self>, object: &Arc<Object>, missing: &[Numbered], clock: Clock) -> Vec<Ticket> {
        let pieces = self.pieces(object, missing);
        let neighbours = self.neighbours(&pieces);
        let plan = |missing, neighbours| self.plan_demand(missing, neighbours);
        let (tickets, planned) = self.flights.join_or_plan(clock.came, pieces, neighbours, plan);
        self.start(self.still_missing(object, planned));
        tickets
    }

    /// The planned requests, without the pieces that have arrived in the meantime.
    fn still_missing(&self, object: &Object, planned: Vec<RequestFlights>) -> Vec<RequestFlights> {
        let still_missing = |mut request: RequestFlights| {
            request.flights.retain(|flight| {
                let missing = self.is_missing(object, &flight.piece);
                if !missing {
                    self.flights.end_as_local(flight);
                }
                missing
            });
            (!request.flights.is_empty()).then_some(request)
        };
        planned.into_iter().filter_map(still_missing).collect()
    }

    /// Whether the piece's first chunk, which `object` needs, is missing.
    fn is_missing(&self, object: &Object, piece: &Piece) -> bool {
        let Some(chunk) = piece.chunks.first() else { return false };
        if self.bypass.chunk(&chunk.name(object.image.id)).is_some() {
            return false;
        }
        !self.has_chunk(&object.image, chunk)
    }

    /// Waits for one piece and takes its chunks.
    async fn wait(
        &self,
        object: &Object,
        missing: &[Numbered],
        ticket: &Ticket,
        clock: Clock,
        arrived: &mut Arrived,
    ) -> Result<(), PieceError> {
        let wanted = |known: &PieceChunk| missing.iter().any(|(_, chunk)| known.same_bytes(&object.piece_chunk(chunk)));
        let arrival = match ticket.wait(clock, self.config.read_deadline, wanted).await {
            Err(PieceError::Cancelled) => return Ok(()), // the next round requests it again
            arrival => arrival?,
        };
        for (number, chunk) in missing {
            match arrival.find(&object.piece_chunk(chunk)) {
                ChunkArrival::Bytes(bytes) => drop(arrived.insert(*number, bytes)),
                ChunkArrival::Corrupt if self.pack_is_to_blame(arrival.piece(), &arrival.corrupt()) => return Ok(()),
                ChunkArrival::Corrupt => return Err(arrival.corrupt()),
                ChunkArrival::InStore | ChunkArrival::Unknown => {}
            }
        }
        Ok(())
    }

    /// Fetches ahead of a sequential reader, as far as there is room.
    pub(crate) fn look_ahead(self: &Arc<Self>, object: &Arc<Object>, read: Range<u64>) {
        let window = Window { min: self.config.ahead_min, max: self.config.ahead_max };
        let prefetch = &object.image.prefetch;
        let chunk = || object.number_in_table_at(read.end.saturating_sub(1));
        if !prefetch.may_at(Prefetcher::ReadAhead, Step::Begin, chunk) {
            return;
        }
        let Some(ahead) = object.note_read(read, window) else { return };
        if !prefetch.may(Prefetcher::ReadAhead, Step::First) {
            return;
        }
        let chunks: Vec<Numbered> = object
            .chunks_of(ahead.range.clone())
            .filter(|(_, chunk)| chunk.object_offset >= ahead.range.start && chunk.size <= ahead.largest_chunk)
            .filter(|numbered| !object.has(numbered))
            .collect();
        self.request_ahead(object, chunks);
    }

    fn request_ahead(self: &Arc<Self>, object: &Arc<Object>, mut chunks: Vec<Numbered>) {
        // Chunks that an earlier process left are found when they are read.
        chunks.retain(|chunk| !object.may_have_left(&*self.store, chunk));
        let pieces = self.pieces(object, &chunks);
        let planned = self.flights.plan_missing(pieces, |new| self.plan_requests(new, Prefetcher::ReadAhead.lane()));
        self.start(self.still_missing(object, planned));
    }

    /// Fetches the missing chunks of a range, after all demand and as far as there is room.
    pub(crate) fn prefetch(self: &Arc<Self>, id: &ObjectId, range: Range<u64>) {
        let Some((image, _)) = self.images.first_holding(id) else { return };
        let may = || image.prefetch.may(Prefetcher::ReadAhead, Step::First);
        if image.claim(id).is_none() || !matches!(self.opened(id), Opened::Absent) || !may() {
            return;
        }
        let Some(object) = self.object_in(&image, id) else { return };
        let missing: Vec<Numbered> = missing(&object, &range, &Arrived::new()).collect();
        self.request_ahead(&object, missing);
    }
}
