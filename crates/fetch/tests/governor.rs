//! When the rest of an image is fetched whole, when it is not, and when that ends.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::{Random, World, noise};
use tarpon_blob::Fault;
use tarpon_fetch::{BootPiece, BootWriter, Config, Fetcher};
use tarpon_oci::Digest;
use tarpon_testkit::source::{Form, MemorySource, MemoryStore, PackedLayer, Packer, Refusal, Reply, Then, table_of};
use tokio::runtime::Handle;
use tokio::time::Instant;

const KIB: usize = 1 << 10;
/// Files of 4 KiB each, so that round trips are nearly their whole cost.
const FILES: u64 = 2_000;

/// A layer of many small files.
struct Tree {
    layer: PackedLayer,
    files: Vec<(Digest, Vec<u8>)>,
}

impl Tree {
    fn new(form: Form, files: u64, bytes: usize) -> Self {
        let mut packer = Packer::new(form);
        let contents = (0..files).map(|seed| noise(seed, bytes));
        let files = contents.map(|content| (packer.gap(512).object(&content, bytes), content)).collect();
        Self { layer: packer.finish(), files }
    }

    /// The files in an order other than that of the layer.
    fn shuffled(&self) -> Vec<&(Digest, Vec<u8>)> {
        let (mut files, mut random): (Vec<_>, _) = (self.files.iter().collect(), Random(7));
        for place in (1..files.len()).rev() {
            files.swap(place, random.index(place + 1));
        }
        files
    }

    fn world(&self) -> World {
        let world = World::with(&[&self.layer], MemoryStore::default(), Config::default());
        link(&world.source);
        world
    }
}

/// Ten milliseconds to the first byte, and 16 MiB/s from there.
fn link(source: &MemorySource) {
    let (latency, pace) = (Duration::from_millis(10), Duration::from_millis(1));
    source.always(Reply { latency, pace, part: 16 * KIB, then: Then::Bytes });
}

async fn read(world: &World, (object, content): &(Digest, Vec<u8>)) {
    assert_eq!(world.read(object, 0, content.len() as u64).await.unwrap(), *content);
}

/// Waits until no whole download runs, for a minute at most.
async fn until_lazy(world: &World) {
    let mut rounds = 0;
    while world.image.is_downloading() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        rounds += 1;
        assert!(rounds < 600, "it never ends");
    }
    world.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_every_small_file_gets_the_rest_of_the_image_whole() {
    let tree = Tree::new(Form::Gzip, FILES, 4 * KIB);
    let world = tree.world();
    let began = Instant::now();
    for file in tree.shuffled() {
        read(&world, file).await;
    }
    let stats = world.image.stats();
    assert_eq!(stats.whole_downloads, 1, "{stats:?}");
    assert!(began.elapsed() < Duration::from_millis(FILES * 11 / 4), "{:?}", began.elapsed());
    assert!(stats.requests < FILES / 4, "{}", stats.requests);
    assert!(stats.bytes_whole > stats.bytes_fetched / 2, "{stats:?}");
    assert!(world.asked() < tree.layer.blob.size * 5 / 4, "little is brought twice: {}", world.asked());
    until_lazy(&world).await;
}

#[tokio::test(start_paused = true)]
async fn a_start_that_touches_a_part_in_many_reads_stays_lazy() {
    // 3.4 s of stalls, of which one is transfer; the rest of the image would take more than five.
    let tree = Tree::new(Form::Raw, 1_200, 21 * KIB);
    let world = tree.world();
    world.source.always(Reply {
        latency: Duration::from_millis(10),
        pace: Duration::from_millis(4),
        part: 16 * KIB,
        then: Then::Bytes,
    });
    for file in tree.shuffled().into_iter().take(190) {
        read(&world, file).await;
    }
    world.quiet().await;
    let stats = world.image.stats();
    assert!(stats.stall_millis > 3_000, "{stats:?}");
    assert_eq!((stats.whole_downloads, stats.bytes_whole, world.asked()), (0, 0, 190 * 21 * 1024));
}

#[tokio::test(start_paused = true)]
async fn the_download_ends_when_readers_are_quiet_and_continues_when_one_waits_again() {
    // 16 MiB that a slow source sends at 256 KiB/s: a minute.
    let tree = Tree::new(Form::Raw, 4_000, 4 * KIB);
    let world = tree.world();
    let (latency, pace) = (Duration::from_millis(300), Duration::from_millis(16));
    world.source.always(Reply { latency, pace, part: 4 * KIB, then: Then::Bytes });
    let mut files = tree.shuffled().into_iter();
    while world.image.stats().whole_downloads == 0 {
        read(&world, files.next().unwrap()).await;
    }
    until_lazy(&world).await;
    let asked = world.asked();
    assert!(asked < tree.layer.blob.size * 9 / 10, "{asked}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(world.asked(), asked);
    let mut more = 0;
    while world.image.stats().whole_downloads == 1 {
        read(&world, files.next().unwrap()).await;
        more += 1;
    }
    assert!(more < 20, "{more}");
    until_lazy(&world).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_without_room_ends_it_and_keeps_it_from_beginning() {
    let tree = Tree::new(Form::Raw, FILES, 4 * KIB);
    let world = tree.world();
    let mut files = tree.shuffled().into_iter();
    while world.image.stats().whole_downloads == 0 {
        read(&world, files.next().unwrap()).await;
    }
    world.store.refuse(Some(Refusal::Full));
    until_lazy(&world).await;
    let (asked, begun) = (world.asked(), world.image.stats().whole_downloads);
    for file in files.by_ref().take(100) {
        read(&world, file).await;
    }
    world.quiet().await;
    assert_eq!(world.image.stats().whole_downloads, begun);
    assert!(world.asked() - asked <= 100 * 4 * 1024);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_fails_ends_it() {
    let tree = Tree::new(Form::Raw, FILES, 4 * KIB);
    let world = tree.world();
    let mut files = tree.shuffled().into_iter();
    while world.image.stats().whole_downloads == 0 {
        read(&world, files.next().unwrap()).await;
    }
    world.source.always(Then::Refuse(Fault::Unavailable).into());
    until_lazy(&world).await;
    assert!(world.source.requests().len() < 500, "{}", world.source.requests().len());
    link(&world.source);
    tokio::time::sleep(Duration::from_secs(10)).await;
    for file in files {
        read(&world, file).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_removed_image_is_not_downloaded() {
    let tree = Tree::new(Form::Raw, FILES, 4 * KIB);
    let World { fetcher, source, image, .. } = tree.world();
    let mut files = tree.shuffled().into_iter();
    while image.stats().whole_downloads == 0 {
        let (object, content) = files.next().unwrap();
        fetcher.read(object, 0, content.len() as u64).await.unwrap();
    }
    drop(image);
    while fetcher.pieces_in_flight() > 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let asked = source.requests().len();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(source.requests().len(), asked);
}

#[tokio::test(start_paused = true)]
async fn layers_without_random_access_are_left_to_the_passes_through_them() {
    let (tree, stream) = (Tree::new(Form::Raw, FILES, 4 * KIB), Tree::new(Form::GzipStream, 20, 5 * KIB));
    let world = World::new(&[&stream.layer, &tree.layer]);
    link(&world.source);
    for file in tree.shuffled() {
        read(&world, file).await;
    }
    until_lazy(&world).await;
    assert_eq!(world.image.stats().whole_downloads, 1);
    assert!(world.source.requests().iter().all(|(layer, _)| *layer == tree.layer.blob.digest));
}

#[tokio::test(start_paused = true)]
async fn local_bytes_are_not_requested_again_and_the_download_fetches_the_rest() {
    let tree = Tree::new(Form::Zstd, FILES, 4 * KIB);
    let world = tree.world();
    let (early, late) = tree.files.split_at(500);
    for file in late.iter().take(3) {
        read(&world, file).await;
    }
    let mut files = early.iter();
    while world.image.stats().whole_downloads == 0 {
        read(&world, files.next().unwrap()).await;
    }
    until_lazy(&world).await;
    let before = world.source.requests().len();
    for file in &tree.files {
        read(&world, file).await;
    }
    assert_eq!(world.source.requests().len(), before, "all of it is here");
    let ranges: HashSet<_> = world.source.requests().into_iter().map(|(_, range)| range.start).collect();
    assert_eq!(ranges.len(), before, "nothing was requested twice");
}

/// The bytes of a boot pack may have arrived before they are read, so they do not measure the link.
#[tokio::test(start_paused = true)]
async fn a_pack_that_arrives_at_once_does_not_make_a_slow_link_look_fast() {
    let tree = Tree::new(Form::Gzip, FILES, 4 * KIB);
    let (packed, others) = tree.files.split_at(400);
    let mut writer = BootWriter::new(Vec::new()).unwrap();
    for (object, content) in packed {
        writer.add(BootPiece { object: *object, offset: 0, length: 4096 }, content).unwrap();
    }
    let (index, pack) = writer.finish("default".into()).unwrap();
    let source = Arc::new(MemorySource::new([tree.layer.bytes.clone(), Bytes::from(pack)]));
    let at_once = Reply { latency: Duration::ZERO, pace: Duration::ZERO, part: 16 * KIB, then: Then::Bytes };
    source.always(at_once);
    let store = MemoryStore::default();
    let fetcher = Fetcher::new(Arc::new(store.clone()), Handle::current(), Config::default());
    let image = fetcher.add_image(table_of(&[&tree.layer]), source.clone(), "test:latest");
    let world = World { fetcher, store, source, image };
    assert!(world.image.replay(&index));
    for _round in 0..100 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!world.image.is_replaying());
    // 320 KB/s: the rest takes 20 s.
    world.source.always(Reply { latency: Duration::from_millis(60), pace: Duration::from_millis(50), ..at_once });
    for file in &others[..60] {
        read(&world, file).await;
    }
    until_lazy(&world).await;
    let stats = world.image.stats();
    assert_eq!(stats.whole_downloads, 0, "{stats:?}");
    assert!(stats.bytes_trace > 1 << 20 && stats.stall_millis > 2_000, "{stats:?}");
}
