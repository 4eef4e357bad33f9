//! Walks through a decoded layer, chunk by chunk. Blocking: runs on its own thread.

use std::io::{self, Read, Write};
use std::sync::Arc;

use bytes::Bytes;
use tarpon_blob::{ObjectStore, ObjectWriter, PartialObject, StoreError};
use tarpon_layer::decode::DecodedLayer;
use tarpon_layer::{ChunkPlace, Codec};
use tarpon_oci::{Blob, Hasher, Verified, limits};

use super::input::{self, Input};
use super::pass::{Pass, Wanted};
use crate::chunk::PieceChunk;
use crate::decode::Decoded;
use crate::error::PieceError;
use crate::flight::Flight;
use crate::host::FetchHost;
use crate::ids::PieceKey;
use crate::image::Image;
use crate::object::Object;

/// Most memory of a pass: parts on their way, a window, one chunk.
pub(crate) const MEMORY_BYTES: u64 = limits::CHUNK_BYTES + (8 << 20);
/// Bytes that are skipped or spooled at once.
const STEP_BYTES: usize = 1 << 20;

/// The position of a pass.
pub(crate) struct Walker {
    host: Arc<FetchHost>,
    pass: Arc<Pass>,
    image: Arc<Image>,
    layer: u16,
    blob: Blob,
    reader: DecodedLayer,
    /// Decoded bytes that were read.
    position: u64,
    /// Places before this one are done.
    next: u64,
}

/// Why a walk stopped.
pub(crate) enum Step {
    /// Nothing further on is wanted.
    GoalReached(Box<Walker>),
    /// The layer ended.
    EndOfLayer,
}

impl Walker {
    pub(crate) async fn open(
        host: &Arc<FetchHost>,
        pass: &Arc<Pass>,
        first: &Flight,
        source: &Arc<Image>,
    ) -> Result<Self, PieceError> {
        let piece = &first.piece;
        let found = (0..source.table.layer_count()).find_map(|number| {
            let layer = source.table.layer(number).filter(|layer| layer.blob == piece.blob)?;
            Some((number, layer))
        });
        let (layer, entry) = found.ok_or_else(|| PieceError::BadTable("a layer of another image".into()))?;
        let input = Input::open(host.runtime.handle(), source, piece.blob, first.lane, host.config.stall_limit).await?;
        let decoder = host.config.decoder.clone();
        // A decoder may read the first header at once, which blocks.
        let reader = host.runtime.spawn_blocking(move || decoder.layer(entry.compression, Box::new(input))).await;
        let reader = reader.map_err(|_going_down| PieceError::Cancelled)?;
        let reader = reader.map_err(|error| input::failure(error, |reason| PieceError::corrupt(&piece.key, reason)))?;
        let (host, pass, image) = (host.clone(), pass.clone(), source.clone());
        Ok(Self { host, pass, image, layer, blob: piece.blob, reader, position: 0, next: 0 })
    }

    /// Continues until nothing further on is wanted.
    pub(crate) fn walk_to_goal(mut self) -> Result<Step, PieceError> {
        while let Some(goal) = self.pass.goal() {
            let on_the_way = self.next_in_table(goal);
            let wanted = self.pass.next_wanted().unwrap_or(goal);
            let place = on_the_way.as_ref().map_or(wanted, |(place, _)| wanted.min(*place));
            if !self.skip_to(place)? {
                return Ok(Step::EndOfLayer);
            }
            let passing = on_the_way.filter(|(at, _)| *at == place).map(|(_, chunk)| chunk);
            self.next = place.saturating_add(1);
            match self.pass.reach(place) {
                Some(wanted) => self.bring(wanted)?,
                None => self.keep_if_missing(passing)?,
            }
        }
        Ok(Step::GoalReached(Box::new(self)))
    }

    /// The next chunk of the table from here, up to `goal`.
    fn next_in_table(&self, goal: u64) -> Option<(u64, PieceChunk)> {
        let table = &self.image.table;
        let mut ahead = table.by_place(self.layer, self.position.max(self.next)..goal.saturating_add(1));
        ahead.find_map(|number| {
            let entry = table.chunk(number)?;
            let ChunkPlace::Blob { codec: Codec::Stream, offset, .. } = entry.chunk.place else { return None };
            let (id, object) = table.object(entry.object)?;
            Some((offset, PieceChunk::new(id, &object, &entry.chunk)))
        })
    }

    /// Completes a chunk that a reader waits for.
    fn bring(&mut self, wanted: Wanted) -> Result<(), PieceError> {
        let (outcome, broken) = match self.fetch(&wanted.flight) {
            Ok(known) => (known, None),
            Err(error) => (Err(error.clone()), Some(error)),
        };
        // A waiter that is gone needs no reply.
        let _ = wanted.done.send(outcome);
        broken.map_or(Ok(()), Err)
    }

    /// Reads the flight's chunk and settles it. The inner error concerns the chunk alone.
    fn fetch(&mut self, flight: &Arc<Flight>) -> Result<Result<(), PieceError>, PieceError> {
        let Some(chunk) = flight.piece.chunks.first() else { return Ok(Ok(())) };
        let outcome = if chunk.size > limits::CHUNK_BYTES {
            self.spool(chunk)?.map(|()| None)
        } else {
            self.load(chunk)?.map(Some)
        };
        Ok(outcome.map(|bytes| match bytes {
            Some(bytes) => self.host.hand_over(flight, vec![Decoded::Bytes(bytes)]),
            None => self.host.flights.end_as_local(flight),
        }))
    }

    /// Keeps a chunk that the pass meets. It is skipped if it is local or the store accepts nothing.
    fn keep_if_missing(&mut self, passing: Option<PieceChunk>) -> Result<(), PieceError> {
        let Some(chunk) = passing else { return Ok(()) };
        if self.host.bypass.is_active() || self.host.has_chunk(&self.image, &chunk) {
            return Ok(());
        }
        // No reader waits for it: a failure has been counted, and a later read retries.
        if chunk.size > limits::CHUNK_BYTES {
            let _ = self.spool(&chunk)?;
        } else if let Ok(bytes) = self.load(&chunk)? {
            self.host.keep(&self.image, &chunk, &bytes);
        }
        Ok(())
    }

    /// The bytes of a chunk; the inner error concerns the chunk alone.
    fn load(&mut self, chunk: &PieceChunk) -> Result<Result<Verified<Bytes>, PieceError>, PieceError> {
        let mut bytes = Vec::new();
        let read = (&mut self.reader).take(chunk.size).read_to_end(&mut bytes);
        self.position += read.map_err(|error| self.broken(error))? as u64;
        let checked = Verified::check(&chunk.digest, Bytes::from(bytes));
        Ok(checked.map_err(|error| self.wrong(&error.to_string())))
    }

    /// Writes a chunk that is too large for memory to the store in parts. It counts only once its digest has matched.
    fn spool(&mut self, chunk: &PieceChunk) -> Result<Result<(), PieceError>, PieceError> {
        let mut sink = Sink::open(&self.host, &self.image, chunk);
        let mut hasher = Hasher::new();
        let mut buffer = vec![0; STEP_BYTES];
        let mut left = chunk.size;
        while left > 0 {
            let limit = buffer.len().min(usize::try_from(left).unwrap_or(STEP_BYTES));
            let count = self.reader.read(&mut buffer[..limit]).map_err(|error| self.broken(error))?;
            if count == 0 {
                return Err(self.broken(io::ErrorKind::UnexpectedEof.into()));
            }
            self.position += count as u64;
            hasher.update(&buffer[..count]);
            sink = sink.and_then(|mut sink| sink.write(&buffer[..count]).map(|()| sink));
            left -= count as u64;
        }
        let proof = match Verified::check_stream(&chunk.digest, hasher) {
            Ok(proof) => proof,
            Err(error) => return Ok(Err(self.wrong(&error.to_string()))),
        };
        let kept = sink.and_then(|sink| sink.finish(&self.host, proof));
        Ok(kept.map_err(|error| {
            self.host.store_refused(&error);
            PieceError::NoRoom(chunk.size)
        }))
    }

    /// Skips everything before `place`. `false` if the layer ends before.
    fn skip_to(&mut self, place: u64) -> Result<bool, PieceError> {
        let distance = usize::try_from(place.saturating_sub(self.position)).unwrap_or(STEP_BYTES);
        // Between two chunks there is mostly a header of 512 bytes.
        let mut buffer = vec![0; distance.min(STEP_BYTES)];
        while self.position < place {
            let limit = buffer.len().min(usize::try_from(place - self.position).unwrap_or(STEP_BYTES));
            let count = self.reader.read(&mut buffer[..limit]).map_err(|error| self.broken(error))?;
            if count == 0 {
                return Ok(false);
            }
            self.position += count as u64;
        }
        Ok(true)
    }

    fn key(&self) -> PieceKey {
        PieceKey {
            image: self.image.id,
            layer: self.blob.digest,
            codec: Codec::Stream,
            offset: self.position,
            length: 0,
        }
    }

    fn broken(&self, error: io::Error) -> PieceError {
        input::failure(error, |reason| self.wrong(reason))
    }

    fn wrong(&self, reason: &str) -> PieceError {
        let error = PieceError::corrupt(&self.key(), reason);
        self.host.report_corrupt(&self.image, &error);
        error
    }
}

/// Destination of a large chunk.
enum Sink {
    /// The chunk is an object.
    Whole(Box<dyn ObjectWriter>),
    /// A part of an object.
    Part(Spool),
    /// None: it is local already, or another writer has claimed it.
    Past,
}

impl Sink {
    fn open(host: &FetchHost, image: &Arc<Image>, chunk: &PieceChunk) -> Result<Self, StoreError> {
        if chunk.is_whole_object() {
            return Ok(Self::Whole(host.store.writer(chunk.size)?));
        }
        let object = host.object_in(image, &chunk.object).ok_or(StoreError::Corrupt(chunk.object))?;
        Ok(Spool::open(&*host.store, object, chunk.object_offset)?.map_or(Self::Past, Self::Part))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        match self {
            Self::Whole(writer) => {
                writer.write_all(bytes).map_err(|error| StoreError::Io { doing: "keeping an object".into(), error })
            }
            Self::Part(spool) => spool.write(bytes),
            Self::Past => Ok(()),
        }
    }

    /// Completes the write after the chunk's digest matched.
    fn finish(self, host: &Arc<FetchHost>, proof: Verified<()>) -> Result<(), StoreError> {
        match self {
            Self::Whole(writer) => writer.publish(proof),
            Self::Part(spool) => {
                spool.finish(&proof);
                host.publish_if_complete(&spool.object);
                Ok(())
            }
            Self::Past => Ok(()),
        }
    }
}

/// A chunk that is written to its place in the partial file before its digest is known. The place is claimed: it is not read before
/// the digest has matched, and a chunk that counts as present is never overwritten.
struct Spool {
    object: Arc<Object>,
    partial: Arc<dyn PartialObject>,
    start: u64,
    offset: u64,
}

impl Spool {
    /// `None` if the place is taken.
    fn open(store: &dyn ObjectStore, object: Arc<Object>, start: u64) -> Result<Option<Self>, StoreError> {
        let partial = object.partial(store)?;
        Ok(object.begin_spooling(start).then_some(Self { object, partial, start, offset: start }))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.partial.spool_at(bytes, self.offset)?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    fn finish(&self, _matched: &Verified<()>) {
        self.object.end_spooling(self.start, true);
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.object.end_spooling(self.start, false);
    }
}
