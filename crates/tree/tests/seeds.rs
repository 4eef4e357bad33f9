//! Runs the fuzz targets on their seeds, without a panic.

use std::fs;
use std::path::{Path, PathBuf};

use tarpon_testkit::{fuzz, stacks};
use tarpon_tree::erofs::{self, Image, ImageError};
use tarpon_tree::merge;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/fuzz").join(name)
}

fn replay(name: &str, target: fn(&[u8])) {
    let folder = folder(name);
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

/// The stacks of the one folder, as version 1 and version 2 wrote them into the other.
#[test]
fn a_tree_of_version_1_is_rewritten_as_its_layers_would_be() {
    for number in 1..=6 {
        let seed = |target: &str, version: &str| {
            fs::read(folder(target).join(format!("{version}{number:03}-stack"))).expect("a seed")
        };
        let old = seed("erofs_image", "v1-");
        assert_eq!(Image::open(&*old).err(), Some(ImageError::Outdated));
        let renewed = erofs::renew(&old).expect("it holds together").expect("it is old");
        let layers = stacks::from_bytes(&seed("tree_build", ""));
        let tree = merge(&layers).expect("not refused");
        assert_eq!(
            Image::open(&*renewed).expect("an image").dump().expect("it holds together"),
            tree.dump(),
            "{number}"
        );
        assert!(renewed == erofs::write(&tree), "{number}");
        assert!(renewed == seed("erofs_image", "v2-"), "{number}: a change of what is written is a new version");
        assert_eq!(erofs::renew(&renewed), Ok(None), "it is new now");
    }
}

#[test]
#[ignore = "writes the seeds of trees in fixtures/fuzz anew"]
fn write_seeds() {
    for seed in fs::read_dir(folder("tree_build")).expect("a folder of seeds") {
        let seed = seed.expect("readable");
        let layers = stacks::from_bytes(&fs::read(seed.path()).expect("readable"));
        if let Ok(tree) = merge(&layers) {
            let name = format!("v2-{}", seed.file_name().to_string_lossy());
            fs::write(folder("erofs_image").join(name), erofs::write(&tree)).expect("a seed");
        }
    }
}
