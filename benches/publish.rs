//! Measures how fast objects are published and images are opened: `cargo bench -p tarpon-benches --bench publish`. The folder is
//! `$TARPON_BENCH_DIR`, else a temporary one.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

use std::io::Write as _;
use std::time::Instant;

use tarpon_blob::ObjectStore as _;
use tarpon_oci::{Digest, Hasher, Verified};
use tarpon_store::{ImageRecord, Part, Store, StoreConfig};

const OBJECTS: usize = 35_000;

fn main() {
    let folder = match std::env::var_os("TARPON_BENCH_DIR") {
        Some(folder) => tempfile::tempdir_in(folder),
        None => tempfile::tempdir(),
    }
    .unwrap();
    let store = Store::open(folder.path(), StoreConfig::default()).unwrap();
    for size in [200, 3_000, 30_000] {
        let objects: Vec<(Vec<u8>, Digest)> = (0..OBJECTS).map(|seed| content(seed, size)).collect();
        report(&format!("publish {OBJECTS} objects of {size} bytes"), || publish(&store, &objects));
        report(&format!("publish {OBJECTS} objects of {size} bytes that are here"), || publish(&store, &objects));
    }
    let ids: Vec<Digest> = (0..OBJECTS).map(|seed| content(seed, 3_000).1).collect();
    report("open 35000 objects", || ids.iter().for_each(|id| assert!(store.open(id).unwrap().is_some())));
    let manifest = report("install an image record of 10 MB", || install(&store, ids));
    report("open the store", || drop(Store::open(folder.path(), StoreConfig::default()).unwrap()));
    report("load the image", || drop(store.load_image(&manifest).unwrap().unwrap()));
    report("gc", || drop(store.gc().unwrap()));
    report("verify", || drop(store.verify(|_| {}).unwrap()));
}

fn report<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (begun, cpu) = (Instant::now(), cpu_seconds());
    let outcome = work();
    let (elapsed, cpu) = (begun.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    println!("{what}: {:.1} ms, {:.1} ms on the processor", elapsed * 1e3, cpu * 1e3);
    outcome
}

/// CPU time of this thread, which is the measure on a busy machine.
fn cpu_seconds() -> f64 {
    let line = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    line.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

fn content(seed: usize, size: usize) -> (Vec<u8>, Digest) {
    let bytes: Vec<u8> = (seed as u64 * 1000 + size as u64).to_le_bytes().into_iter().cycle().take(size).collect();
    let digest = Digest::of(&bytes);
    (bytes, digest)
}

fn publish(store: &Store, objects: &[(Vec<u8>, Digest)]) {
    for (bytes, digest) in objects {
        let mut writer = store.writer(bytes.len() as u64).unwrap();
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        writer.write_all(bytes).unwrap();
        writer.publish(Verified::check_stream(digest, hasher).unwrap()).unwrap();
    }
}

fn install(store: &Store, ids: Vec<Digest>) -> Digest {
    let manifest = Digest::of(b"{}");
    let mut staging = store.stage_image(ImageRecord::new(manifest, "bench", "linux/amd64", vec![])).unwrap();
    staging.put(Part::Manifest, b"{}").unwrap();
    staging.put(Part::Config, b"{}").unwrap();
    staging.put(Part::Tree, &vec![1; 6 << 20]).unwrap();
    staging.put(Part::Chunks, &vec![2; 4 << 20]).unwrap();
    staging.put_objects(ids).unwrap();
    staging.install().unwrap().manifest
}
