//! Hosts that share layers through a tier: what the registry sends, and what hosts read when the tier fails.

use std::path::Path;
use std::sync::OnceLock;

use tarpon_harness::bucket::{self, Bucket};
use tarpon_testkit::matrix;
use tarpon_tests::real;
use tarpon_tests::tiered::{Place, SharedImage, TieredHost, start};
use tarpon_tests::wire::Wire;
use tempfile::TempDir;

/// An image of which most requests are for files of a distribution.
fn real_image() -> &'static SharedImage {
    static IMAGE: OnceLock<SharedImage> = OnceLock::new();
    IMAGE.get_or_init(|| SharedImage::real(&real::registry().unwrap()))
}

/// An image whose files are larger than what is fetched at once.
fn made_image() -> &'static SharedImage {
    static IMAGE: OnceLock<SharedImage> = OnceLock::new();
    IMAGE.get_or_init(|| SharedImage::made(&real::registry().unwrap()))
}

fn is_skipped() -> bool {
    let missing = real::missing();
    if let Some(reason) = &missing {
        println!("skipped: {reason}");
    }
    missing.is_some()
}

/// How many hosts start at the same time.
fn crowd() -> usize {
    if matrix::is_full() { 12 } else { 4 }
}

/// An empty folder that hosts share.
struct Shared {
    folder: TempDir,
}

impl Shared {
    fn new() -> Self {
        Self { folder: real::scratch().unwrap() }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn place(&self) -> Place {
        Place::folder(self.path())
    }
}

/// A registry's proxy.
fn wire() -> Wire {
    Wire::to(&real::registry().unwrap()).unwrap()
}

fn hosts(count: usize, wire: &Wire, image: &SharedImage, place: &Place) -> Vec<TieredHost> {
    (0..count).map(|_| TieredHost::new(&wire.address(), image, Some(place))).collect()
}

/// Hosts that start together transfer each layer once, and later ones transfer none.
fn storm(image: &SharedImage, place: &Place, what: &str) {
    let alone = wire();
    start(&[TieredHost::new(&alone.address(), image, None)], image);
    let wire = wire();
    start(&hosts(crowd(), &wire, image, place), image);
    let (one, all) = (alone.bytes(), wire.bytes());
    println!("{what}: the registry sent {one} bytes for one host without a tier and {all} for {} with it", crowd());
    assert!(one >= image.bytes, "{one} bytes");
    assert!(all * 10 <= one * 11, "{all} bytes for {} hosts, {one} for one", crowd());
    assert_eq!(image.requests(&wire), vec![1; image.layers.len()], "each layer is requested once");
    start(&hosts(2, &wire, image, place), image);
    assert_eq!(image.requests(&wire), vec![1; image.layers.len()], "later hosts request no layer");
}

#[test]
fn hosts_that_share_a_folder_cost_the_registry_what_one_costs() {
    if is_skipped() {
        return;
    }
    for image in [real_image(), made_image()] {
        let shared = Shared::new();
        storm(image, &shared.place(), &format!("{}, a folder", image.name));
    }
}

#[test]
fn hosts_that_share_a_bucket_cost_the_registry_what_one_costs() {
    if is_skipped() {
        return;
    }
    if let Some(reason) = bucket::missing() {
        return println!("skipped: {reason}");
    }
    for image in [real_image(), made_image()] {
        let folder = real::scratch().unwrap();
        let bucket = Bucket::start(folder.path()).unwrap();
        storm(image, &Place::bucket(&bucket), &format!("{}, {:?}", image.name, bucket.server()));
    }
}
