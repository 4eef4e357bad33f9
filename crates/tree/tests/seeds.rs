//! The seeds of the fuzz targets go through them without a panic.

use std::fs;
use std::path::Path;

use tarpon_testkit::fuzz;

fn replay(name: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/fuzz").join(name);
    let seeds: Vec<_> = fs::read_dir(&folder).expect("a folder of seeds").collect();
    assert!(seeds.len() >= 8, "{} holds {} seeds", folder.display(), seeds.len());
    for seed in seeds {
        target(&fs::read(seed.expect("readable").path()).expect("readable"));
    }
}

#[test]
fn seeds_of_tree_build() {
    replay("tree_build", fuzz::tree_build);
}

#[test]
fn seeds_of_erofs_image() {
    replay("erofs_image", fuzz::erofs_image);
}
