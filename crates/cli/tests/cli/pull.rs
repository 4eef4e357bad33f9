//! `tarpon pull`, interrupted.

use std::process::Stdio;

use tarpon_engine::store::{Store, StoreConfig};
use tarpon_oci::Compression;
use tarpon_registry::serve::Contents;
use tarpon_testkit::layers::{Dialect, Image, Item, Layer, tar};
use tarpon_testkit::registry::Auth;

use crate::world::World;

/// Large enough that no pull finishes before the test notices its start.
const WORDS: u32 = 6 << 20;
/// Size limit of the store. Without it, partial layers are kept only if the disk has gigabytes free.
const STORE: u64 = 256 << 20;
/// Bytes that must be local when the pull is killed.
const BEGUN: u64 = 4 << 20;

#[test]
fn a_killed_pull_resumes_within_a_layer() {
    let content: Vec<u8> = (0..WORDS).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let tar = tar(&[Item::file("large", content)], Dialect::Pax);
    let image = Image::of([Layer::plain(&tar, Compression::None)]);
    let mut contents = Contents::new();
    image.add_to(&mut contents, "app", "v1");
    let world = World::serving(contents, Auth::Anonymous);
    let layer = image.layers[0].descriptor();

    let store = Store::open(&world.path("store"), StoreConfig::default()).expect("a store");
    store.set_budget(STORE).expect("it takes a setting");

    let mut command = world.command(&["--quiet", "pull", "HOST/app:v1"]);
    let mut child = command.stdout(Stdio::null()).spawn().expect("it runs");
    let part = world.path("store/partial/layers").join(layer.digest.hex());
    while std::fs::metadata(&part).map_or(0, |part| part.len()) < BEGUN {
        assert!(child.try_wait().expect("it can be asked").is_none(), "it ended before it was killed");
        std::thread::yield_now();
    }
    child.kill().expect("it runs");
    child.wait().expect("it ends");

    let before = world.server().stats().bytes;
    world.stdout(&["--quiet", "pull", "HOST/app:v1"]);
    let after = world.server().stats().bytes;
    assert!(after - before < layer.size - BEGUN + (64 << 10), "all but what was there: {}", after - before);
    assert!(!part.exists());
    world.stdout(&["cache", "verify"]);
}
