//! [`ImageRecord`]: the content of `images/HEX/record.json`, for an image that can be mounted without its registry.
//!
//! It is sealed (see `sealed`), and names every other file of the record by digest and size. On any mismatch nothing of
//! it is trusted; the image is then fetched again, as if it had never been local.

use serde::{Deserialize, Serialize};
use tarpon_oci::{Digest, limits};

use crate::layer::{LayerKind, Verification};
use crate::sealed::{self, SealError};

/// Version of the record's form and of the trees. Records of other versions are treated as absent ...
const VERSION: u32 = 2;
/// ... except this one: its trees are rewritten on use.
const OLD_TREE: u32 = 1;

/// Maximum number of references per record, the newest ones: bounds the record of an image that gets a new tag every day.
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
    /// The ids of the image's objects, 32 bytes each, ascending. Eviction reads it.
    Objects,
    /// The index of its boot pack, if it has one.
    Boot,
    /// Its layers as directories of their own, if they were requested.
    Forms,
}

impl Part {
    pub(crate) const ALL: [Self; 7] =
        [Self::Manifest, Self::Config, Self::Tree, Self::Chunks, Self::Objects, Self::Boot, Self::Forms];

    /// Whether every record must have it.
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

/// The expected digest and size of a file of the record.
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
    /// The format by which it is read, as `inspect` shows it.
    pub format: LayerKind,
    /// To what extent it was verified against the manifest, as `status` shows it.
    pub verification: Verification,
    /// Offset in the blob, set by the layer itself: everything that begins before it is to be prefetched. A hint; nothing
    /// depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefetch: Option<u64>,
    /// Digest of the packed index of the layer that the record was made of, if that was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<Digest>,
}

/// The record of an image in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    version: u32,
    /// Digest of the manifest: the identity of the image.
    pub manifest: Digest,
    /// References that resolved to it, oldest first.
    pub references: Vec<String>,
    /// Its platform, as `os/architecture[/variant]`.
    pub platform: String,
    /// The layers, lowest first.
    pub layers: Vec<LayerRecord>,
    /// The files of the record.
    pub parts: Vec<PartRecord>,
    /// Bytes transferred to create the record, summed over each time it was created, including tokens and retries; most
    /// of it are streamed layers.
    #[serde(default)]
    pub prepared_bytes: u64,
    /// The repository or layout that has the frames of its boot pack, if that is not the image's own. Programs that do not know the field do
    /// without the pack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_source: Option<String>,
    /// Creation time of the record, in seconds since 1970.
    pub created: u64,
    /// Time of the last use, in seconds since 1970. Stored as the time of the record file, not in it.
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
            boot_source: None,
            created: 0,
            last_used: 0,
        }
    }

    /// Whether the tree must be replaced before use.
    pub(crate) fn has_old_tree(&self) -> bool {
        self.version == OLD_TREE
    }

    /// Makes it the record of the same image with another tree, in the current version.
    pub(crate) fn set_tree(&mut self, tree: &[u8]) {
        self.version = VERSION;
        let part = PartRecord { part: Part::Tree, digest: Digest::of(tree), size: tree.len() as u64 };
        self.parts.iter_mut().filter(|known| known.part == Part::Tree).for_each(|known| *known = part);
    }

    /// The expected digest and size of file `part`.
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

/// Why a record was not trusted.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Its envelope or text is invalid.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// It was written by another version of tarpon.
    #[error("record of version {0}")]
    Version(u32),
    /// It is inconsistent.
    #[error("{0}")]
    Inconsistent(&'static str),
}

/// Parses a record. For any input, returns a consistent record or an error.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict on a record of one layer that is consistent but for this change.
    fn verdict(change: impl FnOnce(&mut ImageRecord)) -> Result<(), String> {
        let layer = LayerRecord {
            digest: Digest::of(b"a layer"),
            size: 1234,
            format: LayerKind::TarGzip,
            verification: Verification::DiffId,
            prefetch: None,
            index: None,
        };
        let mut record = ImageRecord::new(Digest::of(b"manifest"), "image", "linux/amd64", vec![layer]);
        let part = |part: Part| PartRecord { part, digest: Digest::of(part.file_name().as_bytes()), size: 8 };
        record.parts = Part::ALL.map(part).to_vec();
        change(&mut record);
        parse_record(&sealed::seal(&record).unwrap())
            .map(|parsed| assert_eq!(parsed, record))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_record_of_another_version_is_not_trusted() {
        for version in [OLD_TREE, VERSION] {
            assert_eq!(verdict(|record| record.version = version), Ok(()));
        }
        for version in [0, VERSION + 1] {
            assert_eq!(verdict(|record| record.version = version), Err(format!("record of version {version}")));
        }
    }

    #[test]
    fn a_record_has_each_required_file_once_and_every_other_at_most_once() {
        for part in Part::ALL {
            let without = verdict(|record| record.parts.retain(|known| known.part != part));
            assert_eq!(without.is_ok(), !part.is_required(), "{part:?}");
            let twice = verdict(|record| record.parts.extend(record.part(part).copied()));
            assert!(twice.unwrap_err().contains("named twice"), "{part:?}");
        }
        assert_eq!(Part::ALL.into_iter().filter(|part| part.is_required()).count(), 5);
    }

    #[test]
    fn a_record_is_named_by_the_digest_of_its_manifest() {
        let other = verdict(|record| record.manifest = Digest::of(b"another manifest"));
        assert!(other.unwrap_err().contains("not the one that the record is named by"));
    }

    #[test]
    fn a_record_may_have_as_many_layers_as_an_image_and_not_more() {
        let of = |layers: usize| verdict(|record| record.layers = vec![record.layers[0].clone(); layers]);
        assert_eq!(of(limits::LAYERS), Ok(()));
        assert!(of(limits::LAYERS + 1).unwrap_err().contains("more layers"));
    }
}
