//! Writes zstd:chunked.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tarpon_oci::{Compression, Digest};

use super::compress::{skippable_frame, zstd};
use super::tar::{Dialect, headers, pad};
use super::{Item, ItemKind, Layer, toc};

/// Spelling of annotations and footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// `io.containers.…`, 40-byte footer.
    Old,
    /// `io.github.containers.…`, 64-byte footer.
    New,
}

/// Options of the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZstdChunkedOptions {
    /// Files are split into chunks of this length; a chunk of zeros becomes a hole.
    pub chunk_bytes: usize,
    /// Spelling of annotations and footer.
    pub spelling: Spelling,
}

impl Default for ZstdChunkedOptions {
    fn default() -> Self {
        Self { chunk_bytes: 64 << 10, spelling: Spelling::New }
    }
}

/// A zstd:chunked layer of these items, with the annotations that pin its TOC.
pub fn zstd_chunked(items: &[Item], options: ZstdChunkedOptions) -> Layer {
    let mut writer = Writer { options, blob: Vec::new(), tar: Vec::new(), pending: Vec::new(), entries: Vec::new() };
    items.iter().for_each(|item| writer.item(item));
    writer.write(&[0; 1024]);
    writer.flush();
    let json = serde_json::to_vec(&json!({ "version": 1, "entries": writer.entries })).expect("values are JSON");
    let mut layer = zstd_chunked_from_toc(&writer.blob, &json, options.spelling);
    layer.diff_id = Digest::of(&writer.tar);
    layer
}

/// A zstd:chunked layer with any data and any TOC.
pub(crate) fn zstd_chunked_from_toc(data: &[u8], json: &[u8], spelling: Spelling) -> Layer {
    let compressed = zstd(json);
    let mut blob = data.to_vec();
    let offset = blob.len() as u64 + 8;
    let (length, decoded) = (compressed.len() as u64, json.len() as u64);
    blob.extend(skippable_frame(&compressed));
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let (prefix, footer) = match spelling {
        Spelling::Old => ("io.containers", [words(&[offset, length, decoded, 1]), b"GnUlInUx".to_vec()].concat()),
        Spelling::New => {
            ("io.github.containers", [words(&[offset, length, decoded, 1, 0, 0, 0]), b"GNUlInUx".to_vec()].concat())
        }
    };
    blob.extend(skippable_frame(&footer));
    let annotations = BTreeMap::from([
        (format!("{prefix}.zstd-chunked.manifest-checksum"), Digest::of(&compressed).to_string()),
        (format!("{prefix}.zstd-chunked.manifest-position"), format!("{offset}:{length}:{decoded}:1")),
    ]);
    Layer { compression: Compression::Zstd, annotations, blob, diff_id: Digest::of(b"") }
}

struct Writer {
    options: ZstdChunkedOptions,
    blob: Vec<u8>,
    tar: Vec<u8>,
    /// Bytes of the current frame.
    pending: Vec<u8>,
    entries: Vec<Value>,
}

impl Writer {
    fn item(&mut self, item: &Item) {
        self.write(&headers(item, Dialect::Pax));
        let entry = toc::entry(item);
        let content = item.content();
        if content.is_empty() || !matches!(item.kind, ItemKind::File(_)) {
            self.entries.push(entry.into());
            return;
        }
        self.flush();
        let mut group: Vec<Map<String, Value>> = Vec::new();
        let is_split = content.len() > self.options.chunk_bytes;
        for (number, chunk) in content.chunks(self.options.chunk_bytes).enumerate() {
            let mut part = match number {
                0 => entry.clone(),
                _ => Map::from_iter([
                    ("type".to_owned(), "chunk".into()),
                    ("name".to_owned(), entry["name"].clone()),
                    ("chunkOffset".to_owned(), (number * self.options.chunk_bytes).into()),
                ]),
            };
            part.insert("offset".to_owned(), self.blob.len().into());
            let is_hole = chunk.iter().all(|byte| *byte == 0);
            if is_split || is_hole {
                part.insert("chunkSize".to_owned(), chunk.len().into());
                part.insert("chunkDigest".to_owned(), Digest::of(chunk).to_string().into());
            }
            if is_hole {
                part.insert("chunkType".to_owned(), "zeros".into());
            }
            group.push(part);
            self.write(chunk);
            self.flush();
        }
        group[0].insert("size".to_owned(), content.len().into());
        group[0].insert("digest".to_owned(), Digest::of(content).to_string().into());
        group[0].insert("endOffset".to_owned(), self.blob.len().into());
        self.entries.extend(group.into_iter().map(Value::Object));
        let mut padding = vec![0; content.len()];
        pad(&mut padding);
        self.write(&padding[content.len()..]);
    }

    fn write(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        self.tar.extend_from_slice(bytes);
    }

    fn flush(&mut self) {
        if !self.pending.is_empty() {
            self.blob.extend(zstd(&self.pending));
            self.pending.clear();
        }
    }
}
