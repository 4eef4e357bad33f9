//! [`Packer`]: layers with known objects and places, without a tar around them.

use std::io::Write;

use bytes::Bytes;
use tarpon_layer::chunks::{ChunkTable, ChunkTableBuilder};
use tarpon_layer::decode::Compression;
use tarpon_layer::{Attributes, Chunk, ChunkPlace, Codec, Entry, FileContent, LayerIndex, LayerPath, Node};
use tarpon_oci::{Blob, Digest};

/// Encoding of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Unencoded.
    Raw,
    /// One gzip member for each chunk.
    Gzip,
    /// One zstd frame for each chunk.
    Zstd,
    /// A whole gzip layer without random access.
    GzipStream,
    /// A whole zstd layer without random access.
    ZstdStream,
}

/// A layer and its contents.
#[derive(Debug, Clone)]
pub struct PackedLayer {
    /// The source of the chunk table.
    pub index: LayerIndex,
    /// The layer as it is fetched.
    pub bytes: Bytes,
    /// Its digest and size.
    pub blob: Blob,
    /// Its form.
    pub form: Form,
}

/// Appends objects to a layer.
pub struct Packer {
    form: Form,
    /// Encoded bytes; for a stream, decoded ones.
    bytes: Vec<u8>,
    index: LayerIndex,
}

impl Packer {
    /// An empty layer.
    pub fn new(form: Form) -> Self {
        Self { form, bytes: Vec::new(), index: LayerIndex::default() }
    }

    /// Adds bytes that belong to no object, like tar headers.
    pub fn gap(&mut self, bytes: usize) -> &mut Self {
        self.bytes.extend(std::iter::repeat_n(0x55, bytes));
        self
    }

    /// Adds an object in chunks of `chunk` bytes. Chunks of zeros are not stored.
    pub fn object(&mut self, content: &[u8], chunk: usize) -> Digest {
        let first = self.index.chunks.len();
        for (number, part) in content.chunks(chunk).enumerate() {
            let place = if part.iter().all(|byte| *byte == 0) { ChunkPlace::Zeros } else { self.place(part) };
            let object_offset = (number * chunk) as u64;
            self.index.chunks.push(Chunk { object_offset, size: part.len() as u64, digest: Digest::of(part), place });
        }
        self.entry(content, first)
    }

    /// Adds several objects in one encoded piece, as small files share a member in eStargz.
    pub fn shared(&mut self, contents: &[&[u8]]) -> Vec<Digest> {
        let ChunkPlace::Blob { codec, offset, length, .. } = self.place(&contents.concat()) else { return Vec::new() };
        let mut skip = 0;
        let mut add = |content: &&[u8]| {
            let (first, size) = (self.index.chunks.len(), content.len() as u64);
            // A place in a stream or in bytes that are not encoded is exact: nothing to skip.
            let place = match codec {
                Codec::Stream | Codec::Raw => ChunkPlace::Blob { codec, offset: offset + skip, length: size, skip: 0 },
                _ => ChunkPlace::Blob { codec, offset, length, skip },
            };
            self.index.chunks.push(Chunk { object_offset: 0, size, digest: Digest::of(content), place });
            skip += size;
            self.entry(content, first)
        };
        contents.iter().map(&mut add).collect()
    }

    /// Declares a false digest for the object's content.
    pub fn lie(&mut self, object: &Digest, name: Digest) {
        for entry in &mut self.index.entries {
            if let Node::File(file) = &mut entry.node
                && file.object == *object
            {
                file.object = name;
            }
        }
    }

    /// Finishes the layer.
    pub fn finish(self) -> PackedLayer {
        let bytes: Bytes = match self.form {
            Form::GzipStream => gzip(&self.bytes),
            Form::ZstdStream => zstd(&self.bytes),
            Form::Raw | Form::Gzip | Form::Zstd => self.bytes,
        }
        .into();
        let blob = Blob { digest: Digest::of(&bytes), size: bytes.len() as u64 };
        PackedLayer { index: self.index, bytes, blob, form: self.form }
    }

    fn place(&mut self, part: &[u8]) -> ChunkPlace {
        let (codec, encoded) = match self.form {
            Form::Raw => (Codec::Raw, part.to_vec()),
            Form::Gzip => (Codec::Gzip, gzip(part)),
            Form::Zstd => (Codec::Zstd, zstd(part)),
            Form::GzipStream | Form::ZstdStream => (Codec::Stream, part.to_vec()),
        };
        let offset = self.bytes.len() as u64;
        self.bytes.extend_from_slice(&encoded);
        ChunkPlace::Blob { codec, offset, length: encoded.len() as u64, skip: 0 }
    }

    fn entry(&mut self, content: &[u8], first: usize) -> Digest {
        let object = Digest::of(content);
        let count = |number: usize| u32::try_from(number).expect("a test has few chunks");
        let file = FileContent {
            size: content.len() as u64,
            object,
            first_chunk: count(first),
            chunk_count: count(self.index.chunks.len() - first),
        };
        let (path, attributes) = (LayerPath::root(), Attributes::default());
        self.index.entries.push(Entry { path, node: Node::File(file.into()), attributes: attributes.into() });
        object
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("writing to memory")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).expect("writing to memory")
}

/// The chunk table of an image of these layers.
pub fn table_of(layers: &[&PackedLayer]) -> ChunkTable<Bytes> {
    let mut builder = ChunkTableBuilder::new();
    for layer in layers {
        let compression = match layer.form {
            Form::GzipStream => Compression::Gzip,
            Form::ZstdStream => Compression::Zstd,
            Form::Raw | Form::Gzip | Form::Zstd => Compression::None,
        };
        let number = builder.add_layer(layer.blob, compression).expect("few layers");
        builder.add_index(number, &layer.index).expect("an index of our own");
    }
    ChunkTable::open(Bytes::from(builder.finish().expect("few chunks"))).expect("a table of our own")
}
