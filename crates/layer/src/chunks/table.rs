//! Reads a chunk table in place.

use std::ops::Range;

use tarpon_oci::{Blob, Digest, limits};

use super::format::{self, CHECKPOINT, CHUNK, Counts, HEADER, ID, LAYER, Layout, NUMBER, OBJECT};
use crate::decode::Compression;
use crate::index::{Chunk, ChunkPlace, Codec, ObjectId};

/// The file is not a chunk table (of this version).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a chunk table of this version: {0}")]
pub struct InvalidChunkTable(&'static str);

/// An object of the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectEntry {
    /// Its number in this table.
    pub number: u32,
    /// Size in bytes.
    pub size: u64,
    /// Numbers of its chunks, ascending by offset in the object. Never empty.
    pub chunks: Range<u32>,
}

/// A chunk of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkEntry {
    /// The chunk.
    pub chunk: Chunk,
    /// Number of its layer.
    pub layer: u16,
    /// Number of its object ([`ChunkTable::object`]).
    pub object: u32,
}

/// A layer of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerEntry {
    /// Its blob.
    pub blob: Blob,
    /// Compression of the whole blob.
    pub compression: Compression,
}

/// The beginning of a span in the middle of a gzip member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointEntry<'a> {
    /// As [`Checkpoint::used_bits`](crate::spans::Checkpoint::used_bits).
    pub used_bits: u8,
    /// As [`Checkpoint::window`](crate::spans::Checkpoint::window).
    pub window: &'a [u8],
}

/// A checked chunk table in borrowed memory, for example a mapped file.
#[derive(Debug, Clone)]
pub struct ChunkTable<B> {
    bytes: B,
    layout: Layout,
}

impl<B: AsRef<[u8]>> ChunkTable<B> {
    /// Checks the whole table once. `bytes` must not change afterwards.
    ///
    /// # Errors
    /// [`InvalidChunkTable`]: rebuild it.
    pub fn open(bytes: B) -> Result<Self, InvalidChunkTable> {
        let layout = read_layout(bytes.as_ref())?;
        let table = Self { bytes, layout };
        table.check_layers()?;
        table.check_objects()?;
        table.check_places()?;
        Ok(table)
    }

    /// Number of objects.
    pub fn object_count(&self) -> u32 {
        count(&self.layout.ids, ID)
    }

    /// Number of chunks.
    pub fn chunk_count(&self) -> u32 {
        count(&self.layout.chunks, CHUNK)
    }

    /// Number of layers.
    pub fn layer_count(&self) -> u16 {
        u16::try_from(count(&self.layout.layers, LAYER)).unwrap_or(u16::MAX)
    }

    /// The object of this name, if the image has it (and it is not empty).
    pub fn find(&self, id: &ObjectId) -> Option<ObjectEntry> {
        let (ids, _) = self.part(&self.layout.ids).as_chunks::<ID>();
        let place = u32::try_from(ids.binary_search(id.as_bytes()).ok()?).ok()?;
        let number = nth::<NUMBER>(self.part(&self.layout.numbers), place)?;
        self.object(u32::from_le_bytes(*number)).map(|(_, entry)| entry)
    }

    /// The names of objects that start with the first `bits` bits (1 to 64) of `start`, in their order.
    pub fn starting_with(&self, start: u64, bits: u32) -> impl Iterator<Item = ObjectId> {
        let first = move |id: &[u8; ID]| {
            let [a, b, c, d, e, f, g, h, ..] = *id;
            u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> (u64::BITS - bits)
        };
        let wanted = start >> (u64::BITS - bits);
        let (ids, _) = self.part(&self.layout.ids).as_chunks::<ID>();
        let place = ids.partition_point(|id| first(id) < wanted);
        ids.iter().skip(place).take_while(move |id| first(id) == wanted).map(|id| Digest::from_bytes(*id))
    }

    /// The object with this number.
    pub fn object(&self, number: u32) -> Option<(ObjectId, ObjectEntry)> {
        let objects = self.part(&self.layout.objects);
        let object = nth::<OBJECT>(objects, number)?;
        let next = number.checked_add(1).and_then(|next| nth::<OBJECT>(objects, next));
        let end = next.map_or(self.chunk_count(), |next| number_at(next, 8));
        let id = nth::<ID>(self.part(&self.layout.ids), number_at(object, 12))?;
        let chunks = number_at(object, 8)..end;
        Some((Digest::from_bytes(*id), ObjectEntry { number, size: long_at(object, 0), chunks }))
    }

    /// All objects. Objects whose bytes are neighbours in a layer are adjacent.
    pub fn objects(&self) -> impl Iterator<Item = (ObjectId, ObjectEntry)> {
        (0..self.object_count()).filter_map(|number| self.object(number))
    }

    /// The chunk with this number.
    pub fn chunk(&self, number: u32) -> Option<ChunkEntry> {
        let record = nth::<CHUNK>(self.part(&self.layout.chunks), number)?;
        let digest = Digest::from_bytes(*nth::<ID>(self.part(&self.layout.digests), number)?);
        let place = match Codec::from_number(record[46]) {
            None => ChunkPlace::Zeros,
            Some(codec) => ChunkPlace::Blob {
                codec,
                offset: long_at(record, 16),
                length: long_at(record, 24),
                skip: long_at(record, 32),
            },
        };
        let chunk = Chunk { object_offset: long_at(record, 0), size: long_at(record, 8), digest, place };
        Some(ChunkEntry { chunk, layer: short_at(record, 44), object: number_at(record, 40) })
    }

    /// The chunk of `object` that contains the byte at `offset`.
    pub fn chunk_at(&self, object: &ObjectEntry, offset: u64) -> Option<u32> {
        if offset >= object.size {
            return None;
        }
        let (records, _) = self.part(&self.layout.chunks).as_chunks::<CHUNK>();
        let run = records.get(object.chunks.start as usize..object.chunks.end as usize)?;
        let after = run.partition_point(|record| long_at(record, 0) <= offset);
        object.chunks.start.checked_add(u32::try_from(after).ok()?.checked_sub(1)?)
    }

    /// Numbers of the chunks of `layer` that start in `offsets` of its blob (for streams: of the decoded layer), ascending by
    /// place. With `..` of one offset and the next: all chunks that share a gzip member.
    pub fn by_place(&self, layer: u16, offsets: Range<u64>) -> impl DoubleEndedIterator<Item = u32> {
        let (places, _) = self.part(&self.layout.places).as_chunks::<NUMBER>();
        let first_from = |offset: u64| places.partition_point(|number| self.place_key(number) < (layer, offset));
        let start = first_from(offsets.start);
        let end = first_from(offsets.end).max(start);
        places[start..end].iter().map(|number| u32::from_le_bytes(*number))
    }

    /// The layer with this number.
    pub fn layer(&self, number: u16) -> Option<LayerEntry> {
        let record = nth::<LAYER>(self.part(&self.layout.layers), u32::from(number))?;
        let digest = Digest::from_bytes(*record.first_chunk()?);
        let blob = Blob { digest, size: long_at(record, 32) };
        Some(LayerEntry { blob, compression: Compression::from_number(record[40])? })
    }

    /// The checkpoint at this offset of a layer's blob.
    pub fn checkpoint(&self, layer: u16, offset: u64) -> Option<CheckpointEntry<'_>> {
        let (records, _) = self.part(&self.layout.checkpoints).as_chunks::<CHECKPOINT>();
        let key = |record: &[u8; CHECKPOINT]| (short_at(record, 20), long_at(record, 0));
        let record = &records[records.binary_search_by_key(&(layer, offset), key).ok()?];
        let start = usize::try_from(long_at(record, 8)).ok()?;
        let window = self.part(&self.layout.windows).get(start..)?.get(..number_at(record, 16) as usize)?;
        Some(CheckpointEntry { used_bits: record[22], window })
    }

    fn part(&self, range: &Range<usize>) -> &[u8] {
        // The layout was compared with the length when the table was opened.
        self.bytes.as_ref().get(range.clone()).unwrap_or_default()
    }

    fn place_key(&self, number: &[u8; NUMBER]) -> (u16, u64) {
        let record = nth::<CHUNK>(self.part(&self.layout.chunks), u32::from_le_bytes(*number));
        record.map_or((u16::MAX, u64::MAX), |record| (short_at(record, 44), long_at(record, 16)))
    }

    fn check_layers(&self) -> Result<(), InvalidChunkTable> {
        if count(&self.layout.layers, LAYER) as usize > limits::LAYERS {
            return Err(InvalidChunkTable("too many layers"));
        }
        for number in 0..self.layer_count() {
            self.layer(number).ok_or(InvalidChunkTable("an unknown compression"))?;
        }
        Ok(())
    }

    /// Checks that ids ascend, each belongs to one object, and the objects divide the chunks among themselves.
    fn check_objects(&self) -> Result<(), InvalidChunkTable> {
        let (ids, _) = self.part(&self.layout.ids).as_chunks::<ID>();
        if !ids.is_sorted_by(is_before) {
            return Err(InvalidChunkTable("object ids out of order"));
        }
        let (numbers, _) = self.part(&self.layout.numbers).as_chunks::<NUMBER>();
        let (objects, _) = self.part(&self.layout.objects).as_chunks::<OBJECT>();
        let (chunks, _) = self.part(&self.layout.chunks).as_chunks::<CHUNK>();
        let layers = count(&self.layout.layers, LAYER);
        let mut rest = chunks;
        for (number, object) in (0_u32..).zip(objects) {
            // Every object must be found by its id, so no two have the same one.
            let found = numbers.get(number_at(object, 12) as usize);
            if found != Some(&number.to_le_bytes()) {
                return Err(InvalidChunkTable("an object without an id"));
            }
            if number_at(object, 8) as usize != chunks.len() - rest.len() {
                return Err(InvalidChunkTable("an object without its chunks"));
            }
            let count = check_run(rest, number, long_at(object, 0), layers)?;
            rest = &rest[count..];
        }
        if rest.is_empty() { Ok(()) } else { Err(InvalidChunkTable("chunks without an object")) }
    }

    /// Checks that the order by place is strictly ascending and has exactly the chunks that have a place.
    fn check_places(&self) -> Result<(), InvalidChunkTable> {
        let (places, _) = self.part(&self.layout.places).as_chunks::<NUMBER>();
        let (chunks, _) = self.part(&self.layout.chunks).as_chunks::<CHUNK>();
        let mut before = None;
        for place in places {
            let number = u32::from_le_bytes(*place);
            let chunk = chunks.get(number as usize).filter(|chunk| chunk[46] != format::ZEROS);
            let chunk = chunk.ok_or(InvalidChunkTable("a place without a chunk"))?;
            let key = Some((short_at(chunk, 44), long_at(chunk, 16), long_at(chunk, 32), number));
            if key <= before {
                return Err(InvalidChunkTable("places out of order"));
            }
            before = key;
        }
        let placed = chunks.iter().filter(|chunk| chunk[46] != format::ZEROS).count();
        if placed == places.len() { Ok(()) } else { Err(InvalidChunkTable("chunks without a place")) }
    }
}

/// Checks that the first chunks cover `size` bytes of `object`. Returns their number, at least one.
fn check_run(chunks: &[[u8; CHUNK]], object: u32, size: u64, layers: u32) -> Result<usize, InvalidChunkTable> {
    let names_content = |chunk: &[u8; CHUNK]| Codec::from_number(chunk[46]).is_none_or(Codec::names_content);
    // The name of an object determines how its chunks are checked: all in one way.
    let is_named_by_content = chunks.first().is_none_or(names_content);
    let mut place = 0_u64;
    for (number, chunk) in chunks.iter().enumerate() {
        let length = long_at(chunk, 8);
        let is_right = long_at(chunk, 0) == place
            && length != 0
            && number_at(chunk, 40) == object
            && u32::from(short_at(chunk, 44)) < layers
            && (chunk[46] == format::ZEROS || Codec::from_number(chunk[46]).is_some())
            && names_content(chunk) == is_named_by_content;
        if !is_right {
            return Err(InvalidChunkTable("a chunk that is not where it should be"));
        }
        place = place.checked_add(length).ok_or(InvalidChunkTable("chunks that wrap around"))?;
        check_extent(chunk)?;
        if place == size {
            return Ok(number + 1);
        }
    }
    Err(InvalidChunkTable("chunks that do not cover their object"))
}

/// Compares the bytes, without a call for each pair.
fn is_before(one: &[u8; ID], other: &[u8; ID]) -> bool {
    let (start, other_start) = (u64::from_be_bytes(array(one, 0)), u64::from_be_bytes(array(other, 0)));
    start < other_start || (start == other_start && one < other)
}

/// Checks that the range of a chunk in its blob does not wrap around.
fn check_extent(chunk: &[u8; CHUNK]) -> Result<(), InvalidChunkTable> {
    let end = long_at(chunk, 16).checked_add(long_at(chunk, 24));
    let decoded = long_at(chunk, 32).checked_add(long_at(chunk, 8));
    end.and(decoded).map(|_| ()).ok_or(InvalidChunkTable("a chunk that wraps around"))
}

fn read_layout(bytes: &[u8]) -> Result<Layout, InvalidChunkTable> {
    let header: &[u8; HEADER] = bytes.first_chunk().ok_or(InvalidChunkTable("too short"))?;
    if !header.starts_with(format::MAGIC) {
        return Err(InvalidChunkTable("unknown magic"));
    }
    if header[40..] != [0; HEADER - 40] {
        return Err(InvalidChunkTable("unknown header"));
    }
    let counted = |at| number_at(header, at) as usize;
    let counts = Counts {
        layers: counted(16),
        objects: counted(20),
        chunks: counted(24),
        placed: counted(28),
        checkpoints: counted(32),
        windows: counted(36),
    };
    let layout = Layout::new(counts);
    let layout = layout.ok_or(InvalidChunkTable("too long"))?;
    if layout.windows.end == bytes.len() { Ok(layout) } else { Err(InvalidChunkTable("wrong length")) }
}

fn count(part: &Range<usize>, size: usize) -> u32 {
    u32::try_from(part.len() / size).unwrap_or(u32::MAX)
}

fn nth<const N: usize>(part: &[u8], number: u32) -> Option<&[u8; N]> {
    part.as_chunks::<N>().0.get(number as usize)
}

#[inline]
fn long_at(record: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(record, at))
}

#[inline]
fn number_at(record: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(record, at))
}

#[inline]
fn short_at(record: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(record, at))
}

/// Records are longer than any field's end, by the constants of the format.
#[inline]
fn array<const N: usize>(record: &[u8], at: usize) -> [u8; N] {
    record[at..].first_chunk().copied().unwrap_or([0; N])
}
