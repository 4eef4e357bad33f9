//! The contents of a run: objects, the layers that have them, boot packs, and an image that is false about them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use bytes::Bytes;
use tarpon_fetch::{BootFrame, BootIndex, BootPiece, Hint};
use tarpon_layer::chunks::ChunkTable;
use tarpon_layer::{Chunk, ChunkPlace, LayerIndex, Node};
use tarpon_oci::{Blob, Digest};
use tarpon_testkit::seeds::{Random, noise};
use tarpon_testkit::source::{Form, PackedLayer, Packer, table_of};

/// Seeds that share their contents: to build and encode them takes longer than a run.
const SEEDS_OF_CONTENTS: u64 = 64;
/// Of so many contents one is large: enough to measure the link with.
const LARGE_EVERY: u64 = 16;
/// Largest chunk.
const CHUNK: u64 = 6 << 10;
/// Largest frame of a boot pack, decoded.
const FRAME: usize = 24 << 10;

pub(crate) type Object = (Digest, Vec<u8>);

/// Sizes here are far below 4 GiB.
pub(crate) fn index(number: u64) -> usize {
    usize::try_from(number).expect("a small number")
}

/// An image without its source.
pub(crate) struct ImageContents {
    pub(crate) layer: PackedLayer,
    pub(crate) table: ChunkTable<Bytes>,
    /// A boot pack of some of its chunks.
    pub(crate) pack: (BootIndex, Bytes),
}

/// The model of an object is its bytes.
pub(crate) struct Contents {
    pub(crate) objects: Vec<Object>,
    /// Two honest images of all objects.
    pub(crate) honest: Vec<ImageContents>,
    /// An image whose index is false about the content of its objects.
    pub(crate) hostile: ImageContents,
    /// The bytes that the index of the hostile image states for an object.
    pub(crate) lies: HashMap<Digest, Vec<u8>>,
    pub(crate) limits: Limits,
    pub(crate) is_large: bool,
}

/// Sizes from which the bounds of a run follow.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    /// Pieces of all images and packs.
    pub(crate) pieces: usize,
    /// Memory of the largest piece, encoded or decoded.
    pub(crate) piece: u64,
    /// Memory of all pieces that may come along with another.
    pub(crate) neighbours: u64,
    /// How many times as many bytes a piece has when it is decoded.
    pub(crate) growth: u64,
}

/// The contents of the run of this seed.
pub(crate) fn of_seed(seed: u64) -> Rc<Contents> {
    thread_local!(static LAST: RefCell<Option<(u64, Rc<Contents>)>> = const { RefCell::new(None) });
    let number = seed / SEEDS_OF_CONTENTS;
    LAST.with_borrow_mut(|last| match last {
        Some((known, contents)) if *known == number => contents.clone(),
        _ => {
            let is_large = number % LARGE_EVERY == LARGE_EVERY / 2;
            last.insert((number, Rc::new(Contents::new(&mut Random(number), is_large)))).1.clone()
        }
    })
}

impl Contents {
    fn new(random: &mut Random, is_large: bool) -> Self {
        let count = if is_large { 60 } else { random.below(8) + 2 };
        let objects: Vec<Object> =
            (0..count).map(|_| content(random)).map(|bytes| (Digest::of(&bytes), bytes)).collect();
        // Two images have the same objects, each packed in its own way or both in the same layer.
        let first = pack(random, &objects);
        let second = if random.below(3) == 0 { first.clone() } else { pack(random, &objects) };
        let mut lies = HashMap::new();
        let false_layer = pack_false_claims(random, &objects, &mut lies);
        let hostile = image(random, false_layer, &HashMap::new());
        let known: HashMap<Digest, &[u8]> = objects.iter().map(|(name, bytes)| (*name, &**bytes)).collect();
        let honest: Vec<_> = [first, second].map(|layer| image(random, layer, &known)).into();
        let mut limits = Limits { growth: 1, ..Limits::default() };
        honest.iter().chain([&hostile]).for_each(|image| limits.include(image));
        Self { objects, honest, hostile, lies, limits, is_large }
    }

    /// Layers that are decoded on another thread cannot be mixed with a clock that jumps while that thread waits.
    pub(crate) fn has_streams(&self) -> bool {
        self.honest.iter().any(|image| matches!(image.layer.form, Form::GzipStream | Form::ZstdStream))
    }

    /// Hints that lead to some of the objects, to nothing, or to the start of a layer.
    pub(crate) fn hints(&self, random: &mut Random) -> Vec<Hint> {
        let hint = |random: &mut Random| {
            let (object, bytes) = &self.objects[random.index(self.objects.len())];
            let start = random.below(bytes.len() as u64);
            match random.below(8) {
                0 => Hint::Object { object: Digest::of(b"of no image"), range: 0..10 },
                1 => Hint::LayerStart { layer: self.honest[random.index(2)].layer.blob.digest, until: start },
                2..5 => Hint::Object { object: *object, range: start..start + random.below(20_000) },
                _ => Hint::Object { object: *object, range: 0..bytes.len() as u64 },
            }
        };
        (0..random.below(8) + 1).map(|_| hint(random)).collect()
    }
}

impl Limits {
    fn include(&mut self, image: &ImageContents) {
        for chunk in &image.layer.index.chunks {
            let ChunkPlace::Blob { length, skip, .. } = chunk.place else { continue };
            let memory = length.max(skip + chunk.size);
            self.pieces += 1;
            self.piece = self.piece.max(memory);
            self.growth = self.growth.max(memory.div_ceil(length.max(1)));
        }
        for file in files(&image.layer.index).filter(|file| file.chunk_count == 1) {
            self.neighbours += file.size;
        }
        self.pieces += image.pack.0.frames.len();
        self.piece = self.piece.max(FRAME as u64 + CHUNK);
    }
}

fn files(index: &LayerIndex) -> impl Iterator<Item = &tarpon_layer::FileContent> {
    index.entries.iter().filter_map(|entry| match &entry.node {
        Node::File(file) => Some(&**file),
        _ => None,
    })
}

fn content(random: &mut Random) -> Vec<u8> {
    let length = match random.below(4) {
        0 => random.below(200) + 1,
        1 => random.below(4_000) + 1,
        _ => random.below(30_000) + 1,
    };
    let mut content = noise(random.next(), index(length));
    if random.below(4) == 0 {
        let middle = content.len() / 3..content.len() / 2;
        content[middle].fill(0);
    }
    content
}

fn pack(random: &mut Random, objects: &[Object]) -> PackedLayer {
    let forms = [Form::Raw, Form::Gzip, Form::Zstd];
    // Rare, because their runs need threads, which take time.
    let form = if random.below(30) == 0 { Form::GzipStream } else { forms[random.index(3)] };
    let mut packer = Packer::new(form);
    let (small, large): (Vec<_>, Vec<_>) = objects.iter().partition(|(_, bytes)| bytes.len() < 1000);
    packer.shared(&small.iter().map(|(_, bytes)| bytes.as_slice()).collect::<Vec<_>>());
    for (_, bytes) in large {
        packer.gap(random.index(2) * random.index(9_000));
        packer.object(bytes, index(random.below(CHUNK) + 512));
    }
    packer.finish()
}

/// Other bytes under the names of some of the objects.
fn pack_false_claims(random: &mut Random, objects: &[Object], lies: &mut HashMap<Digest, Vec<u8>>) -> PackedLayer {
    let forms = [Form::Raw, Form::Gzip, Form::Zstd];
    let mut packer = Packer::new(forms[random.index(3)]);
    for (name, bytes) in objects {
        let other = match random.below(4) {
            0 => continue,
            // The sizes agree, and sometimes most of the bytes do.
            1 => bytes.iter().map(|byte| !byte).collect(),
            2 => [&bytes[..bytes.len() - 1], &[!bytes[bytes.len() - 1]]].concat(),
            _ => content(random),
        };
        let whole = random.below(3) == 0;
        let lie = packer.object(&other, if whole { other.len() } else { index(random.below(CHUNK) + 512) });
        packer.lie(&lie, *name);
        lies.insert(*name, other);
    }
    packer.finish()
}

fn image(random: &mut Random, layer: PackedLayer, objects: &HashMap<Digest, &[u8]>) -> ImageContents {
    let pack = boot_pack(random, &layer.index, objects);
    ImageContents { table: table_of(&[&layer]), layer, pack }
}

/// A pack of half of the chunks, in any order.
fn boot_pack(random: &mut Random, index: &LayerIndex, objects: &HashMap<Digest, &[u8]>) -> (BootIndex, Bytes) {
    let mut chosen: Vec<(Digest, &Chunk)> = Vec::new();
    for file in files(index) {
        let chunks = &index.chunks[file.first_chunk as usize..][..file.chunk_count as usize];
        chosen.extend(chunks.iter().filter(|_| random.below(2) == 0).map(|chunk| (file.object, chunk)));
    }
    for place in (1..chosen.len()).rev() {
        chosen.swap(place, random.index(place + 1));
    }
    let (mut blob, mut frames) = (Vec::new(), Vec::new());
    let (mut pieces, mut decoded) = (Vec::new(), Vec::new());
    let mut end_frame = |pieces: &mut Vec<BootPiece>, decoded: &mut Vec<u8>| {
        let encoded = zstd::bulk::compress(decoded, 1).expect("memory");
        decoded.clear();
        frames.push(BootFrame { length: u32::try_from(encoded.len()).expect("small"), pieces: std::mem::take(pieces) });
        blob.extend(encoded);
    };
    for (object, chunk) in chosen {
        let Some(content) = objects.get(&object) else { continue };
        let length = u32::try_from(chunk.size).expect("small");
        pieces.push(BootPiece { object, offset: chunk.object_offset, length });
        let start = usize::try_from(chunk.object_offset).expect("small");
        decoded.extend(&content[start..][..length as usize]);
        if decoded.len() > FRAME || random.below(3) == 0 {
            end_frame(&mut pieces, &mut decoded);
        }
    }
    if !pieces.is_empty() {
        end_frame(&mut pieces, &mut decoded);
    }
    let blob = Bytes::from(blob);
    let name = Blob { digest: Digest::of(&blob), size: blob.len() as u64 };
    (BootIndex { profile: "default".into(), blob: name, frames }, blob)
}
