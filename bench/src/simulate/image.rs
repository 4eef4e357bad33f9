//! [`SimulatedImage`]: an image of the shape of a recorded one. Its bytes are made up, and so are their digests: the planner verifies them
//! as it does real ones.
//!
//! An encoded piece is its own number, followed by zeros. To decode it is to copy what the number stands for. All hosts share the bytes.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use rustix::fs::{MemfdFlags, memfd_create};
use tarpon_fetch::{BootFrame, BootIndex, BootPiece};
use tarpon_layer::chunks::{CheckpointEntry, ChunkTable, ChunkTableBuilder};
use tarpon_layer::decode::{Compression, DecodeError, DecodedLayer, Decoder, LayerInput};
use tarpon_layer::{Chunk, ChunkPlace, Codec};
use tarpon_oci::{Blob, Digest, Hasher};

use super::flow::BlobName;
use super::shape::{ChunkShape, Shape};

/// Where a piece has its number: behind the byte that two spans of a deflate stream may share.
const NUMBER_AT: usize = 1;
const NUMBER_BYTES: usize = 4;

/// An object and where its bytes are.
pub(super) struct SimulatedObject {
    pub(super) digest: Digest,
    pub(super) size: u64,
    pub(super) chunks: Vec<SimulatedChunk>,
    file: OnceLock<File>,
}

/// A chunk: its range in the object, and its bytes.
pub(super) struct SimulatedChunk {
    pub(super) at: u64,
    pub(super) bytes: Bytes,
}

/// The image, without the state of any host.
pub(super) struct SimulatedImage {
    pub(super) table: ChunkTable<Bytes>,
    pub(super) pack: BootIndex,
    pub(super) objects: Vec<SimulatedObject>,
    pub(super) numbers: HashMap<Digest, usize>,
    pub(super) decoder: Arc<Numbered>,
    layer: (Blob, Bytes),
    frames: Bytes,
}

/// Bytes by the number of their piece.
pub(super) struct Numbered(Vec<Bytes>);

impl SimulatedImage {
    pub(super) fn new(shape: &Shape) -> Result<Self> {
        let mut decoded = decoded_pieces(shape);
        let pieces: Vec<Bytes> = decoded.values_mut().map(|bytes| Bytes::from(std::mem::take(bytes))).collect();
        let places: HashMap<(u64, u64), usize> = decoded.keys().copied().zip(0..).collect();
        let layer = encoded(shape.layer_bytes, decoded.keys().map(|(offset, _)| *offset), 0)?;
        let blob = Blob { digest: Digest::of(b"the layer"), size: shape.layer_bytes };
        let mut builder = ChunkTableBuilder::new();
        let number = builder.add_layer(blob, Compression::Gzip)?;
        let (mut objects, mut numbers) = (Vec::new(), HashMap::new());
        for chunks in &shape.objects {
            let (object, table) = object(chunks, &pieces, &places)?;
            builder.add_object(object.digest, object.size, number, &table)?;
            numbers.insert(object.digest, objects.len());
            objects.push(object);
        }
        let table = ChunkTable::open(Bytes::from(builder.finish()?)).context("the table of the image is invalid")?;
        let (pack, frames, contents) = pack(shape, &objects, pieces.len())?;
        let decoder = Arc::new(Numbered(pieces.into_iter().chain(contents).collect()));
        Ok(Self { table, pack, objects, numbers, decoder, layer: (blob, layer), frames })
    }

    /// The name and the bytes of a blob.
    pub(super) fn blob(&self, digest: &Digest) -> Option<(BlobName, &Bytes)> {
        match () {
            () if *digest == self.layer.0.digest => Some((name(0, digest), &self.layer.1)),
            () if *digest == self.pack.blob.digest => Some((name(1, digest), &self.frames)),
            () => None,
        }
    }
}

/// The name of a blob with this number.
pub(super) fn name(number: u32, digest: &Digest) -> BlobName {
    let [a, b, c, d, ..] = digest.as_bytes();
    BlobName { number, hash: u32::from_le_bytes([*a, *b, *c, *d]) }
}

/// Bytes of a blob whose pieces begin at these offsets, with numbers from `first` on.
fn encoded(size: u64, offsets: impl Iterator<Item = u64>, first: usize) -> Result<Bytes> {
    let mut bytes = vec![0; usize::try_from(size)?];
    for (number, offset) in (first..).zip(offsets) {
        let at = usize::try_from(offset)? + NUMBER_AT;
        let place = bytes.get_mut(at..at + NUMBER_BYTES).context("a piece is outside of its blob")?;
        place.copy_from_slice(&u32::try_from(number)?.to_le_bytes());
    }
    Ok(bytes.into())
}

/// The decoded bytes of all pieces of the layer, by offset and length.
fn decoded_pieces(shape: &Shape) -> BTreeMap<(u64, u64), Vec<u8>> {
    let mut sizes = BTreeMap::<(u64, u64), u64>::new();
    for chunk in shape.objects.iter().flatten().filter(|chunk| chunk.length > 0) {
        let size = sizes.entry((chunk.offset, chunk.length)).or_default();
        *size = (*size).max(chunk.skip + chunk.size);
    }
    (1..).zip(sizes).map(|(seed, (place, size))| (place, noise(seed, size))).collect()
}

/// Bytes that occur nowhere else.
fn noise(seed: u64, size: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..size.div_ceil(8)).flat_map(|_| next()).take(usize::try_from(size).unwrap_or(usize::MAX)).collect()
}

/// An object, and its chunks for the table.
fn object(
    shapes: &[ChunkShape],
    pieces: &[Bytes],
    places: &HashMap<(u64, u64), usize>,
) -> Result<(SimulatedObject, Vec<Chunk>)> {
    let (mut at, mut chunks, mut table, mut hasher) = (0, Vec::new(), Vec::new(), Hasher::new());
    for ChunkShape { size, offset, length, skip } in shapes {
        let (bytes, digest, place) = match places.get(&(*offset, *length)).and_then(|place| pieces.get(*place)) {
            Some(piece) if *length > 0 => {
                let bytes = piece.slice(usize::try_from(*skip)?..usize::try_from(skip + size)?);
                let digest = Digest::of(&bytes);
                // The codec decides how a piece is decoded and not how it is planned.
                let (codec, offset, length, skip) = (Codec::Zstd, *offset, *length, *skip);
                (bytes, digest, ChunkPlace::Blob { codec, offset, length, skip })
            }
            _ => (Bytes::from(vec![0; usize::try_from(*size)?]), Digest::from_bytes([0; 32]), ChunkPlace::Zeros),
        };
        hasher.update(&bytes);
        table.push(Chunk { object_offset: at, size: *size, digest, place });
        chunks.push(SimulatedChunk { at, bytes });
        at += size;
    }
    Ok((SimulatedObject { digest: hasher.finish(), size: at, chunks, file: OnceLock::new() }, table))
}

/// The index of the boot pack, its blob, and the decoded bytes of its frames, whose numbers begin at `first`.
fn pack(shape: &Shape, objects: &[SimulatedObject], first: usize) -> Result<(BootIndex, Bytes, Vec<Bytes>)> {
    let (mut offset, mut offsets, mut frames, mut contents) = (0, Vec::new(), Vec::new(), Vec::new());
    for frame in &shape.frames {
        let (mut pieces, mut content) = (Vec::new(), Vec::new());
        for (object, at, length) in &frame.parts {
            let object = objects.get(*object).context("a frame has a part of an unknown object")?;
            pieces.push(BootPiece { object: object.digest, offset: *at, length: *length });
            let part = object.bytes();
            let end = *at + u64::from(*length);
            ensure!(end <= part.len() as u64, "a frame has a part behind the end of its object");
            content.extend_from_slice(&part[usize::try_from(*at)?..usize::try_from(end)?]);
        }
        offsets.push(offset);
        offset += u64::from(frame.length);
        frames.push(BootFrame { length: frame.length, pieces });
        contents.push(content.into());
    }
    let blob = Blob { digest: Digest::of(b"the boot pack"), size: offset };
    let index = BootIndex { profile: "simulated".to_owned(), blob, frames };
    Ok((index, encoded(offset, offsets.into_iter(), first)?, contents))
}

impl SimulatedObject {
    fn bytes(&self) -> Vec<u8> {
        self.chunks.iter().flat_map(|chunk| chunk.bytes.iter().copied()).collect()
    }

    /// The complete object as a file in memory, which all hosts share.
    pub(super) fn open(&self) -> io::Result<File> {
        if let Some(file) = self.file.get() {
            return file.try_clone();
        }
        let mut file = File::from(memfd_create("object", MemfdFlags::CLOEXEC)?);
        file.write_all(&self.bytes())?;
        self.file.get_or_init(|| file).try_clone()
    }
}

impl std::fmt::Debug for Numbered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} pieces", self.0.len())
    }
}

impl Decoder for Numbered {
    fn chunk(&self, _: Codec, encoded: &[u8], skip: u64, size: u64, out: &mut Vec<u8>) -> Result<(), DecodeError> {
        let number = encoded.get(NUMBER_AT..).and_then(|rest| rest.first_chunk::<NUMBER_BYTES>());
        let piece = number.and_then(|number| self.0.get(u32::from_le_bytes(*number) as usize));
        let missing = DecodeError::TooShort { missing: size };
        let range = usize::try_from(skip).ok().zip(usize::try_from(skip + size).ok());
        let Some(bytes) = piece.zip(range).and_then(|(piece, (start, end))| piece.get(start..end)) else {
            return Err(missing);
        };
        out.extend_from_slice(bytes);
        Ok(())
    }

    fn span(
        &self,
        _: &CheckpointEntry<'_>,
        encoded: &[u8],
        skip: u64,
        size: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), DecodeError> {
        self.chunk(Codec::Deflate, encoded, skip, size, out)
    }

    fn layer(&self, _: Compression, _: LayerInput) -> io::Result<DecodedLayer> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a simulated layer is read by range"))
    }
}
