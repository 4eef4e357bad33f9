//! Boot packs: from recorded starts to the bytes that the next start will touch, beside an index that is cut to fit them.
//!
//! The content of a pack is checked against the chunks of the image, so a pack can only hold whole chunks. Those of plain layers, which
//! this index describes anyway, are cut where the traces touched parts of a large file. Layers with a table of contents keep their chunks.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use tarpon_fetch::{BOOT_PIECES, BootIndex, BootPiece, BootWriter, Fetcher};
use tarpon_images::PREDICTED_PROFILE;
use tarpon_images::index::artifact::{self, Indexed};
use tarpon_images::prepare::assemble::chunks_of;
use tarpon_images::prepare::layer::Layer;
use tarpon_layer::chunks::ChunkTable;
use tarpon_layer::{ChunkPlace, LayerIndex, ObjectId};
use tarpon_oci::{Blob, Digest, NewDescriptor, RunConfig, Source, Verified, limits};
use tarpon_prediction::predict;
use tarpon_registry::Repository;
use tarpon_store::{MappedFile, Store};
use tarpon_trace::{self as trace, Trace};
use tokio::runtime::Handle;

use super::readers::is_same_repository;
use crate::{Cause, Error, ErrorKind, Result};

const STEP: &str = "make the boot pack";
/// Bytes read at a time where a longer part of an object is hashed.
const READ_BYTES: u64 = 4 << 20;
/// Bytes of a piece of a predicted start: a reader waits for the whole frame of a piece, which has 256 KiB.
const PREDICTED_PIECE_BYTES: usize = 128 << 10;

/// The parts of a recorded start that a pack is made from.
#[derive(Debug, Clone)]
pub(super) struct Start {
    /// Its profile.
    pub(super) profile: String,
    /// What it touches, in the order of first touch.
    pub(super) pieces: Vec<(ObjectId, Range<u64>)>,
    /// Whether it was observed beside a predicted pack, and lacks what that one had.
    pub(super) is_partial: bool,
}

impl Start {
    /// The start that was traced.
    pub(super) fn traced(trace: &Trace) -> Self {
        let pieces = trace::pieces(trace).into_iter().map(|piece| (piece.object, piece.range)).collect();
        Self { profile: trace.header.profile.clone(), pieces, is_partial: false }
    }

    /// The start that was learned.
    pub(super) fn learned(trace: &Trace) -> Self {
        Self { is_partial: true, ..Self::traced(trace) }
    }

    /// The start for which a pack was made. Contents have the same names in every image.
    pub(super) fn packed(index: &BootIndex) -> Self {
        let piece = |piece: &BootPiece| (piece.object, piece.offset..piece.offset.saturating_add(piece.length.into()));
        let pieces = index.frames.iter().flat_map(|frame| &frame.pieces).map(piece).collect();
        Self { profile: index.profile.clone(), pieces, is_partial: false }
    }

    /// Number of files and bytes that it touches.
    fn extent(&self) -> (usize, u64) {
        let files: HashSet<&ObjectId> = self.pieces.iter().map(|(object, _)| object).collect();
        (files.len(), self.pieces.iter().map(|(_, range)| range.end - range.start).sum())
    }
}

/// How much of an earlier recorded start the image has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TraceCoverage {
    /// Files that the start touched.
    pub files: usize,
    /// Bytes of them.
    pub bytes: u64,
    /// Those files that the image has.
    pub kept_files: usize,
    /// Those bytes that the image has.
    pub kept_bytes: u64,
}

/// A boot pack, ready to be published.
#[derive(Debug, Clone, Serialize)]
pub struct BootPack {
    /// The profile of the start.
    pub profile: String,
    /// Bytes of its frames.
    pub size: u64,
    /// Decoded size in bytes.
    pub decoded_size: u64,
    /// Pieces of files in it.
    pub pieces: usize,
    /// Digest of its index.
    pub digest: Digest,
    /// How well it fits the start that it was made from. None: it was taken over from the index that this one replaces.
    pub fit: Option<TraceCoverage>,
    /// Its index.
    #[serde(skip)]
    pub(super) index: Bytes,
    /// Its frames, unless they are published already.
    #[serde(skip)]
    pub(super) frames: Option<Bytes>,
    /// The repository that has its frames, if that is an index repository and not the image's.
    #[serde(skip)]
    pub(super) place: Option<String>,
    /// The blob of its frames.
    #[serde(skip)]
    pub(super) blob: Blob,
}

impl BootPack {
    /// A pack that is already beside the image.
    pub(super) fn published(bytes: Verified<Bytes>, index: &BootIndex) -> Self {
        let pieces = || index.frames.iter().flat_map(|frame| &frame.pieces);
        Self {
            profile: index.profile.clone(),
            size: index.blob.size,
            decoded_size: pieces().map(|piece| u64::from(piece.length)).sum(),
            pieces: pieces().count(),
            digest: *bytes.digest(),
            fit: None,
            index: bytes.into_inner(),
            frames: None,
            place: None,
            blob: index.blob,
        }
    }

    /// The same pack, whose frames are in this index repository.
    pub(super) fn at(self, place: &str) -> Self {
        Self { place: Some(place.to_owned()), ..self }
    }

    /// Whether its frames are in the repository `destination`. `image`: the image that it is of.
    pub(super) fn is_at(&self, destination: &Source, image: &Source) -> bool {
        match &self.place {
            Some(place) => *place == destination.to_string(),
            None => is_same_repository(destination, image),
        }
    }

    /// Its descriptors in the artifact.
    pub(super) fn descriptors(&self) -> [NewDescriptor; 2] {
        let index = Blob { digest: self.digest, size: self.index.len() as u64 };
        artifact::boot(&self.profile, index, self.blob)
    }
}

/// Makes packs. Reads contents, so none of it may run on a thread of the async runtime.
pub(super) struct Packer {
    store: Store,
    fetcher: Fetcher,
    runtime: Handle,
    _image: tarpon_fetch::ImageHandle,
}

impl Packer {
    /// A packer of an image with these layers, whose indexes are apart.
    pub(super) fn new(
        store: Store,
        repository: &Repository,
        layers: &[Layer],
        indexes: &[LayerIndex],
        name: &str,
    ) -> Result<Self> {
        let runtime = Handle::current();
        let fetcher = Fetcher::new(Arc::new(store.clone()), runtime.clone(), tarpon_fetch::Config::default());
        let _image = fetcher.add_image(table(layers, indexes)?, repository.blobs(), name);
        Ok(Self { store, fetcher, runtime, _image })
    }

    /// What the start of the image's command reads, as far as that can be predicted. None: nothing is known of it.
    pub(super) fn predict(&self, indexes: &[LayerIndex], config: &RunConfig) -> Result<Option<Start>> {
        let read = |object: &ObjectId, range: Range<u64>| {
            self.read(object, range.start, range.end - range.start).map_err(tarpon_prediction::Error::from)
        };
        let found = predict(indexes, config, &read).map_err(|error| failed("predict the start", error))?;
        let pieces: Vec<_> = found.into_iter().flat_map(|(object, range)| parts(object, range)).collect();
        Ok((!pieces.is_empty()).then(|| Start { profile: PREDICTED_PROFILE.to_owned(), pieces, is_partial: false }))
    }

    /// Cuts the chunks of the layers at the ends of what the starts touch.
    pub(super) fn cut<'a>(
        &self,
        layers: &[Layer],
        indexes: &mut [LayerIndex],
        starts: impl IntoIterator<Item = &'a Start>,
    ) -> Result<()> {
        let mut places: HashMap<ObjectId, BTreeSet<u64>> = HashMap::new();
        for (object, range) in starts.into_iter().flat_map(|start| &start.pieces) {
            places.entry(*object).or_default().extend([range.start, range.end]);
        }
        let places: HashMap<ObjectId, Vec<u64>> =
            places.into_iter().map(|(object, places)| (object, places.into_iter().collect())).collect();
        for (_, index) in layers.iter().zip(indexes).filter(|(layer, _)| is_described(layer)) {
            let of = |object: &ObjectId| places.get(object).map_or(&[][..], Vec::as_slice);
            *index = index.cut(of, |object, offset, size| self.digest(object, offset, size))?;
        }
        Ok(())
    }

    fn digest(&self, object: &ObjectId, offset: u64, size: u64) -> Result<Digest> {
        let mut hasher = tarpon_oci::Hasher::new();
        let mut done = 0;
        while done < size {
            let length = (size - done).min(READ_BYTES);
            hasher.update(&self.read(object, offset + done, length)?);
            done += length;
        }
        Ok(hasher.finish())
    }

    fn read(&self, object: &ObjectId, offset: u64, length: u64) -> Result<Bytes> {
        let read = self.runtime.block_on(self.fetcher.read(object, offset, length));
        let bytes = read.map_err(|error| failed("read what was touched", error))?.into_bytes();
        if bytes.len() as u64 == length { Ok(bytes) } else { Err(failed("read what was touched", "a file is shorter")) }
    }

    /// The packs of these starts, from layers that were cut for them.
    pub(super) fn packs(
        &self,
        layers: &[Layer],
        indexes: &[LayerIndex],
        starts: &[Start],
    ) -> Result<Vec<Option<BootPack>>> {
        if starts.is_empty() {
            return Ok(Vec::new());
        }
        let table = table(layers, indexes)?;
        starts.iter().map(|start| self.pack(&table, start)).collect()
    }

    /// The pack of one start: every chunk that it touches, once, in the order of first touch. None: the image has nothing of it.
    fn pack(&self, table: &ChunkTable<Bytes>, start: &Start) -> Result<Option<BootPack>> {
        let spool = tempfile::tempfile_in(self.store.run_folder()).map_err(|error| failed(STEP, error))?;
        let mut writer = BootWriter::new(spool).map_err(|error| failed(STEP, error))?;
        let (mut packed, mut decoded_size) = (HashSet::new(), 0);
        let (mut kept_files, mut kept_bytes) = (HashSet::new(), 0);
        for (id, range) in &start.pieces {
            // Missing objects belong to another image: a start may be older than the image it is used for.
            let Some(object) = table.find(id) else { continue };
            kept_files.insert(*id);
            kept_bytes += range.end.min(object.size).saturating_sub(range.start);
            let first = table.chunk_at(&object, range.start);
            for number in first.map_or(0..0, |first| first..object.chunks.end) {
                let Some(entry) = table.chunk(number) else { break };
                let chunk = entry.chunk;
                if chunk.object_offset >= range.end {
                    break;
                }
                if chunk.place == ChunkPlace::Zeros || packed.len() == BOOT_PIECES || !packed.insert(number) {
                    continue;
                }
                // A chunk that is too large to be checked in memory is left to the layer.
                let Some(length) = u32::try_from(chunk.size).ok().filter(|_| chunk.size <= limits::CHUNK_BYTES) else {
                    continue;
                };
                let bytes = self.read(id, chunk.object_offset, chunk.size)?;
                let piece = BootPiece { object: *id, offset: chunk.object_offset, length };
                writer.add(piece, &bytes).map_err(|error| failed(STEP, error))?;
                decoded_size += chunk.size;
            }
        }
        let (index, spool) = writer.finish(start.profile.clone()).map_err(|error| failed(STEP, error))?;
        let (files, bytes) = start.extent();
        let fit = TraceCoverage { files, bytes, kept_files: kept_files.len(), kept_bytes };
        if index.frames.is_empty() { Ok(None) } else { finished(&index, spool, decoded_size, fit).map(Some) }
    }
}

/// A range as pieces of a pack.
fn parts(object: ObjectId, range: Range<u64>) -> impl Iterator<Item = (ObjectId, Range<u64>)> {
    let starts = (range.start..range.end).step_by(PREDICTED_PIECE_BYTES);
    starts.map(move |start| (object, start..range.end.min(start.saturating_add(PREDICTED_PIECE_BYTES as u64))))
}

fn finished(index: &BootIndex, spool: File, decoded_size: u64, fit: TraceCoverage) -> Result<BootPack> {
    let frames = Bytes::from_owner(MappedFile::of_unnamed(spool).map_err(|error| failed(STEP, error))?);
    let bytes = Verified::seal(Bytes::from(index.write()));
    // Readers make the same check; fail early.
    BootIndex::read(&bytes).map_err(|error| failed(STEP, error))?;
    Ok(BootPack { decoded_size, fit: Some(fit), frames: Some(frames), ..BootPack::published(bytes, index) })
}

/// The places of the image's bytes, by these indexes of its layers.
fn table(layers: &[Layer], indexes: &[LayerIndex]) -> Result<ChunkTable<Bytes>> {
    let table = chunks_of(indexes, layers)?;
    ChunkTable::open(Bytes::from(table)).map_err(|error| failed("list the chunks", error))
}

pub(super) fn is_described(layer: &Layer) -> bool {
    layer.was_streamed() && layer.needs_index()
}

/// The layers that an index describes: those without a table of contents of their own, each once.
pub(super) fn indexed(layers: &[Layer], indexes: Vec<LayerIndex>) -> Vec<Indexed> {
    let mut indexed: Vec<Indexed> = Vec::new();
    for (layer, index) in layers.iter().zip(indexes).filter(|(layer, _)| is_described(layer)) {
        if !indexed.iter().any(|known| known.blob == layer.blob) {
            indexed.push(Indexed { blob: layer.blob, compression: layer.compression, index });
        }
    }
    indexed
}

fn failed(step: &'static str, cause: impl Into<Cause>) -> Error {
    Error::new(ErrorKind::Other, step, cause)
}
