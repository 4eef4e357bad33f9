//! Boot packs: from traces of starts to the bytes that the next start will touch, beside an index that is cut to fit them.
//!
//! What is in a pack is checked against the chunks of the image, so a pack can only hold whole chunks. Those of plain layers,
//! which this index describes anyhow, are cut where the traces touched parts of a large file. Layers with a table of contents have
//! the chunks that they have.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use tarpon_fetch::trace::{self, Trace};
use tarpon_fetch::{BootIndex, BootPiece, BootWriter, Fetcher};
use tarpon_layer::chunks::ChunkTable;
use tarpon_layer::{LayerIndex, ObjectId, Place};
use tarpon_oci::{Blob, Digest, NewDescriptor, Verified};
use tarpon_registry::Repository;
use tarpon_store::{MappedFile, Store};
use tokio::runtime::Handle;

use super::artifact::{self, Indexed};
use crate::prepare::{self, Layer};
use crate::{Error, ErrorKind, Result};

/// Bytes of an object that are read at a time where more of it is hashed.
const READ_BYTES: u64 = 4 << 20;

/// A boot pack, ready to be published.
#[derive(Debug, Clone, Serialize)]
pub struct BootPack {
    /// The way of starting that it is for.
    pub profile: String,
    /// Bytes of its frames.
    pub size: u64,
    /// Bytes that it decodes to.
    pub decoded_size: u64,
    /// Pieces of files in it.
    pub pieces: usize,
    /// Digest of its index.
    pub digest: Digest,
    /// Its index.
    #[serde(skip)]
    pub(super) index: Bytes,
    /// Its frames.
    #[serde(skip)]
    pub(super) frames: Bytes,
    /// The blob of its frames.
    #[serde(skip)]
    pub(super) blob: Blob,
}

impl BootPack {
    /// How the artifact describes it.
    pub(super) fn descriptors(&self) -> [NewDescriptor; 2] {
        let index = Blob { digest: self.digest, size: self.index.len() as u64 };
        artifact::boot(&self.profile, index, self.blob)
    }
}

/// What packs are made from. Reads contents, so none of it may run on a thread of the async runtime.
pub(super) struct Packer {
    store: Store,
    fetcher: Fetcher,
    runtime: Handle,
    _image: tarpon_fetch::ImageHandle,
}

impl Packer {
    /// A packer of an image whose layers are indexed.
    pub(super) fn new(store: Store, repository: &Repository, layers: &[Layer], name: &str) -> Result<Self> {
        let runtime = Handle::current();
        let fetcher = Fetcher::new(Arc::new(store.clone()), runtime.clone(), tarpon_fetch::Config::default());
        let _image = fetcher.add_image(table(layers)?, repository.blobs(), name);
        Ok(Self { store, fetcher, runtime, _image })
    }

    /// The layers, with their chunks cut at the ends of what the traces touched.
    pub(super) fn cut(&self, layers: &mut [Layer], traces: &[Trace]) -> Result<()> {
        let mut places: HashMap<ObjectId, BTreeSet<u64>> = HashMap::new();
        for piece in traces.iter().flat_map(trace::pieces) {
            places.entry(piece.object).or_default().extend([piece.range.start, piece.range.end]);
        }
        let places: HashMap<ObjectId, Vec<u64>> =
            places.into_iter().map(|(object, places)| (object, places.into_iter().collect())).collect();
        for layer in layers.iter_mut().filter(|layer| is_described(layer)) {
            let of = |object: &ObjectId| places.get(object).map_or(&[][..], Vec::as_slice);
            layer.index = layer.index.cut(of, |object, offset, size| self.digest(object, offset, size))?;
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

    /// The pack of one trace: every chunk that it touched, once, in the order of first touch.
    pub(super) fn pack(&self, layers: &[Layer], trace: &Trace) -> Result<BootPack> {
        let table = table(layers)?;
        let spool = tempfile::tempfile_in(self.store.run_folder()).map_err(|error| failed("make the pack", error))?;
        let mut writer = BootWriter::new(spool).map_err(|error| failed("make the pack", error))?;
        let (mut packed, mut decoded_size) = (HashSet::new(), 0);
        for touched in trace::pieces(trace) {
            // What the image does not have is of another image: a trace may be older than what it is used for.
            let Some(object) = table.find(&touched.object) else { continue };
            let first = table.chunk_at(&object, touched.range.start);
            for number in first.map_or(0..0, |first| first..object.chunks.end) {
                let Some(entry) = table.chunk(number) else { break };
                let chunk = entry.chunk;
                if chunk.object_offset >= touched.range.end {
                    break;
                }
                if chunk.place == Place::Zeros || !packed.insert(number) {
                    continue;
                }
                // A chunk that is too large to be checked in memory is left to the layer.
                let Ok(length) = u32::try_from(chunk.size) else { continue };
                if chunk.size > tarpon_oci::limits::CHUNK_BYTES {
                    continue;
                }
                let bytes = self.read(&touched.object, chunk.object_offset, chunk.size)?;
                let piece = BootPiece { object: touched.object, offset: chunk.object_offset, length };
                writer.add(piece, &bytes).map_err(|error| failed("make the pack", error))?;
                decoded_size += chunk.size;
            }
        }
        let (index, spool) =
            writer.finish(trace.header.profile.clone()).map_err(|error| failed("make the pack", error))?;
        finished(index, spool, packed.len(), decoded_size)
    }
}

fn finished(index: BootIndex, spool: File, pieces: usize, decoded_size: u64) -> Result<BootPack> {
    if pieces == 0 {
        return Err(failed("make the pack", "the trace touches nothing that this image has"));
    }
    let frames = Bytes::from_owner(MappedFile::of_unnamed(spool).map_err(|error| failed("make the pack", error))?);
    let (bytes, size) = (Verified::seal(Bytes::from(index.write())), index.blob.size);
    // Whoever reads it will ask the same; better to say it now.
    BootIndex::read(&bytes).map_err(|error| failed("make the pack", error))?;
    let digest = *bytes.digest();
    let blob = index.blob;
    Ok(BootPack { profile: index.profile, blob, size, decoded_size, pieces, digest, index: bytes.into_inner(), frames })
}

/// Where the bytes of the image are, by these indexes of its layers.
fn table(layers: &[Layer]) -> Result<ChunkTable<Bytes>> {
    let indexes: Vec<LayerIndex> = layers.iter().map(|layer| layer.index.clone()).collect();
    let table = prepare::chunks_of(&indexes, layers)?;
    ChunkTable::open(Bytes::from(table)).map_err(|error| failed("list the chunks", error))
}

pub(super) fn is_described(layer: &Layer) -> bool {
    layer.was_streamed() && layer.needs_index()
}

/// The layers that an index describes: those without a table of contents of their own, each once.
pub(super) fn indexed(layers: &[Layer]) -> Vec<Indexed> {
    let mut indexed: Vec<Indexed> = Vec::new();
    for layer in layers.iter().filter(|layer| is_described(layer)) {
        if !indexed.iter().any(|known| known.blob == layer.blob) {
            indexed.push(Indexed { blob: layer.blob, compression: layer.compression, index: layer.index.clone() });
        }
    }
    indexed
}

fn failed(step: &'static str, cause: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Other, step, cause)
}
