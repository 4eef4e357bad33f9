//! An index artifact in parts that can be changed, and reassembled as its publisher would.

use serde_json::{Value, json};
use tarpon_engine::oci::{Blob, Digest};
use tarpon_layer::LayerIndex;
use tarpon_layer::packed::{pack, unpack};

/// The parts of the blob, and later changes to it.
#[derive(Clone)]
pub(crate) struct Artifact {
    pub(crate) magic: [u8; 16],
    /// Replaces the number of layers.
    pub(crate) count: Option<u32>,
    pub(crate) layers: Vec<Record>,
    /// Change to the blob, whose new digest is in the manifest.
    pub(crate) blob: fn(&mut Vec<u8>),
    /// Change to the manifest, which is found by its new digest.
    pub(crate) manifest: fn(&mut Value),
    /// Change to the blob and the manifest as they are served, behind their digests.
    pub(crate) served: fn(&mut Vec<u8>, &mut Vec<u8>),
    /// The manifest without digest and size of the blob.
    template: Value,
}

/// A layer in the blob.
#[derive(Clone)]
pub(crate) struct Record {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    /// Replaces the number of bytes of the index.
    pub(crate) length: fn(u64) -> u64,
    pub(crate) compression: u8,
    pub(crate) zeros: [u8; 7],
    pub(crate) index: LayerIndex,
    /// Change to the packed index before it is compressed.
    pub(crate) packed: fn(&mut Vec<u8>),
    /// Change to it afterwards.
    pub(crate) compressed: fn(&mut Vec<u8>),
}

/// A manifest and its blob: each with its digest, and the bytes served under that.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Built {
    pub(crate) manifest: (Digest, Vec<u8>),
    pub(crate) blob: (Digest, Vec<u8>),
}

const HEADER: usize = 20;
const RECORD: usize = 56;

impl Artifact {
    /// Splits an artifact into its parts.
    pub(crate) fn read(manifest: &[u8], blob: &[u8]) -> Self {
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let count = usize::try_from(u32::from_le_bytes(blob[16..HEADER].try_into().unwrap())).unwrap();
        let (records, mut rest) = blob[HEADER..].split_at(count * RECORD);
        let layers = records.chunks(RECORD).map(|record| {
            let (digest, size) = (Digest::from_bytes(record[..32].try_into().unwrap()), number(&record[32..40]));
            let (index, behind) = rest.split_at(usize::try_from(number(&record[40..48])).unwrap());
            rest = behind;
            let index = zstd::stream::decode_all(index).unwrap();
            Record {
                digest,
                size,
                length: |length| length,
                compression: record[48],
                zeros: record[49..].try_into().unwrap(),
                index: unpack(&index, Blob { digest, size }).unwrap(),
                packed: |_| {},
                compressed: |_| {},
            }
        });
        Self {
            magic: blob[..16].try_into().unwrap(),
            count: None,
            layers: layers.collect(),
            blob: |_| {},
            manifest: |_| {},
            served: |_, _| {},
            template: serde_json::from_slice(manifest).unwrap(),
        }
    }

    /// Reassembles it.
    pub(crate) fn built(&self) -> Built {
        let mut blob = self.magic.to_vec();
        blob.extend(self.count.unwrap_or(u32::try_from(self.layers.len()).unwrap()).to_le_bytes());
        let mut indexes = Vec::new();
        for layer in &self.layers {
            let mut packed = pack(&layer.index);
            (layer.packed)(&mut packed);
            let mut compressed = zstd::bulk::compress(&packed, 1).unwrap();
            (layer.compressed)(&mut compressed);
            blob.extend(layer.digest.as_bytes());
            blob.extend(layer.size.to_le_bytes());
            blob.extend((layer.length)(compressed.len() as u64).to_le_bytes());
            blob.push(layer.compression);
            blob.extend(layer.zeros);
            indexes.extend(compressed);
        }
        blob.extend(indexes);
        (self.blob)(&mut blob);
        let mut manifest = self.template.clone();
        manifest["layers"][0]["digest"] = json!(Digest::of(&blob).to_string());
        manifest["layers"][0]["size"] = json!(blob.len());
        (self.manifest)(&mut manifest);
        let mut manifest = manifest.to_string().into_bytes();
        let digests = (Digest::of(&manifest), Digest::of(&blob));
        (self.served)(&mut manifest, &mut blob);
        Built { manifest: (digests.0, manifest), blob: (digests.1, blob) }
    }
}
