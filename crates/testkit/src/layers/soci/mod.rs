//! Ztocs: valid ones of gzip layers, and any modification of a [`Ztoc`].

mod flat;
mod spans;

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};
use tarpon_layer::tar::{Piece, TarKind, TarReader};
use tarpon_oci::{Blob, Digest, media_type};

pub use flat::Value;
use flat::flatbuffer;
pub use spans::SpanStart;

use super::{Image, Layer};

/// Artifact type of an index with a subject.
pub const SOCI_V1: &str = "application/vnd.amazon.soci.index.v1+json";
/// Artifact type of an index that an annotation of the image names.
pub const SOCI_V2: &str = "application/vnd.amazon.soci.index.v2+json";

/// Content of a ztoc.
#[derive(Debug, Clone)]
pub struct Ztoc {
    /// Version of the format.
    pub version: &'static str,
    /// Size of the blob in bytes.
    pub compressed: i64,
    /// Size of the tar in bytes.
    pub uncompressed: i64,
    /// The entries, in the order of the tar.
    pub entries: Vec<ZtocEntry>,
    /// 1 is gzip.
    pub algorithm: u8,
    /// Number of the last span.
    pub last_span: i32,
    /// Digests of the encoded bytes of each span.
    pub digests: Vec<String>,
    /// Start of each span.
    pub starts: Vec<SpanStart>,
    /// The stated number of spans.
    pub count: i32,
}

/// An entry of a ztoc.
#[derive(Debug, Clone)]
pub struct ZtocEntry {
    /// Name, as in the tar.
    pub name: Vec<u8>,
    /// `reg`, `dir`, ….
    pub kind: &'static str,
    /// Offset of its content in the tar.
    pub offset: i64,
    /// Size of its content in bytes.
    pub size: i64,
    /// Target of a link.
    pub link: Vec<u8>,
    /// Permission bits.
    pub mode: i64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time, by RFC 3339.
    pub mtime: String,
    /// Device numbers.
    pub device: (i64, i64),
    /// All PAX records.
    pub records: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Ztoc {
    /// The ztoc of a gzip layer, with spans of more than `span_bytes` decoded.
    pub fn of(blob: &[u8], span_bytes: u64) -> Self {
        let (tar, starts) = spans::decode(blob, span_bytes);
        let ends = starts.iter().skip(1).map(|start| start.offset).chain([blob.len() as u64]);
        let place = |number: u64| usize::try_from(number).expect("a test is small");
        let digests = starts.iter().zip(ends).map(|(start, end)| {
            let first = place(start.offset) - usize::from(start.bits > 0);
            Digest::of(&blob[first..place(end)]).to_string()
        });
        let count = i32::try_from(starts.len()).expect("a test is small");
        Self {
            version: "0.9",
            compressed: long(blob.len() as u64),
            uncompressed: long(tar.len() as u64),
            entries: entries(&tar),
            algorithm: 1,
            last_span: count - 1,
            digests: digests.collect(),
            starts: starts.clone(),
            count,
        }
    }

    /// The encoded ztoc.
    pub fn bytes(&self) -> Vec<u8> {
        let mut checkpoints = self.count.to_le_bytes().to_vec();
        checkpoints.extend_from_slice(&1_i64.to_le_bytes());
        self.starts.iter().for_each(|start| start.write(&mut checkpoints));
        let digests = self.digests.iter().map(|digest| Value::Bytes(digest.clone().into_bytes()));
        let info = Value::Table(vec![
            Value::Byte(self.algorithm),
            Value::Int(self.last_span),
            Value::List(digests.collect()),
            Value::Bytes(checkpoints),
        ]);
        let entries = self.entries.iter().map(ZtocEntry::value).collect();
        flatbuffer(&Value::Table(vec![
            Value::Bytes(self.version.into()),
            Value::Bytes(b"tarpon-testkit".to_vec()),
            Value::Long(self.compressed),
            Value::Long(self.uncompressed),
            Value::Table(vec![Value::List(entries)]),
            info,
        ]))
    }
}

impl ZtocEntry {
    fn value(&self) -> Value {
        let text = |bytes: &[u8]| Value::Bytes(bytes.to_vec());
        let records = self.records.iter().map(|(key, value)| Value::Table(vec![text(key), text(value)]));
        Value::Table(vec![
            text(&self.name),
            text(self.kind.as_bytes()),
            Value::Long(self.offset),
            Value::Long(self.size),
            text(&self.link),
            Value::Long(self.mode),
            Value::Uint(self.uid),
            Value::Uint(self.gid),
            Value::None,
            Value::None,
            text(self.mtime.as_bytes()),
            Value::Long(self.device.0),
            Value::Long(self.device.1),
            Value::List(records.collect()),
        ])
    }
}

fn long(number: u64) -> i64 {
    i64::try_from(number).expect("a test is small")
}

fn entries(tar: &[u8]) -> Vec<ZtocEntry> {
    let mut reader = TarReader::new(tar);
    let mut entries = Vec::new();
    while let Some(entry) = reader.next_entry().expect("a sound tar") {
        let mut offset = reader.position();
        if entry.size > 0
            && let Some(Piece::Data { offset: at, .. }) = reader.piece().expect("a sound tar")
        {
            offset = at;
        }
        let (kind, device) = match entry.kind {
            TarKind::File => ("reg", None),
            TarKind::Directory => ("dir", None),
            TarKind::Symlink => ("symlink", None),
            TarKind::HardLink => ("hardlink", None),
            TarKind::CharDevice(device) => ("char", Some(device)),
            TarKind::BlockDevice(device) => ("block", Some(device)),
            TarKind::Fifo => ("fifo", None),
        };
        let attributes = entry.attributes;
        let mut records: Vec<_> = attributes
            .xattrs
            .iter()
            .map(|xattr| ([b"SCHILY.xattr.", &xattr.name[..]].concat(), xattr.value.to_vec()))
            .collect();
        records.push((b"comment".to_vec(), b"no xattr".to_vec()));
        entries.push(ZtocEntry {
            name: entry.name,
            kind,
            offset: long(offset),
            size: long(entry.size),
            link: entry.link,
            mode: attributes.mode.into(),
            uid: attributes.uid,
            gid: attributes.gid,
            mtime: super::toc::rfc3339((attributes.mtime.seconds, attributes.mtime.nanoseconds)),
            device: device.map_or((0, 0), |device| (device.major.into(), device.minor.into())),
            records,
        });
    }
    entries
}

/// A SOCI index manifest with the ztocs of these layers, and with this image as subject unless that is `None`.
pub fn soci_manifest(kind: &str, ztocs: &[(&Layer, &[u8])], subject: Option<&Image>) -> Vec<u8> {
    let layers = ztocs.iter().map(|(layer, ztoc)| {
        json!({
            "mediaType": "application/octet-stream", "digest": Digest::of(ztoc).to_string(), "size": ztoc.len(),
            "annotations": {
                "com.amazon.soci.image-layer-digest": layer.descriptor().digest.to_string(),
                "com.amazon.soci.image-layer-mediaType": layer.compression.layer_media_type(),
            },
        })
    });
    let layers: Vec<Json> = layers.collect();
    let mut manifest = json!({
        "schemaVersion": 2, "mediaType": media_type::OCI_MANIFEST,
        "config": { "mediaType": kind, "digest": Digest::of(b"{}").to_string(), "size": 2 },
        "layers": layers, "annotations": { "com.amazon.soci.build-tool-identifier": "tarpon-testkit" },
    });
    if let Some(image) = subject {
        let image = Blob { digest: image.digest(), size: image.manifest.len() as u64 };
        manifest["subject"] = json!({
            "mediaType": media_type::OCI_MANIFEST, "digest": image.digest.to_string(), "size": image.size,
        });
    }
    manifest.to_string().into_bytes()
}

/// The image with a manifest that names this SOCI index, as AWS's conversion tool creates it.
pub fn with_soci_index(image: &Image, soci: &[u8]) -> Image {
    let mut manifest: Json = serde_json::from_slice(&image.manifest).expect("a manifest of our own");
    let mut annotations = BTreeMap::new();
    annotations.insert("com.amazon.soci.index-digest", Digest::of(soci).to_string());
    manifest["annotations"] = json!(annotations);
    Image { manifest: manifest.to_string().into_bytes(), ..image.clone() }
}
