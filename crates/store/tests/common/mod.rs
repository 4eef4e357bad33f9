//! Helpers of the store's tests.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{Read as _, Write as _};
use std::path::Path;

use bytes::Bytes;
use tarpon_blob::{ObjectStore as _, StoreError};
use tarpon_oci::{Digest, Verified};
use tarpon_store::{ImageRecord, LayerKind, LayerRecord, Part, Store, StoreConfig, Verification};

/// A chunk list of partial objects, for tests where its identity does not matter.
pub(crate) const LIST: Digest = Digest::from_bytes([7; 32]);

/// `size` bytes that differ for each `seed`.
pub(crate) fn content(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// A folder in memory if possible: thousands of cases would wear out a disk and slow the tests.
pub(crate) fn folder() -> std::io::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir())
}

pub(crate) fn open(folder: &Path) -> Store {
    Store::open(folder, StoreConfig::default()).unwrap()
}

pub(crate) fn put(store: &Store, bytes: &[u8]) -> Result<Digest, StoreError> {
    let mut writer = store.writer(bytes.len() as u64)?;
    writer.write_all(bytes).map_err(|_| StoreError::Full)?;
    let proof = Verified::seal(bytes);
    let digest = *proof.digest();
    let mut hasher = tarpon_oci::Hasher::new();
    hasher.update(bytes);
    writer.publish(Verified::check_stream(&digest, hasher).unwrap())?;
    Ok(digest)
}

pub(crate) fn get(store: &Store, object: &Digest) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    store.open(object).unwrap()?.read_to_end(&mut bytes).unwrap();
    Some(bytes)
}

pub(crate) fn verified(bytes: &[u8]) -> Verified<Bytes> {
    Verified::seal(Bytes::copy_from_slice(bytes))
}

/// Fills a partial object in pieces, the last one first, and publishes it.
pub(crate) fn put_by_pieces(store: &Store, bytes: &[u8], piece: usize) -> Result<Digest, StoreError> {
    let digest = Digest::of(bytes);
    let partial = store.partial(&digest, &LIST, bytes.len() as u64)?;
    let pieces: Vec<_> = bytes.chunks(piece).enumerate().collect();
    for (at, bytes) in pieces.into_iter().rev() {
        partial.write_at(&verified(bytes), (at * piece) as u64)?;
    }
    partial.publish()?;
    Ok(digest)
}

/// Installs an image of these objects; returns the digest of its manifest.
pub(crate) fn install(store: &Store, name: &str, objects: &[Digest]) -> Result<Digest, StoreError> {
    let manifest = format!("manifest of {name}");
    let digest = Digest::of(manifest.as_bytes());
    let layer = LayerRecord {
        digest: Digest::of(name.as_bytes()),
        size: 1234,
        format: LayerKind::TarGzip,
        verification: Verification::DiffId,
        prefetch: None,
        index: None,
    };
    let mut staging = store.stage_image(ImageRecord::new(digest, name, "linux/amd64", vec![layer]))?;
    staging.put(Part::Manifest, manifest.as_bytes())?;
    staging.put(Part::Config, b"{}")?;
    staging.put(Part::Tree, &content(1, 10_000))?;
    staging.put(Part::Chunks, &content(2, 5_000))?;
    staging.put_objects(objects.to_vec())?;
    staging.install()?;
    store.set_reference(name, "linux/amd64", &digest)?;
    Ok(digest)
}
