//! The way of a read, from the object to the wire and back. Each step is one call; what it does is in the file that
//! the step names.
//!
//! ```text
//! read_local   complete object in the store? verified chunks here?      local.rs, object.rs
//! check        a complete object that must be hashed first              check.rs
//! read         images that have the object, one after the other         image.rs
//!   resolve    they contradict each other? hash the whole first         dispute.rs
//!   search     what an earlier process left: hash it, believe it        object.rs
//!   pieces     missing chunks → pieces to decode                        pieces.rs
//!   neighbours the small files behind it                                neighbours.rs
//!   request    on its way already? join. Else pieces → requests         flight.rs, plan.rs, request.rs
//!     fly      gate → room → ask the source → cut → decode → verify → deliver → keep      gate.rs, breaker.rs
//!   wait       until here, or the deadline                              flight.rs
//!   gather     exactly the bytes that were asked for                    gather.rs, content.rs
//! ```

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tarpon_blob::Opened;
use tarpon_layer::ObjectId;
use tarpon_oci::Verified;
use tokio::time::Instant;

use crate::chunk::PieceChunk;
use crate::clock::Clock;
use crate::config::{READ_BYTES, READ_ROUNDS};
use crate::content::ObjectBytes;
use crate::error::{PieceError, ReadError};
use crate::flight::{Boarded, Found, Ticket};
use crate::gather::{Arrived, missing};
use crate::governor::state::Stalling;
use crate::host::Host;
use crate::image::{Claimant, Claims, Image};
use crate::journal::Waiting;
use crate::lanes::Lane;
use crate::local::LocalObject;
use crate::object::{Numbered, Object};
use crate::plan::Piece;
use crate::readahead::Window;

impl Host {
    /// The bytes, if they are here and nothing must be hashed first. Blocks on the local disk alone, and for as long as reading them takes.
    pub(crate) fn read_local(
        self: &Arc<Self>,
        id: &ObjectId,
        offset: u64,
        length: u64,
    ) -> Opened<Result<ObjectBytes, ReadError>> {
        if length > READ_BYTES {
            return Opened::Sound(Err(ReadError::TooLong { length, limit: READ_BYTES }));
        }
        let known = self.images.first_holding(id);
        if let Some(object) = known.as_ref().and_then(|(image, _)| self.live_object(image, id))
            && object.parts.is_some()
            && self.may_be_lazy(&object)
        {
            let range = clip(offset, length, object.size());
            if let Some(bytes) = self.gather(&object, &range, &Arrived::new()) {
                self.images.was_read(id, range.clone());
                self.look_ahead(&object, range);
                object.image.tally.served(bytes.len());
                return Opened::Sound(Ok(bytes));
            }
        }
        let answer = self.opened(id).map(|local| self.load(&local, id, offset, length));
        if let (Opened::Sound(Ok(bytes)), Some((image, _))) = (&answer, known) {
            self.images.was_read(id, offset..offset.saturating_add(bytes.len() as u64));
            image.tally.served(bytes.len());
        }
        answer
    }

    /// Reads a complete object. One that cannot be read is closed, so that the store is asked for it again.
    fn load(&self, local: &LocalObject, id: &ObjectId, offset: u64, length: u64) -> Result<ObjectBytes, ReadError> {
        let answer = local.read(id, offset, length);
        if answer.is_err() {
            self.open.forget(&self.contents.kept_as(id));
        }
        answer
    }

    /// The object as a local file, if the store has it whole and verified. A store that cannot say has not.
    pub(crate) fn complete(&self, id: &ObjectId) -> Option<LocalObject> {
        self.opened(id).sound()
    }

    /// The bytes, from wherever they are, within the deadline.
    pub(crate) async fn read(
        self: &Arc<Self>,
        id: &ObjectId,
        offset: u64,
        length: u64,
    ) -> Result<ObjectBytes, ReadError> {
        let unchecked = match self.read_local(id, offset, length) {
            Opened::Sound(answer) => return answer,
            Opened::Unchecked(size) => Some(size),
            Opened::Absent => None,
        };
        let outcome = match self.late_reads.remembered(id) {
            Some(error) => Err(error),
            None => self.read_in_time(id, offset, length, unchecked).await,
        };
        if outcome.is_err() {
            self.counters.failed_reads.add(1);
        }
        outcome
    }

    /// The bytes, or an error at the deadline, whatever it waits for. A local file of `unchecked` bytes must be hashed first.
    async fn read_in_time(
        self: &Arc<Self>,
        id: &ObjectId,
        offset: u64,
        length: u64,
        unchecked: Option<u64>,
    ) -> Result<ObjectBytes, ReadError> {
        let clock = Clock::begin(self.config.read_deadline);
        let read = async {
            if let Some(size) = unchecked {
                self.check(id, size).await;
                if let Opened::Sound(answer) = self.read_local(id, offset, length) {
                    return answer;
                }
            }
            self.read_claimed(id, offset, length, clock).await
        };
        let outcome = match tokio::time::timeout_at(clock.until, read).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => {
                let error = self.late(id);
                self.late_reads.remember(id, &error);
                return Err(error);
            }
        };
        // A piece that fails is remembered by itself (`flight.rs`), and says nothing about the rest of the object.
        if let Err(error) = &outcome
            && match error {
                ReadError::Disputed { .. } => Instant::now() >= clock.until,
                _ => clock.came.elapsed() >= self.config.outage_memo && self.has_several(id),
            }
        {
            self.late_reads.remember(id, error);
        }
        outcome
    }

    /// Whether several images have the object. They share the time of a read, and at its end it is forgotten that the first ones failed.
    fn has_several(&self, id: &ObjectId) -> bool {
        matches!(self.images.claims(id), Claims::Agreed(claimants) if claimants.len() > 1)
    }

    /// The error of a read whose time is over.
    fn late(&self, id: &ObjectId) -> ReadError {
        let cause = PieceError::Late(self.config.read_deadline);
        match self.images.first_holding(id) {
            Some((image, _)) => ReadError::Fetch { object: *id, image: image.name.clone(), cause },
            None => ReadError::UnknownObject(*id),
        }
    }

    /// The bytes, from an image that has the object, once the images agree on it.
    async fn read_claimed(
        self: &Arc<Self>,
        id: &ObjectId,
        offset: u64,
        length: u64,
        clock: Clock,
    ) -> Result<ObjectBytes, ReadError> {
        for _round in 0..READ_ROUNDS {
            let claimants = match self.images.claims(id) {
                Claims::Agreed(claimants) => claimants,
                Claims::Disputed(claimants) => {
                    self.resolve(id, claimants, clock.until).await?;
                    continue;
                }
                Claims::Unknown => break,
                Claims::Distrusted((image, _)) => return Err(image.refuse_distrusted(id)),
                Claims::Refuted => return Err(ReadError::Poisoned(*id)),
            };
            if let Some(answer) = self.read_from(claimants, id, offset, length, clock).await {
                return answer;
            }
        }
        Err(ReadError::UnknownObject(*id))
    }

    /// Asks one after the other of the images, which agree on the object. `None` if they no longer do.
    async fn read_from(
        self: &Arc<Self>,
        mut claimants: Vec<Claimant>,
        id: &ObjectId,
        offset: u64,
        length: u64,
        clock: Clock,
    ) -> Option<Result<ObjectBytes, ReadError>> {
        let mut failure = ReadError::UnknownObject(*id);
        let mut others = claimants.len();
        if others > 1 {
            claimants.sort_by_key(|(image, _)| image.breaker.is_resting());
        }
        for (image, _) in claimants {
            others -= 1;
            let Some(object) = self.object_in(&image, id) else { continue };
            if !self.may_be_lazy(&object) {
                return None;
            }
            let range = clip(offset, length, object.size());
            let began = Instant::now();
            let mut waiting = Waiting::default();
            let stalling = Stalling::begin(&image.governor);
            // A source that hangs leaves time for the others.
            let turn = if others > 0 { clock.half() } else { clock };
            let answer = self.read_through(&object, range.clone(), turn, &mut waiting).await;
            drop(stalling);
            let waited = began.elapsed();
            image.journal.stalled((*id, &range), waited, &waiting, answer.is_err());
            match answer {
                Ok(bytes) => {
                    self.images.was_read(id, range);
                    image.tally.served_late(bytes.len(), waited);
                    self.govern(&image);
                    return Some(Ok(bytes));
                }
                Err(cause) => {
                    image.governor.failed();
                    let elsewhere = cause.another_image_may_help();
                    failure = ReadError::Fetch { object: *id, image: image.name.clone(), cause };
                    image.tally.try_failed(&failure, waited);
                    if !elsewhere || Instant::now() >= clock.until {
                        break;
                    }
                }
            }
        }
        Some(Err(failure))
    }

    /// Reads the object as one image's table splits it, or from a local file once it is one.
    async fn read_through(
        self: &Arc<Self>,
        object: &Arc<Object>,
        range: Range<u64>,
        clock: Clock,
        waiting: &mut Waiting,
    ) -> Result<ObjectBytes, PieceError> {
        let mut arrived = Arrived::new();
        for _round in 0..READ_ROUNDS {
            if let Some(local) = self.complete_checked(&object.id).await
                && let Ok(bytes) = self.load(&local, &object.id, range.start, range.end - range.start)
            {
                return Ok(bytes);
            }
            if let Some(bytes) = self.read_round(object, &range, clock, &mut arrived, waiting).await? {
                return Ok(bytes);
            }
        }
        Err(PieceError::Cancelled)
    }

    /// As [`Host::read_through`], but what is returned was checked against the chunk list of this image and nothing else.
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

    /// Takes what is here, or asks for what is missing and waits for it.
    async fn read_round(
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
            // All is here, and too large to be hashed for each read while it is being published.
            if tokio::time::timeout_at(clock.until, object.published()).await.is_err() {
                // No piece is late. If others have the object, the read goes on with them.
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

    /// Takes what the bypass or an earlier process left.
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
        // Hashing: not on a thread that others wait for.
        let (host, object) = (self.clone(), object.clone());
        let check = move || host.take_what_was_left(&object, candidates);
        arrived.extend(self.runtime.spawn_blocking(check).await.unwrap_or_default());
    }

    /// Hashes what an earlier process left of these chunks; what is right is here from now on. Blocks on the disk and the processor.
    pub(crate) fn take_what_was_left(
        self: &Arc<Self>,
        object: &Arc<Object>,
        candidates: Vec<Numbered>,
    ) -> Vec<(u32, Verified<Bytes>)> {
        let found = object.check(&*self.store, candidates);
        self.publish_if_complete(object);
        found
    }

    /// Makes sure that somebody brings these chunks.
    fn request(self: &Arc<Self>, object: &Arc<Object>, missing: &[Numbered], clock: Clock) -> Vec<Ticket> {
        let pieces = self.pieces(object, missing);
        let neighbours = self.neighbours(&pieces);
        let plan = |missing, neighbours| self.plan_demand(missing, neighbours);
        let (tickets, planned) = self.flights.join_or_plan(clock.came, pieces, neighbours, plan);
        self.start(self.still_missing(object, planned));
        tickets
    }

    /// What is planned, without what has landed since somebody looked for it.
    fn still_missing(&self, object: &Object, planned: Vec<Boarded>) -> Vec<Boarded> {
        let still_missing = |mut boarded: Boarded| {
            boarded.flights.retain(|flight| {
                let missing = self.is_missing(object, &flight.piece);
                if !missing {
                    self.flights.is_here(flight);
                }
                missing
            });
            (!boarded.flights.is_empty()).then_some(boarded)
        };
        planned.into_iter().filter_map(still_missing).collect()
    }

    /// Whether the piece's first chunk, which `object` needs, is not here.
    fn is_missing(&self, object: &Object, piece: &Piece) -> bool {
        let Some(chunk) = piece.chunks.first() else { return false };
        if self.bypass.chunk(&chunk.name(object.image.id)).is_some() {
            return false;
        }
        !self.has_chunk(&object.image, chunk)
    }

    /// Whether the store has the chunk, or the whole object, which whoever reads it has hashed first where that is due.
    pub(crate) fn has_chunk(&self, image: &Arc<Image>, chunk: &PieceChunk) -> bool {
        let opened = self.store.open_checked(&self.contents.kept_as(&chunk.object));
        if matches!(opened, Ok(Opened::Sound(_) | Opened::Unchecked(_))) {
            return true;
        }
        let known = self.live_object(image, &chunk.object);
        known.is_some_and(|object| object.has_at(chunk.object_offset))
    }

    /// Waits for one piece and takes the chunks that it brought.
    async fn wait(
        &self,
        object: &Object,
        missing: &[Numbered],
        ticket: &Ticket,
        clock: Clock,
        arrived: &mut Arrived,
    ) -> Result<(), PieceError> {
        let arrival = match ticket.wait(clock, self.config.read_deadline).await {
            Err(PieceError::Cancelled) => return Ok(()), // the next round asks again
            arrival => arrival?,
        };
        for (number, chunk) in missing {
            match arrival.find(&object.piece_chunk(chunk)) {
                Found::Bytes(bytes) => drop(arrived.insert(*number, bytes)),
                Found::Corrupt if self.pack_is_to_blame(arrival.piece(), &arrival.corrupt()) => return Ok(()),
                Found::Corrupt => return Err(arrival.corrupt()),
                Found::InStore | Found::Unknown => {}
            }
        }
        Ok(())
    }

    /// Fetches ahead of a sequential reader, as far as there is room.
    fn look_ahead(self: &Arc<Self>, object: &Arc<Object>, read: Range<u64>) {
        let window = Window { min: self.config.ahead_min, max: self.config.ahead_max };
        // A recorded start has read on as far as it had to.
        if object.is_in_pack(read.end.saturating_sub(1)) {
            return;
        }
        let Some(ahead) = object.note_read(read, window) else { return };
        if self.bypass.is_active() {
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
        // A reader looks for what an earlier process left before he asks anybody.
        chunks.retain(|chunk| !object.may_have_left(&*self.store, chunk));
        let pieces = self.pieces(object, &chunks);
        let planned = self.flights.plan_missing(pieces, |new| self.plan_requests(new, Lane::Ahead));
        self.start(self.still_missing(object, planned));
    }

    /// Fetches what is missing of a range, behind all demand and as far as there is room.
    pub(crate) fn prefetch(self: &Arc<Self>, id: &ObjectId, range: Range<u64>) {
        let Some((image, _)) = self.images.first_holding(id) else { return };
        if image.claim(id).is_none() || !matches!(self.opened(id), Opened::Absent) || self.bypass.is_active() {
            return;
        }
        let Some(object) = self.object_in(&image, id) else { return };
        let missing: Vec<Numbered> = missing(&object, &range, &Arrived::new()).collect();
        self.request_ahead(&object, missing);
    }
}

/// The part of a read that lies in the object.
fn clip(offset: u64, length: u64, size: u64) -> Range<u64> {
    let start = offset.min(size);
    start..start.saturating_add(length).min(size)
}
