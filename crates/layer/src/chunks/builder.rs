//! Writes a chunk table.

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;

use tarpon_oci::{Blob, limits};

use super::format::{self, Counts, Layout};
use crate::decode::Compression;
use crate::index::{Chunk, ChunkPlace, Codec, LayerIndex, Node, ObjectId};
use crate::spans::Checkpoint;

/// Why a table cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkTableError {
    /// An unknown layer number.
    #[error("there is no layer {0}")]
    NoSuchLayer(u16),
    /// Over [`limits::LAYERS`].
    #[error("the image has more than {} layers", limits::LAYERS)]
    TooManyLayers,
    /// More than the table's numbers can count.
    #[error("the image has too many chunks")]
    TooManyChunks,
    /// The same content cannot have two sizes: a TOC is wrong.
    #[error("object {object} has two sizes, {one} and {other} bytes")]
    TwoSizes {
        /// The object.
        object: ObjectId,
        /// One size.
        one: u64,
        /// The other.
        other: u64,
    },
    /// Chunks that leave gaps, overlap, or end elsewhere than the object, or are checked in different ways.
    #[error("the chunks of object {0} do not cover it")]
    Gap(ObjectId),
}

/// Collects layers and objects of one image.
#[derive(Debug, Default)]
pub struct ChunkTableBuilder {
    layers: Vec<(Blob, Compression)>,
    objects: HashMap<ObjectId, Object>,
    chunks: Vec<Chunk>,
    checkpoints: Vec<(u16, Checkpoint)>,
}

#[derive(Debug, Clone, Copy)]
struct Object {
    size: u64,
    layer: u16,
    first: u32,
    count: u32,
    is_seekable: bool,
}

impl ChunkTableBuilder {
    /// A table without layers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a layer, and returns its number. `compression` is that of the whole blob.
    ///
    /// # Errors
    /// [`ChunkTableError::TooManyLayers`].
    pub fn add_layer(&mut self, blob: Blob, compression: Compression) -> Result<u16, ChunkTableError> {
        if self.layers.len() == limits::LAYERS {
            return Err(ChunkTableError::TooManyLayers);
        }
        self.layers.push((blob, compression));
        u16::try_from(self.layers.len() - 1).map_err(|_| ChunkTableError::TooManyLayers)
    }

    /// Adds the beginnings of the spans of a layer.
    pub fn add_checkpoints(&mut self, layer: u16, checkpoints: &[Checkpoint]) {
        self.checkpoints.extend(checkpoints.iter().map(|checkpoint| (layer, checkpoint.clone())));
    }

    /// Adds all files of a layer, and the beginnings of its spans.
    ///
    /// # Errors
    /// As [`ChunkTableBuilder::add_object`].
    pub fn add_index(&mut self, layer: u16, index: &LayerIndex) -> Result<(), ChunkTableError> {
        self.add_checkpoints(layer, &index.checkpoints);
        for entry in &index.entries {
            if let Node::File(content) = &entry.node {
                let first = content.first_chunk as usize;
                let chunks = index.chunks.get(first..).and_then(|rest| rest.get(..content.chunk_count as usize));
                let chunks = chunks.ok_or(ChunkTableError::Gap(content.object))?;
                self.add_object(content.object, content.size, layer, chunks)?;
            }
        }
        Ok(())
    }

    /// Adds one object, unless it exists already with chunks that are as good: of several places the table keeps one, and prefers
    /// those with random access. Empty objects are omitted.
    ///
    /// # Errors
    /// [`ChunkTableError`]: an unknown layer, chunks that do not cover the object, a second size of an object.
    pub fn add_object(
        &mut self,
        object: ObjectId,
        size: u64,
        layer: u16,
        chunks: &[Chunk],
    ) -> Result<(), ChunkTableError> {
        if usize::from(layer) >= self.layers.len() {
            return Err(ChunkTableError::NoSuchLayer(layer));
        }
        check_cover(size, chunks).ok_or(ChunkTableError::Gap(object))?;
        if size == 0 {
            return Ok(());
        }
        let is_seekable =
            !chunks.iter().any(|chunk| matches!(chunk.place, ChunkPlace::Blob { codec: Codec::Stream, .. }));
        let first = u32::try_from(self.chunks.len()).map_err(|_| ChunkTableError::TooManyChunks)?;
        let count = u32::try_from(chunks.len()).map_err(|_| ChunkTableError::TooManyChunks)?;
        first.checked_add(count).ok_or(ChunkTableError::TooManyChunks)?;
        let new = Object { size, layer, first, count, is_seekable };
        match self.objects.entry(object) {
            MapEntry::Occupied(old) if old.get().size != size => {
                return Err(ChunkTableError::TwoSizes { object, one: old.get().size, other: size });
            }
            MapEntry::Occupied(old) if old.get().is_seekable || !is_seekable => return Ok(()),
            MapEntry::Occupied(mut old) => *old.get_mut() = new,
            MapEntry::Vacant(vacant) => {
                vacant.insert(new);
            }
        }
        self.chunks.extend_from_slice(chunks);
        Ok(())
    }

    /// Returns the bytes of the table.
    ///
    /// # Errors
    /// [`ChunkTableError::TooManyChunks`].
    pub fn finish(mut self) -> Result<Vec<u8>, ChunkTableError> {
        let too_many = ChunkTableError::TooManyChunks;
        let mut objects: Vec<(ObjectId, Object)> = self.objects.into_iter().collect();
        objects.sort_unstable_by_key(|(_, object)| {
            (object.layer, offset(&self.chunks[object.first as usize]), object.first)
        });
        let mut by_id: Vec<u32> = (0..u32::try_from(objects.len()).map_err(|_| too_many)?).collect();
        by_id.sort_unstable_by_key(|number| objects[*number as usize].0);
        let mut id_places = vec![0_u32; objects.len()];
        for (place, number) in (0_u32..).zip(&by_id) {
            id_places[*number as usize] = place;
        }
        let (mut chunks, mut digests, mut records) = (Vec::new(), Vec::new(), Vec::new());
        let mut places = Vec::new();
        let mut next = 0_u32;
        for ((number, (_, object)), id_place) in (0_u32..).zip(&objects).zip(id_places) {
            records.extend_from_slice(&object.size.to_le_bytes());
            records.extend_from_slice(&next.to_le_bytes());
            records.extend_from_slice(&id_place.to_le_bytes());
            for chunk in &self.chunks[object.first as usize..][..object.count as usize] {
                push_chunk(&mut chunks, chunk, number, object.layer);
                digests.extend_from_slice(chunk.digest.as_bytes());
                if let ChunkPlace::Blob { offset, skip, .. } = chunk.place {
                    places.push((object.layer, offset, skip, next));
                }
                next += 1;
            }
        }
        places.sort_unstable();
        self.checkpoints.sort_unstable_by_key(|(layer, checkpoint)| (*layer, checkpoint.offset));
        let counts = Counts {
            layers: self.layers.len(),
            objects: objects.len(),
            chunks: next as usize,
            placed: places.len(),
            checkpoints: self.checkpoints.len(),
            windows: self.checkpoints.iter().map(|(_, checkpoint)| checkpoint.window.len()).sum(),
        };
        let layout = Layout::new(counts).ok_or(too_many)?;
        let mut table = Vec::with_capacity(layout.windows.end);
        table.extend_from_slice(format::MAGIC);
        let Counts { layers, objects: object_count, chunks: chunk_count, placed, checkpoints, windows } = counts;
        for count in [layers, object_count, chunk_count, placed, checkpoints, windows] {
            table.extend_from_slice(&u32::try_from(count).map_err(|_| too_many)?.to_le_bytes());
        }
        table.resize(format::HEADER, 0);
        for (blob, compression) in &self.layers {
            table.extend_from_slice(blob.digest.as_bytes());
            table.extend_from_slice(&blob.size.to_le_bytes());
            table.push(compression.number());
            table.extend_from_slice(&[0; 7]);
        }
        by_id.iter().for_each(|number| table.extend_from_slice(objects[*number as usize].0.as_bytes()));
        by_id.iter().for_each(|number| table.extend_from_slice(&number.to_le_bytes()));
        table.append(&mut records);
        table.append(&mut chunks);
        table.append(&mut digests);
        places.iter().for_each(|(_, _, _, number)| table.extend_from_slice(&number.to_le_bytes()));
        let mut window = 0_u64;
        for (layer, checkpoint) in &self.checkpoints {
            table.extend_from_slice(&checkpoint.offset.to_le_bytes());
            table.extend_from_slice(&window.to_le_bytes());
            let length = u32::try_from(checkpoint.window.len()).map_err(|_| too_many)?;
            table.extend_from_slice(&length.to_le_bytes());
            table.extend_from_slice(&layer.to_le_bytes());
            table.extend_from_slice(&[checkpoint.used_bits, 0]);
            window += u64::from(length);
        }
        self.checkpoints.iter().for_each(|(_, checkpoint)| table.extend_from_slice(&checkpoint.window));
        Ok(table)
    }
}

fn offset(chunk: &Chunk) -> u64 {
    match chunk.place {
        ChunkPlace::Zeros => 0,
        ChunkPlace::Blob { offset, .. } => offset,
    }
}

/// Checks that the chunks cover `size` bytes without gap or overlap, and are checked in one way.
fn check_cover(size: u64, chunks: &[Chunk]) -> Option<()> {
    if !chunks.windows(2).all(|pair| pair[0].place.names_content() == pair[1].place.names_content()) {
        return None;
    }
    let end = chunks.iter().try_fold(0_u64, |place, chunk| {
        if chunk.object_offset != place || chunk.size == 0 {
            return None;
        }
        place.checked_add(chunk.size)
    })?;
    (end == size).then_some(())
}

fn push_chunk(table: &mut Vec<u8>, chunk: &Chunk, object: u32, layer: u16) {
    let (codec, offset, length, skip) = match chunk.place {
        ChunkPlace::Zeros => (format::ZEROS, 0, 0, 0),
        ChunkPlace::Blob { codec, offset, length, skip } => (codec.number(), offset, length, skip),
    };
    for number in [chunk.object_offset, chunk.size, offset, length, skip] {
        table.extend_from_slice(&number.to_le_bytes());
    }
    table.extend_from_slice(&object.to_le_bytes());
    table.extend_from_slice(&layer.to_le_bytes());
    table.extend_from_slice(&[codec, 0]);
}
