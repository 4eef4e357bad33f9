//! The image that all cases are about, and its states.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tarpon_blob::{ObjectStore as _, StoreError};
use tarpon_oci::{Blob, Digest};
use tarpon_store::{ImageRecord, IndexKey, LayerKind, LayerRecord, Part, Store, Verification};

use crate::common::{LIST, content, put, verified};

/// Bytes of the objects of an image: in memory, in a file, and of several blocks.
const SIZES: [usize; 3] = [3_000, 20_000, 70_000];
/// Bytes of the pieces of partial objects.
pub(crate) const PIECE: usize = 30_000;

/// An image with its objects.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(crate) name: &'static str,
    pub(crate) objects: Vec<Vec<u8>>,
}

/// The state of the image before an operation. Each store also holds another image, complete and not mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing of it is in the store.
    Absent,
    /// One object is complete, one is partial; of a layer there are the index and the beginning. There is no record.
    Half,
    /// It has a record, all objects, a reference and a mount.
    Mounted,
    /// Only for operations that create a store: it does not exist.
    NoStore,
}

pub(crate) const STATES: [State; 3] = [State::Absent, State::Half, State::Mounted];

impl Image {
    pub(crate) fn new(name: &'static str, seed: u64) -> Self {
        let objects = SIZES.iter().zip(1..).map(|(&size, number)| content(seed * 16 + number, size)).collect();
        Self { name, objects }
    }

    pub(crate) fn manifest(&self) -> Digest {
        Digest::of(self.manifest_text().as_bytes())
    }

    fn manifest_text(&self) -> String {
        format!("manifest of {}", self.name)
    }

    pub(crate) fn digests(&self) -> Vec<Digest> {
        self.objects.iter().map(|bytes| Digest::of(bytes)).collect()
    }

    pub(crate) fn layers(&self) -> Vec<LayerRecord> {
        let (format, verification) = (LayerKind::TarGzip, Verification::DiffId);
        vec![LayerRecord {
            digest: self.layer().digest,
            size: self.layer().size,
            format,
            verification,
            prefetch: None,
            index: None,
        }]
    }

    pub(crate) fn layer(&self) -> Blob {
        Blob { digest: Digest::of(self.name.as_bytes()), size: 8 << 20 }
    }

    pub(crate) fn index_key(&self) -> IndexKey {
        IndexKey { layer: self.layer().digest, claim: None }
    }

    /// Installs its record.
    pub(crate) fn install(&self, store: &Store, reference: &str) -> Result<(), StoreError> {
        let record = ImageRecord::new(self.manifest(), reference, "linux/amd64", self.layers());
        let mut staging = store.stage_image(record)?;
        staging.put(Part::Manifest, self.manifest_text().as_bytes())?;
        staging.put(Part::Config, b"{}")?;
        staging.put(Part::Tree, &[b"old ", &*content(7, 10_000)].concat())?;
        staging.put(Part::Chunks, &content(8, 5_000))?;
        staging.put_objects(self.digests())?;
        staging.install().map(drop)
    }

    pub(crate) fn make_complete(&self, store: &Store) -> Result<(), StoreError> {
        for object in &self.objects {
            put(store, object)?;
        }
        self.install(store, self.name)?;
        store.set_reference(self.name, "linux/amd64", &self.manifest())
    }

    /// Writes the first pieces of the largest object.
    pub(crate) fn write_pieces(&self, store: &Store, count: usize) -> Result<(), StoreError> {
        let object = &self.objects[2];
        let partial = store.partial(&Digest::of(object), &LIST, object.len() as u64)?;
        for (number, piece) in object.chunks(PIECE).enumerate().take(count) {
            partial.write_at(&verified(piece), (number * PIECE) as u64)?;
        }
        Ok(())
    }

    /// Stores the first bytes of the layer.
    pub(crate) fn begin_layer(&self, store: &Store) {
        let bytes = content(9, 9_000);
        let Some(mut part) = store.layer_part(self.layer()) else { return };
        let held = usize::try_from(part.held()).unwrap();
        part.append(bytes.get(held..).unwrap_or_default());
    }
}

/// The mount point of a mounted image.
pub(crate) fn mount_point(image: &Image) -> PathBuf {
    Path::new("/mnt").join(image.name)
}

impl State {
    /// Brings a store into this state, from any state in which a disturbed operation left it.
    pub(crate) fn prepare(self, store: &Store, image: &Image, other: &Image) -> Result<(), StoreError> {
        other.make_complete(store)?;
        match self {
            Self::Absent | Self::NoStore => Ok(()),
            Self::Half => {
                put(store, &image.objects[0])?;
                image.write_pieces(store, 1)?;
                store.keep_layer_index(&image.index_key(), &content(10, 3_000))?;
                image.begin_layer(store);
                Ok(())
            }
            Self::Mounted => {
                image.make_complete(store)?;
                let point = mount_point(image);
                store.record_mount(&point, &image.manifest(), image.name, "native").map(drop)
            }
        }
    }
}

/// The file of a complete object.
pub(crate) fn path_of(folder: &Path, object: &Digest) -> PathBuf {
    let hex = object.hex();
    folder.join("objects").join(&hex[..2]).join(&hex[2..])
}

/// Overwrites a file of the store in place, as a bad disk does.
pub(crate) fn damage(path: &Path) {
    let Ok(metadata) = fs::metadata(path) else { return };
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(path, vec![b'x'; usize::try_from(metadata.len()).unwrap()]).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o444)).unwrap();
}

/// Makes the record one of the version before, whose tree must be rewritten.
pub(crate) fn make_old(folder: &Path, image: &Image) {
    let path = folder.join("images").join(image.manifest().hex()).join("record.json");
    let text = fs::read_to_string(&path).unwrap();
    let value = &text[text.find("\"value\":").unwrap() + 8..text.trim_end().len() - 1];
    let old = value.replacen("\"version\":2", "\"version\":1", 1);
    fs::write(path, format!("{{\"digest\":\"{}\",\"value\":{old}}}\n", Digest::of(old.as_bytes()))).unwrap();
}

/// What [`StoreConfig::renew_tree`](tarpon_store::StoreConfig) does here.
pub(crate) fn renew(tree: &[u8]) -> Option<Vec<u8>> {
    Some([b"new ", tree.strip_prefix(b"old ")?].concat())
}
