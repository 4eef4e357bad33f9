//! `tarpon pull`, interrupted.

use std::process::Stdio;

use tarpon_engine::store::{Store, StoreConfig};
use tarpon_oci::Compression;
use tarpon_registry::serve::Contents;
use tarpon_testkit::layers::{Dialect, ImageBuilder, Item, Layer, tar};
use tarpon_testkit::registry::Auth;

use crate::world::{World, add};

/// Long enough that nobody is done with it before it is noticed that he has begun.
const WORDS: u32 = 6 << 20;
/// Bytes that the store may hold. With as many as a large disk allows, beginnings of layers are kept only where gigabytes are free.
const STORE: u64 = 256 << 20;
/// So much is to be there when it is killed.
const BEGUN: u64 = 4 << 20;

#[test]
fn a_pull_that_was_killed_goes_on_inside_of_the_layer() {
    let content: Vec<u8> = (0..WORDS).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let tar = tar(&[Item::file("large", content)], Dialect::Pax);
    let image = ImageBuilder::new().layer(Layer::plain(&tar, Compression::None)).build();
    let mut contents = Contents::new();
    add(&mut contents, ("app", "v1"), &image, |_| true);
    let world = World::serving(contents, Auth::Anonymous);
    let layer = image.layers[0].descriptor();

    let store = Store::open(&world.path("store"), StoreConfig::default()).expect("a store");
    store.settle_budget(STORE).expect("it takes a setting");

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
