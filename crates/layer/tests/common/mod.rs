//! Shared code of the layer tests: a sink that keeps everything, and one way to read an index.
#![allow(dead_code, reason = "every test file takes what it needs")]
#![allow(clippy::cast_possible_truncation, reason = "tests hold small data")]

use std::collections::BTreeMap;
use std::convert::Infallible;

use tarpon_layer::decode::{LayerReader, decode_chunk};
use tarpon_layer::plain::{Access, ImportError, ObjectSink, Options, import};
use tarpon_layer::spans::SpanStarts;
use tarpon_layer::toc::{Claim, Toc, TocError, TocPlace};
use tarpon_layer::{Allowance, Chunk, ChunkPlace, Entry, LayerIndex, Node};
use tarpon_oci::{Digest, MediaType, Verified};
use tarpon_testkit::layers::{Layer, check_index};

/// Keeps every object.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) objects: BTreeMap<Digest, Vec<u8>>,
    current: Vec<u8>,
    promised: u64,
}

impl ObjectSink for Kept {
    type Error = Infallible;

    fn begin(&mut self, size: u64) -> Result<(), Infallible> {
        assert!(self.current.is_empty() && size > 0);
        self.promised = size;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Infallible> {
        self.current.extend_from_slice(bytes);
        Ok(())
    }

    fn hole(&mut self, length: u64) -> Result<(), Infallible> {
        assert!(length < 1 << 28, "tests have small holes");
        self.current.resize(self.current.len() + length as usize, 0);
        Ok(())
    }

    fn finish(&mut self, proof: Verified<()>) -> Result<(), Infallible> {
        let object = std::mem::take(&mut self.current);
        assert_eq!(object.len() as u64, self.promised);
        assert_eq!(Digest::of(&object), *proof.digest());
        self.objects.insert(*proof.digest(), object);
        Ok(())
    }
}

pub(crate) const RANDOM: Options = Options { access: Access::Random, hides_toc_files: false };

/// Options of a compressed layer, without spans.
pub(crate) fn stream() -> Options {
    Options { access: Access::Spans(SpanStarts::default()), hides_toc_files: false }
}

pub(crate) fn import_tar(tar: &[u8], options: Options) -> Result<(LayerIndex, Kept), ImportError<Infallible>> {
    let mut kept = Kept::default();
    let index = import(tar, options, &mut kept)?;
    check_index(&index, tar.len() as u64);
    Ok((index, kept))
}

pub(crate) fn import_blob(blob: &[u8], options: Options) -> Result<(LayerIndex, Kept), ImportError<Infallible>> {
    let reader = LayerReader::sniffed(blob).expect("a decoder");
    let mut kept = Kept::default();
    let index = import(reader, options, &mut kept)?;
    check_index(&index, u64::MAX);
    Ok((index, kept))
}

/// The whole way from descriptor to index.
pub(crate) fn index_by_toc(layer: &Layer) -> Result<LayerIndex, TocError> {
    index_by_toc_within(layer, &Allowance::of(layer.blob.len()))
}

/// The same, for an image within `allowance`.
pub(crate) fn index_by_toc_within(layer: &Layer, allowance: &Allowance) -> Result<LayerIndex, TocError> {
    let media_type = MediaType::Layer(layer.compression);
    let claim = Claim::of(&media_type, &layer.annotations, layer.blob.len() as u64).expect("a sound claim");
    let Claim::Toc(claim) = claim else { panic!("no claim") };
    let range = claim.first_range();
    let first = &layer.blob[range.start as usize..range.end as usize];
    let place = claim.locate(first)?;
    let TocPlace::InBlob(range) = &place else { panic!("an external TOC") };
    let encoded = &layer.blob[range.start as usize..range.end as usize];
    assert_eq!(claim.within(&place, first).unwrap_or(encoded), encoded);
    let index = claim.open(&place, encoded, allowance)?.index()?;
    check_index(&index, layer.blob.len() as u64);
    Ok(index)
}

pub(crate) fn chunks<'a>(index: &'a LayerIndex, entry: &Entry) -> &'a [Chunk] {
    let Node::File(content) = &entry.node else { return &[] };
    &index.chunks[content.first_chunk as usize..][..content.chunk_count as usize]
}

/// The content of a file, read chunk by chunk from the places in the index. `raw` is the data that offsets refer to.
pub(crate) fn read_by_chunks(index: &LayerIndex, entry: &Entry, raw: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    for chunk in chunks(index, entry) {
        let mut bytes = Vec::new();
        match chunk.place {
            ChunkPlace::Zeros => bytes.resize(chunk.size as usize, 0),
            ChunkPlace::Blob { codec: tarpon_layer::Codec::Stream, offset, length, .. } => {
                bytes.extend_from_slice(&raw[offset as usize..][..length as usize]);
            }
            ChunkPlace::Blob { codec, offset, length, skip } => {
                let encoded = &raw[offset as usize..][..length as usize];
                decode_chunk(codec, encoded, skip, chunk.size, &mut bytes).expect("a sound chunk");
            }
        }
        if chunk.place != ChunkPlace::Zeros {
            assert_eq!(Digest::of(&bytes), chunk.digest);
        }
        content.extend(bytes);
    }
    content
}

/// Entries by path, without values that depend on the place of the bytes. Times in seconds if `in_seconds`.
pub(crate) fn comparable(index: &LayerIndex, in_seconds: bool) -> Vec<Entry> {
    let mut entries = index.entries.clone();
    for entry in &mut entries {
        if let Node::File(content) = &mut entry.node {
            (content.first_chunk, content.chunk_count) = (0, 0);
        }
        if in_seconds {
            entry.attributes.mtime.nanoseconds = 0;
        }
    }
    let rank = |node: &Node| match node {
        Node::Whiteout => 1,
        Node::Opaque => 2,
        _ => 0,
    };
    entries.sort_by(|one, other| (&one.path, rank(&one.node)).cmp(&(&other.path, rank(&other.node))));
    entries
}

/// One line for each entry.
pub(crate) fn listing(index: &LayerIndex) -> String {
    let mut lines = String::new();
    for entry in &index.entries {
        let node = match &entry.node {
            Node::Directory => "dir".to_owned(),
            Node::File(content) => format!("file {} in {}", content.size, content.chunk_count),
            Node::Symlink(target) => format!("symlink {}", target.escape_ascii()),
            Node::HardLink(target) => format!("link {target}"),
            Node::CharDevice(device) => format!("char {}:{}", device.major, device.minor),
            Node::BlockDevice(device) => format!("block {}:{}", device.major, device.minor),
            Node::Fifo => "fifo".to_owned(),
            Node::Whiteout => "whiteout".to_owned(),
            Node::Opaque => "opaque".to_owned(),
        };
        lines.push_str(&format!("{} {:04o} {node}\n", entry.path, entry.attributes.mode));
    }
    lines
}

/// The JSON of a layer's TOC, if there is one.
pub(crate) fn toc_json(layer: &Layer) -> Option<Vec<u8>> {
    open_toc(layer).map(|toc| toc.json().to_vec())
}

/// The table of contents of a layer, if it has one of its own.
pub(crate) fn open_toc(layer: &Layer) -> Option<Toc> {
    let media_type = MediaType::Layer(layer.compression);
    let claim = Claim::of(&media_type, &layer.annotations, layer.blob.len() as u64).ok()?;
    let Claim::Toc(claim) = claim else { return None };
    let place = claim.locate(&layer.blob[claim.first_range().start as usize..]).ok()?;
    let TocPlace::InBlob(range) = &place else { return None };
    claim.open(&place, &layer.blob[range.start as usize..range.end as usize], &Allowance::default()).ok()
}
