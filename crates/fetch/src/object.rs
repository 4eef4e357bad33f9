//! State of an object that is partly local: which of its chunks are verified.
//!
//! Invariant: a presence bit is set only after the chunk's digest matched in this process, and covers bytes that are never
//! overwritten: bits and the partial file belong to one chunk list ([`Parts`]), whichever images have it. The store's partial file
//! may hold more (from an earlier process). Each such chunk is trusted only after hashing.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use tarpon_blob::LogLimit;
use tarpon_layer::chunks::ObjectEntry;
use tarpon_layer::{Chunk, ChunkPlace, Codec, ObjectId};
use tarpon_oci::{Verified, limits};
use tokio::sync::watch;

use crate::chunk::PieceChunk;
use crate::content::Assembly;
use crate::ids::{ChunkName, ListId};
use crate::image::Image;
use crate::prefetch::read_ahead::{Ahead, Sequence, Window};
use tarpon_blob::{ObjectStore, PartialObject, StoreError};

/// An object, split into chunks by the table of one image.
pub(crate) struct Object {
    pub(crate) id: ObjectId,
    pub(crate) image: Arc<Image>,
    record: ObjectEntry,
    /// As [`Image::names_content`].
    names_content: bool,
    /// `None` if its one chunk is the object, which is then never partly local.
    pub(crate) parts: Option<Arc<Parts>>,
    sequence: Mutex<Sequence>,
    /// The generation of [`crate::image::Images`] in which all images agreed on the object. 0 for none.
    agreed: AtomicU64,
}

/// The local state of an object for one chunk list, shared by all images with this list.
pub(crate) struct Parts {
    pub(crate) list: ListId,
    needed: OnceLock<Needed>,
    state: Mutex<PartsState>,
    /// Whether the partial file is being hashed as a whole.
    publishing: watch::Sender<bool>,
}

type PartsKey = (ObjectId, ListId);

/// The parts that are in use.
#[derive(Default)]
pub(crate) struct AllParts {
    known: Mutex<HashMap<PartsKey, Weak<Parts>>>,
}

/// Number of entries after which unused ones are removed.
const SWEEP: usize = 1024;

impl AllParts {
    pub(crate) fn of(&self, object: ObjectId, list: ListId) -> Arc<Parts> {
        let mut known = self.known.lock();
        if let Some(parts) = known.get(&(object, list)).and_then(Weak::upgrade) {
            return parts;
        }
        if known.len() >= SWEEP {
            known.retain(|_, parts| parts.strong_count() > 0);
        }
        let (needed, state, publishing) = (OnceLock::new(), Mutex::default(), watch::Sender::new(false));
        let parts = Arc::new(Parts { list, needed, state, publishing });
        known.insert((object, list), Arc::downgrade(&parts));
        parts
    }
}

/// The amounts that complete an object.
struct Needed {
    /// Chunks that are not zeros.
    chunks: u32,
    /// Bytes of chunks that are zeros.
    zeros: u64,
}

impl Needed {
    fn count(object: &Object) -> Self {
        object.chunks().fold(Self { chunks: 0, zeros: 0 }, |needed, (_, chunk)| match chunk.place {
            ChunkPlace::Zeros => Self { zeros: needed.zeros.saturating_add(chunk.size), ..needed },
            ChunkPlace::Blob { .. } => Self { chunks: needed.chunks + 1, ..needed },
        })
    }
}

#[derive(Default)]
struct PartsState {
    present: Bits,
    /// Chunks that were searched for in the partial file.
    searched: Bits,
    /// Chunks that are being written before they are checked.
    spooling: Bits,
    partial: Option<Arc<dyn PartialObject>>,
}

/// A set of small numbers.
#[derive(Default)]
struct Bits {
    words: Vec<u64>,
    count: u32,
}

impl Bits {
    fn has(&self, index: u32) -> bool {
        self.words.get(index as usize / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// Adds `index`. Returns whether it was missing.
    fn insert(&mut self, index: u32) -> bool {
        let at = index as usize / 64;
        if self.words.len() <= at {
            self.words.resize(at + 1, 0);
        }
        let new = !self.has(index);
        self.words[at] |= 1 << (index % 64);
        self.count += u32::from(new);
        new
    }

    fn remove(&mut self, index: u32) {
        if self.has(index) {
            self.words[index as usize / 64] &= !(1 << (index % 64));
            self.count -= 1;
        }
    }
}

/// The evidence that makes bytes of a partial file acceptable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The presence bit.
    Bits,
    /// A new hash of the bytes.
    Digests,
}

/// A chunk of an object: its number in the object, and its entry in the table.
pub(crate) type Numbered = (u32, Chunk);

impl Object {
    pub(crate) fn new(id: ObjectId, image: Arc<Image>, record: ObjectEntry, parts: Option<Arc<Parts>>) -> Self {
        let names_content = image.names_content(&record);
        Self { id, image, record, names_content, parts, sequence: Mutex::default(), agreed: AtomicU64::new(0) }
    }

    /// Whether all images agreed on the object in this generation.
    pub(crate) fn is_agreed(&self, generation: u64) -> bool {
        self.agreed.load(Ordering::SeqCst) == generation
    }

    pub(crate) fn set_agreed(&self, generation: u64) {
        self.agreed.store(generation, Ordering::SeqCst);
    }

    pub(crate) fn size(&self) -> u64 {
        self.record.size
    }

    /// The chunks that hold any of these bytes, ascending.
    pub(crate) fn chunks_of(&self, range: Range<u64>) -> impl Iterator<Item = Numbered> + '_ {
        let table = &self.image.table;
        let first = if range.is_empty() { None } else { table.chunk_at(&self.record, range.start) };
        let numbers = first.map_or(0..0, |first| first..self.record.chunks.end);
        numbers
            .map_while(|number| Some((number - self.record.chunks.start, table.chunk(number)?.chunk)))
            .take_while(move |(_, chunk)| chunk.object_offset < range.end)
    }

    /// The number in the table of the chunk with this byte.
    pub(crate) fn number_in_table_at(&self, offset: u64) -> Option<u32> {
        self.number_in_table(self.number_at(offset)?)
    }

    /// The number in the table of the object's chunk `number`.
    pub(crate) fn number_in_table(&self, number: u32) -> Option<u32> {
        self.record.chunks.start.checked_add(number)
    }

    /// All chunks of the object.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = Numbered> + '_ {
        self.chunks_of(0..u64::MAX)
    }

    /// The chunk as a part of a piece.
    pub(crate) fn piece_chunk(&self, chunk: &Chunk) -> PieceChunk {
        PieceChunk::new(self.id, &self.record, chunk)
    }

    /// As [`PieceChunk::name`].
    pub(crate) fn chunk_name(&self, chunk: &Chunk) -> ChunkName {
        self.piece_chunk(chunk).name(self.image.id)
    }

    /// Whether all encoded chunks together have at most `limit` bytes.
    pub(crate) fn encoded_bytes_within(&self, limit: u64) -> bool {
        let mut total = 0_u64;
        self.chunks().all(|(_, chunk)| {
            if let ChunkPlace::Blob { length, codec, .. } = chunk.place {
                total = total.saturating_add(if codec == Codec::Stream { u64::MAX } else { length });
            }
            total <= limit
        })
    }

    /// Whether the chunk's bytes are available without a request.
    pub(crate) fn has(&self, (number, chunk): &Numbered) -> bool {
        chunk.place == ChunkPlace::Zeros
            || self.parts.as_ref().is_some_and(|parts| parts.state.lock().present.has(*number))
    }

    /// Whether the chunk that starts at `offset` is local.
    pub(crate) fn has_at(&self, offset: u64) -> bool {
        self.chunks_of(offset..offset.saturating_add(1)).any(|numbered| self.has(&numbered))
    }

    /// Copies a local chunk into the assembly. `false` if it is not local after all, or too large to be hashed again.
    pub(crate) fn fill(&self, assembly: &mut Assembly, (number, chunk): &Numbered, trust: Trust) -> bool {
        if chunk.place == ChunkPlace::Zeros {
            return true;
        }
        let Some(parts) = &self.parts else { return false };
        let partial = {
            let state = parts.state.lock();
            state.partial.clone().filter(|_| state.present.has(*number))
        };
        let Some(partial) = partial else { return false };
        if trust == Trust::Digests && chunk.size > limits::CHUNK_BYTES {
            return false;
        }
        let loaded = match trust {
            Trust::Bits => {
                let (window, skip) = assembly.window(chunk.object_offset, chunk.size);
                partial.read_at(window, chunk.object_offset + skip).map_err(|error| error.to_string())
            }
            Trust::Digests => load_checked(&*partial, chunk).map(|bytes| assembly.fill(chunk.object_offset, &bytes)),
        };
        if let Err(reason) = &loaded {
            static UNUSABLE: LogLimit = LogLimit::new();
            if let Some(left_out) = UNUSABLE.admit() {
                tracing::warn!(object = %self.id, %reason, "a stored chunk is unusable and is fetched again{left_out}");
            }
            parts.state.lock().present.remove(*number);
        }
        loaded.is_ok()
    }

    /// Those of these chunks that an earlier process may have left in the partial file. Each chunk is searched for once.
    pub(crate) fn candidates(&self, store: &dyn ObjectStore, mut chunks: Vec<Numbered>) -> Vec<Numbered> {
        let Some(parts) = &self.parts else { return Vec::new() };
        chunks.retain(|(number, chunk)| can_be_hashed(chunk) && parts.state.lock().searched.insert(*number));
        if chunks.is_empty() {
            return chunks;
        }
        match self.partial(store) {
            Ok(partial) => chunks.retain(|(_, chunk)| partial.may_hold(chunk.object_offset, chunk.size)),
            Err(_) => chunks.clear(),
        }
        chunks
    }

    /// Whether an earlier process may have left the chunk, and it has not been searched for yet.
    pub(crate) fn may_have_left(&self, store: &dyn ObjectStore, (number, chunk): &Numbered) -> bool {
        let is_new = |parts: &Arc<Parts>| !parts.state.lock().searched.has(*number);
        can_be_hashed(chunk)
            && self.parts.as_ref().is_some_and(is_new)
            && self.partial(store).is_ok_and(|partial| partial.may_hold(chunk.object_offset, chunk.size))
    }

    /// Hashes the bytes of these chunks in the partial file, and returns the chunks that match.
    pub(crate) fn check(&self, store: &dyn ObjectStore, chunks: Vec<Numbered>) -> Vec<(u32, Verified<Bytes>)> {
        let (Some(parts), Ok(partial)) = (&self.parts, self.partial(store)) else { return Vec::new() };
        let checked = chunks.into_iter().filter_map(|(number, chunk)| {
            let bytes = load_checked(&*partial, &chunk).ok()?;
            parts.state.lock().present.insert(number);
            Some((number, bytes))
        });
        checked.collect()
    }

    /// The object's partial file, opened at the first call.
    pub(crate) fn partial(&self, store: &dyn ObjectStore) -> Result<Arc<dyn PartialObject>, StoreError> {
        // An object of one chunk is stored whole or not at all.
        let parts = self.parts.as_ref().ok_or(StoreError::Full)?;
        if let Some(partial) = &parts.state.lock().partial {
            return Ok(partial.clone());
        }
        let opened = store.partial(&self.id, parts.list.digest(), self.record.size)?;
        Ok(parts.state.lock().partial.get_or_insert(opened).clone())
    }

    /// Records that the chunk that starts at `offset` is verified and in the partial file.
    pub(crate) fn mark_present(&self, offset: u64) {
        if let (Some(parts), Some(number)) = (&self.parts, self.number_at(offset)) {
            parts.state.lock().present.insert(number);
        }
    }

    /// Claims the place of the chunk that starts at `offset` for bytes that are not checked yet. `false` if the chunk is local or
    /// another writer has claimed it: bytes that a presence bit covers must not be overwritten.
    pub(crate) fn begin_spooling(&self, offset: u64) -> bool {
        let (Some(parts), Some(number)) = (&self.parts, self.number_at(offset)) else { return false };
        let mut state = parts.state.lock();
        !state.present.has(number) && state.spooling.insert(number)
    }

    /// Releases the claim of [`Object::begin_spooling`]: the chunk was written, and `matched` its digest or did not.
    pub(crate) fn end_spooling(&self, offset: u64, matched: bool) {
        let (Some(parts), Some(number)) = (&self.parts, self.number_at(offset)) else { return };
        let mut state = parts.state.lock();
        state.spooling.remove(number);
        if matched {
            state.present.insert(number);
        }
    }

    fn number_at(&self, offset: u64) -> Option<u32> {
        self.chunks_of(offset..offset.saturating_add(1)).next().map(|(number, _)| number)
    }

    /// Whether all chunks are local, their bytes are the ones that the object's name is the digest of, and no other caller is
    /// making a local file of it. The caller then does so, and ends with [`Object::end_publishing`].
    pub(crate) fn claim_publishing(&self, most_zeros: u64) -> bool {
        let Some(parts) = self.parts.as_ref().filter(|_| self.names_content) else { return false };
        let needed = parts.needed.get_or_init(|| Needed::count(self));
        let ready = {
            let state = parts.state.lock();
            needed.zeros <= most_zeros && state.partial.is_some() && state.present.count == needed.chunks
        };
        ready && parts.publishing.send_if_modified(|publishing| !std::mem::replace(publishing, true))
    }

    /// Ends the claim: the object is a local file, or is known to differ from its name, or another chunk or a later read may retry.
    pub(crate) fn end_publishing(&self) {
        if let Some(parts) = &self.parts {
            parts.publishing.send_replace(false);
        }
    }

    /// Whether it is being made a local file.
    pub(crate) fn is_publishing(&self) -> bool {
        self.parts.as_ref().is_some_and(|parts| *parts.publishing.borrow())
    }

    /// Waits until it is no longer being published.
    pub(crate) async fn published(&self) {
        if let Some(parts) = &self.parts {
            // The sender is part of `parts`: this cannot fail.
            let _ = parts.publishing.subscribe().wait_for(|publishing| !publishing).await;
        }
    }

    /// Records bytes that were put into the kernel's page cache.
    pub(crate) fn note_paged_in(&self, bytes: Range<u64>) {
        self.sequence.lock().note_paged_in(bytes);
    }

    /// Records a read and returns the range to fetch ahead.
    pub(crate) fn note_read(&self, read: Range<u64>, window: Window) -> Option<Ahead> {
        self.sequence.lock().note(read, self.record.size, window)
    }
}

/// Whether the chunk can be hashed. One that an earlier process left and that cannot be hashed is fetched again.
fn can_be_hashed(chunk: &Chunk) -> bool {
    chunk.content_digest().is_some() && chunk.size <= limits::CHUNK_BYTES
}

/// Reads a whole chunk back and hashes it.
fn load_checked(partial: &dyn PartialObject, chunk: &Chunk) -> Result<Verified<Bytes>, String> {
    let size = usize::try_from(chunk.size).ok().filter(|_| chunk.size <= limits::CHUNK_BYTES);
    let mut bytes = vec![0; size.ok_or("too large to be checked in memory")?];
    partial.read_at(&mut bytes, chunk.object_offset).map_err(|error| error.to_string())?;
    let digest = chunk.content_digest().ok_or("its digest is unknown")?;
    Verified::check(digest, Bytes::from(bytes)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn bits_are_those_that_were_added_and_not_removed() {
        let (mut bits, mut expected) = (Bits::default(), BTreeSet::new());
        // Each number of three words, in an order that leaps between them; every third is removed again, and one that is not there.
        for number in (0..192).map(|step| step * 67 % 192) {
            assert_eq!(bits.insert(number), expected.insert(number));
            assert!(!bits.insert(number), "{number} twice");
            if number % 3 == 0 {
                bits.remove(number);
                bits.remove(number);
                expected.remove(&number);
            }
            bits.remove(1000);
            let has = |other: &u32| bits.has(*other);
            assert_eq!((0..1100).filter(has).collect::<BTreeSet<u32>>(), expected);
            assert_eq!(bits.count as usize, expected.len());
        }
    }
}
