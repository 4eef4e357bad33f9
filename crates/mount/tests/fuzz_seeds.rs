//! Runs the fuzz target of FUSE requests on its seeds, and on random bytes.

use std::path::{Path, PathBuf};

use tarpon_testkit::fuzz;
use tarpon_testkit::seeds::{Random, Seeds};

/// Random inputs of an ordinary run.
const INPUTS: u64 = 60;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/fuzz/fuse_requests")
}

#[test]
fn seeds_of_fuse_requests_are_answered_as_the_models_answer_them() {
    let seeds: Vec<_> = std::fs::read_dir(folder()).expect("a folder of seeds").collect();
    assert!(seeds.len() >= 8, "{} seeds", seeds.len());
    for seed in seeds {
        fuzz::fuse_requests(&std::fs::read(seed.expect("readable").path()).expect("readable"));
    }
}

#[test]
fn random_fuse_requests_are_answered_as_the_models_answer_them() {
    for seed in Seeds::from_environment(INPUTS) {
        println!("SEED={seed}");
        fuzz::fuse_requests(&random(seed, 400));
    }
}

fn random(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random(seed);
    (0..length).map(|_| random.next().to_le_bytes()[0]).collect()
}

#[test]
#[ignore = "rewrites the first seeds in fixtures/fuzz"]
fn write_seeds() {
    std::fs::create_dir_all(folder()).expect("a folder");
    for seed in 0..10 {
        std::fs::write(folder().join(format!("{seed:03}")), random(seed, 200)).expect("a seed");
    }
}
