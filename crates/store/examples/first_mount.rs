//! Measures the cost of checking the local objects of an image: in the first mount after boot, and in all later ones.
//!
//! `cargo run --release -p tarpon-store --example first_mount [OBJECTS] [BYTES]`
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

use std::error::Error;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tarpon_blob::ObjectStore as _;
use tarpon_oci::{Digest, Verified};
use tarpon_store::{ImageRecord, Part, Store, StoreConfig};
use tarpon_testkit::storage::FaultyDisk;

fn open(folder: &Path, boot: &str) -> Result<Store, Box<dyn Error>> {
    let storage = Arc::new(FaultyDisk::healthy().booted_as(boot));
    Ok(Store::open(folder, StoreConfig { storage, free_floor: Some(0), ..StoreConfig::default() })?)
}

fn fill(store: &Store, objects: u64, bytes: usize) -> Result<Digest, Box<dyn Error>> {
    let mut ids = Vec::new();
    for number in 0..objects {
        let mut content = vec![0xa5; bytes];
        content[..8].copy_from_slice(&number.to_le_bytes());
        let mut writer = store.writer(bytes as u64)?;
        writer.write_all(&content)?;
        let sealed = Verified::seal(content);
        ids.push(*sealed.digest());
        writer.publish(sealed.proof())?;
    }
    let manifest = Digest::of(b"manifest");
    let mut staging = store.stage_image(ImageRecord::new(manifest, "image", "linux/amd64", Vec::new()))?;
    staging.put(Part::Manifest, b"manifest")?;
    for part in [Part::Config, Part::Tree, Part::Chunks] {
        staging.put(part, b"{}")?;
    }
    staging.put_objects(ids)?;
    staging.install()?;
    Ok(manifest)
}

fn main() -> Result<(), Box<dyn Error>> {
    let number = |at: usize, default: u64| std::env::args().nth(at).and_then(|n| n.parse().ok()).unwrap_or(default);
    let (objects, bytes) = (number(1, 30_000), number(2, 35_000));
    let folder = tempfile::tempdir()?;
    let store = open(folder.path(), "first boot")?;
    let manifest = fill(&store, objects, usize::try_from(bytes)?)?;
    drop(store);
    for boot in ["first boot", "second boot"] {
        for run in ["reopened", "looked at again"] {
            let store = open(folder.path(), boot)?;
            let began = Instant::now();
            let checked = store.check_image(&manifest, &|_| {})?.hashed;
            let took = began.elapsed();
            let rate = checked.bytes as f64 / took.as_secs_f64() / 1e6;
            println!("{boot}, {run}: {took:.1?}, hashed {} of {objects} objects, {rate:.0} MB/s", checked.objects);
        }
    }
    Ok(())
}
