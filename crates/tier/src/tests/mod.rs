//! Tests of a tier over stores in memory, in folders, and over faulty ones. Time is paused where something waits.

mod claims;
mod contents;
pub(crate) mod faulty;
mod folder;
mod health;
mod layers;
mod links;
mod reads;
mod uploads;

use std::sync::Arc;

use bytes::Bytes;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::path::Path;
use tarpon_oci::{Blob, Digest, Verified};

use crate::{SharedLayer, Tier};
use faulty::FaultyStore;

/// A tier in memory, and the store below it.
fn tier() -> (Arc<FaultyStore>, Arc<Tier>) {
    let store = FaultyStore::over(InMemory::new());
    let tier = over(store.clone());
    (store, tier)
}

/// A host's view of a store. Each host has one.
fn over(store: Arc<dyn ObjectStore>) -> Arc<Tier> {
    Tier::over("s3://bucket/team".parse().unwrap(), store)
}

/// `size` bytes that differ from place to place.
fn bytes(size: usize) -> Bytes {
    let mut bytes = (0..=250).collect::<Vec<u8>>().repeat(size / 251 + 1);
    bytes.truncate(size);
    bytes.into()
}

fn blob(bytes: &Bytes) -> Blob {
    Blob { digest: Digest::of(bytes), size: bytes.len() as u64 }
}

fn layer(tier: &Arc<Tier>, bytes: &Bytes) -> SharedLayer {
    SharedLayer::new(tier, blob(bytes))
}

/// Proof that the bytes of the layer were compared.
fn proof(bytes: &Bytes) -> Verified<()> {
    Verified::seal(bytes.clone()).proof()
}

/// The path of an object of the layer with this blob.
fn object(blob: &Bytes, name: &str) -> Path {
    Path::from(format!("team/v1/layers/{}/{name}", Digest::of(blob).hex()))
}
