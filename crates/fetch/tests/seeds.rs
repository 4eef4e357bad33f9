//! The seeds of the fuzz targets of this crate, replayed. `--ignored` rewrites them.

use std::fs;
use std::path::{Path, PathBuf};

use tarpon_fetch::{BootIndex, BootPiece, BootWriter};
use tarpon_oci::Digest;
use tarpon_testkit::fuzz;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/fuzz").join(name)
}

#[test]
fn seeds_of_boot_index() {
    let seeds: Vec<_> = fs::read_dir(folder("boot_index")).expect("a folder of seeds").collect();
    assert!(seeds.len() >= 8);
    for seed in seeds {
        fuzz::boot_index(&fs::read(seed.expect("readable").path()).expect("readable"));
    }
}

fn index(profile: &str, pieces: &[(&[u8], u64)]) -> BootIndex {
    let mut writer = BootWriter::new(Vec::new()).expect("an encoder");
    for (content, offset) in pieces {
        let length = u32::try_from(content.len()).expect("small");
        writer.add(BootPiece { object: Digest::of(content), offset: *offset, length }, content).expect("memory");
    }
    writer.finish(profile.into()).expect("memory").0
}

#[test]
#[ignore = "writes the seeds"]
fn write_seeds_of_boot_index() {
    let large = vec![7; 200 << 10];
    let whole = index("default", &[(b"one", 0), (&large, 32 << 10), (&large, 1 << 20), (b"three", 7)]);
    let mut no_pieces = whole.clone();
    no_pieces.frames[0].pieces.clear();
    let mut other_size = whole.clone();
    other_size.blob.size += 1;
    let bytes = whole.write();
    let seeds = [
        bytes.clone(),
        index("", &[]).write(),
        index("a name", &[(b"x", 0)]).write(),
        no_pieces.write(),
        other_size.write(),
        bytes[..100].to_vec(),
        [&bytes[..], b"more"].concat(),
        bytes[..16].to_vec(),
    ];
    fs::create_dir_all(folder("boot_index")).expect("a folder");
    for (number, seed) in seeds.iter().enumerate() {
        fs::write(folder("boot_index").join(format!("{number:03}")), seed).expect("written");
    }
}
