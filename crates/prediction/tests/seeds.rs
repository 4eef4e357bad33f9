//! The seeds of the fuzz target `predicted_start`, replayed whole and truncated.

use std::fs;
use std::path::Path;

use tarpon_testkit::fuzz;

#[test]
fn seeds_of_predicted_start() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/fuzz/predicted_start");
    let seeds: Vec<_> = fs::read_dir(folder).expect("a folder of seeds").collect();
    assert!(seeds.len() >= 10);
    for seed in seeds {
        let seed = fs::read(seed.expect("readable").path()).expect("readable");
        (0..=seed.len()).rev().step_by(7).for_each(|end| fuzz::predicted_start(&seed[..end]));
    }
}
