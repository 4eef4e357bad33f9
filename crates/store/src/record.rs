//! [`ImageRecord`]: what `images/HEX/record.json` says of an image that can be mounted without its registry.
//!
//! It is sealed (see `sealed`), and names every other file of the record by digest and size. Nothing of it is
//! believed if anything does not fit; the image is then fetched again, as if it had never been here.

use serde::{Deserialize, Serialize};
use tarpon_oci::{Digest, limits};

use crate::layer::{LayerKind, Verification};
use crate::sealed::{self, SealError};

/// Changes with the form of the record and with what trees are written as. Records of others are treated as absent ...
const VERSION: u32 = 2;
/// ... but for these: their trees are written anew when they are used.
const OLD_TREE: u32 = 1;

/// References that a record remembers, the newest ones: what keeps a record of an image that is tagged anew every day
/// from growing for ever.
pub(crate) const REFERENCES: usize = 64;

/// A file of an image record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// The manifest, byte by byte as the registry sent it.
    Manifest,
    /// The image config.
    Config,
    /// The EROFS image of the merged tree.
    Tree,
    /// The chunk table.
    Chunks,
    /// The ids of the objects of the image, 32 bytes each, ascending. Eviction reads it.
    Objects,
    /// The index of its boot pack, if it has one.
    Boot,
    /// What its layers are as directories of their own, if somebody wanted to know.
    Forms,
}

impl Part {
    pub(crate) const ALL: [Self; 7] =
        [Self::Manifest, Self::Config, Self::Tree, Self::Chunks, Self::Objects, Self::Boot, Self::Forms];

    /// Whether a record cannot be without it.
    pub(crate) fn is_required(self) -> bool {
        !matches!(self, Self::Boot | Self::Forms)
    }

    pub(crate) fn file_name(self) -> &'static str {
        match self {
            Self::Manifest => "manifest",
            Self::Config => "config",
            Self::Tree => "tree.erofs",
            Self::Chunks => "chunks",
            Self::Objects => "objects",
            Self::Boot => "boot",
            Self::Forms => "forms",
        }
    }
}

/// What a file of the record must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRecord {
    /// Which file.
    pub part: Part,
    /// Its sha256.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
}

/// A layer, as the record remembers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRecord {
    /// Digest of the blob.
    pub digest: Digest,
    /// Length of the blob in bytes.
    pub size: u64,
    /// How it is read, as `inspect` shows it.
    pub format: LayerKind,
    /// How far it was checked against the manifest, as `status` shows it.
    pub verification: Verification,
    /// What begins before this byte of the blob is to be prefetched, as the layer itself says. A hint; nothing depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefetch: Option<u64>,
}

/// What is known of an image in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    version: u32,
    /// Digest of the manifest: the name of the image.
    pub manifest: Digest,
    /// References that it was found under, oldest first.
    pub references: Vec<String>,
    /// Its platform, as `os/architecture[/variant]`.
    pub platform: String,
    /// The layers, lowest first.
    pub layers: Vec<LayerRecord>,
    /// The files of the record.
    pub parts: Vec<PartRecord>,
    /// Bytes that came over the wire to make the record, each time that it was made, tokens and retries included; those of layers that were
    /// streamed are most of it.
    #[serde(default)]
    pub prepared_bytes: u64,
    /// When the record was made, in seconds since 1970.
    pub created: u64,
    /// When it was used last, in seconds since 1970. Kept as the time of the record file, not in it.
    #[serde(skip)]
    pub last_used: u64,
}

impl ImageRecord {
    /// A record without files: [`ImageStaging`](crate::ImageStaging) adds them.
    pub fn new(manifest: Digest, reference: &str, platform: &str, layers: Vec<LayerRecord>) -> Self {
        Self {
            version: VERSION,
            manifest,
            references: vec![reference.to_owned()],
            platform: platform.to_owned(),
            layers,
            parts: Vec::new(),
            prepared_bytes: 0,
            created: 0,
            last_used: 0,
        }
    }

    /// Whether the tree is one that is not used as it is.
    pub(crate) fn has_old_tree(&self) -> bool {
        self.version == OLD_TREE
    }

    /// Makes it the record of the same image with another tree, of the version that is written now.
    pub(crate) fn set_tree(&mut self, tree: &[u8]) {
        self.version = VERSION;
        let part = PartRecord { part: Part::Tree, digest: Digest::of(tree), size: tree.len() as u64 };
        self.parts.iter_mut().filter(|known| known.part == Part::Tree).for_each(|known| *known = part);
    }

    /// What file `part` must be.
    pub fn part(&self, part: Part) -> Option<&PartRecord> {
        self.parts.iter().find(|record| record.part == part)
    }

    /// Compressed bytes of all layers.
    pub fn compressed_size(&self) -> u64 {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.size))
    }

    /// Bytes of the files of the record itself.
    pub fn record_size(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.size))
    }
}

/// Why a record was not believed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Its envelope or text.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// It was made by another version of tarpon.
    #[error("record of version {0}")]
    Version(u32),
    /// It contradicts itself.
    #[error("{0}")]
    Inconsistent(&'static str),
}

/// Reads a record. Whatever the bytes are, this gives a consistent record or an error.
pub fn parse_record(text: &[u8]) -> Result<ImageRecord, RecordError> {
    let record: ImageRecord = sealed::unseal(text)?;
    if ![VERSION, OLD_TREE].contains(&record.version) {
        return Err(RecordError::Version(record.version));
    }
    if record.layers.len() > limits::LAYERS {
        return Err(RecordError::Inconsistent("more layers than an image may have"));
    }
    let count = |part: Part| record.parts.iter().filter(|other| other.part == part).count();
    if Part::ALL.into_iter().any(|part| count(part) > 1 || (count(part) == 0 && part.is_required())) {
        return Err(RecordError::Inconsistent("a file of the record is missing or named twice"));
    }
    if record.part(Part::Manifest).map(|part| part.digest) != Some(record.manifest) {
        return Err(RecordError::Inconsistent("the manifest is not the one that the record is named by"));
    }
    Ok(record)
}
