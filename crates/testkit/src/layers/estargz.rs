//! Writes eStargz.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tarpon_oci::{Compression, Digest};

use super::compress::gzip;
use super::tar::{Dialect, RawHeader, Tar, headers, pad};
use super::{Item, Layer, toc};

const ANNOTATION: &str = "containerd.io/snapshot/stargz/toc.digest";

/// The form of the blob's footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FooterKind {
    /// 51 bytes.
    Current,
    /// 47 bytes.
    Legacy,
    /// 46 bytes; the TOC is elsewhere.
    External,
}

/// Options of the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EstargzOptions {
    /// Files are cut into chunks of this length.
    pub chunk_bytes: usize,
    /// Members are filled up to this size: smaller chunks share one (`innerOffset`).
    pub min_member_bytes: usize,
    /// Puts this landmark before all items.
    pub landmark: Option<&'static str>,
    /// The end of the blob.
    pub footer: FooterKind,
}

impl Default for EstargzOptions {
    fn default() -> Self {
        Self { chunk_bytes: 4 << 20, min_member_bytes: 0, landmark: None, footer: FooterKind::Current }
    }
}

impl Layer {
    /// An eStargz layer of these entries.
    pub fn estargz(items: &[Item]) -> Self {
        estargz(items, EstargzOptions::default())
    }
}

/// An eStargz layer of these items, with the annotation that pins its TOC.
pub fn estargz(items: &[Item], options: EstargzOptions) -> Layer {
    let landmark = options.landmark.map(|name| Item::file(name, b"\x0f"));
    let mut writer = Writer { options, blob: Vec::new(), tar: Vec::new(), member: Vec::new(), entries: Vec::new() };
    landmark.iter().chain(items).for_each(|item| writer.item(item));
    writer.close();
    let Writer { mut blob, mut tar, entries, .. } = writer;
    let json = serde_json::to_vec_pretty(&json!({ "version": 1, "entries": entries })).expect("values are JSON");
    finish(&mut blob, &mut tar, &json, options.footer);
    Layer { compression: Compression::Gzip, annotations: annotations(&json), blob, diff_id: Digest::of(&tar) }
}

/// An eStargz layer with any data and any TOC; `data` must be gzip members.
pub(crate) fn estargz_from_toc(data: &[u8], json: &[u8]) -> Layer {
    let mut blob = data.to_vec();
    finish(&mut blob, &mut Vec::new(), json, FooterKind::Current);
    Layer { compression: Compression::Gzip, annotations: annotations(json), blob, diff_id: Digest::of(b"") }
}

/// The layer blob of a TOC image for a layer whose TOC is `json`.
pub fn external_toc(json: &[u8]) -> Vec<u8> {
    toc_member(json)
}

fn annotations(json: &[u8]) -> BTreeMap<String, String> {
    BTreeMap::from([(ANNOTATION.to_owned(), Digest::of(json).to_string())])
}

fn toc_tar(json: &[u8]) -> Vec<u8> {
    Tar::new().sized(RawHeader::new("stargz.index.json").mode(0).mtime(0), json).finish()
}

/// The gzip member that contains a TOC.
pub(crate) fn toc_member(json: &[u8]) -> Vec<u8> {
    gzip(&toc_tar(json))
}

fn finish(blob: &mut Vec<u8>, tar: &mut Vec<u8>, json: &[u8], kind: FooterKind) {
    let offset = blob.len() as u64;
    match kind {
        FooterKind::External => tar.resize(tar.len() + 1024, 0),
        _ => {
            blob.extend(toc_member(json));
            tar.extend(toc_tar(json));
        }
    }
    blob.extend(footer(offset, kind));
}

/// A footer that points at `offset`.
pub fn footer(offset: u64, kind: FooterKind) -> Vec<u8> {
    let extra = match kind {
        FooterKind::Current => [&b"SG\x16\0"[..], format!("{offset:016x}STARGZ").as_bytes()].concat(),
        FooterKind::Legacy => format!("{offset:016x}STARGZ").into_bytes(),
        FooterKind::External => b"SG\x11\0STARGZEXTERNALTOC".to_vec(),
    };
    let length = u16::try_from(extra.len()).expect("an extra field is short").to_le_bytes();
    [&b"\x1f\x8b\x08\x04\0\0\0\0\0\xff"[..], &length, &extra, b"\x01\0\0\xff\xff\0\0\0\0\0\0\0\0"].concat()
}

struct Writer {
    options: EstargzOptions,
    blob: Vec<u8>,
    tar: Vec<u8>,
    /// Decoded bytes of the member that is being filled; it starts at the end of `blob`.
    member: Vec<u8>,
    entries: Vec<Value>,
}

impl Writer {
    fn item(&mut self, item: &Item) {
        self.write(&headers(item, Dialect::Pax));
        let mut entry = toc::entry(item);
        let content = item.content();
        if matches!(item.kind, super::ItemKind::File(_)) {
            entry.insert("digest".to_owned(), Digest::of(content).to_string().into());
        }
        if content.is_empty() {
            self.entries.push(entry.into());
            return;
        }
        entry.insert("size".to_owned(), content.len().into());
        let is_split = content.len() > self.options.chunk_bytes;
        for (number, chunk) in content.chunks(self.options.chunk_bytes).enumerate() {
            if self.member.len() >= self.options.min_member_bytes {
                self.close();
            }
            if number > 0 {
                let name = String::from_utf8_lossy(&item.wire_name()).into_owned();
                entry =
                    serde_json::Map::from_iter([("name".to_owned(), name.into()), ("type".to_owned(), "chunk".into())]);
                entry.insert("chunkOffset".to_owned(), (number * self.options.chunk_bytes).into());
            }
            entry.insert("offset".to_owned(), self.blob.len().into());
            if !self.member.is_empty() {
                entry.insert("innerOffset".to_owned(), self.member.len().into());
            }
            if is_split {
                entry.insert("chunkSize".to_owned(), chunk.len().into());
            }
            entry.insert("chunkDigest".to_owned(), Digest::of(chunk).to_string().into());
            self.entries.push(entry.clone().into());
            self.write(chunk);
        }
        let mut padding = vec![0; content.len()];
        pad(&mut padding);
        self.write(&padding[content.len()..]);
    }

    fn write(&mut self, bytes: &[u8]) {
        self.member.extend_from_slice(bytes);
        self.tar.extend_from_slice(bytes);
    }

    fn close(&mut self) {
        if !self.member.is_empty() {
            self.blob.extend(gzip(&self.member));
            self.member.clear();
        }
    }
}
