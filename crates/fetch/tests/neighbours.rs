//! Bytes that come along in the request for a small file, and their cost.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{Random, World, noise};
use tarpon_fetch::{BootPiece, BootWriter};
use tarpon_oci::Digest;
use tarpon_testkit::source::{Form, PackedLayer, Packer, Reply, Then};
use tokio::time::Instant;

const KIB: usize = 1 << 10;
const SMALL: usize = 4 * KIB;
const FILES: u64 = 400;
/// Size of the file that measures the link and earns the allowance for neighbours.
const LARGE: usize = 1 << 20;
const CHUNK: usize = 64 * KIB;

/// A layer of one large file and many small ones.
struct Tree {
    layer: PackedLayer,
    large: Digest,
    files: Vec<(Digest, Vec<u8>)>,
}

impl Tree {
    fn new(form: Form) -> Self {
        let mut packer = Packer::new(form);
        let large = packer.object(&noise(FILES, LARGE), CHUNK);
        let contents = (0..FILES).map(|seed| noise(seed, SMALL));
        let files = contents.map(|content| (packer.gap(512).object(&content, SMALL), content)).collect();
        Self { layer: packer.finish(), large, files }
    }

    async fn world(&self) -> World {
        self.learnt(World::new(&[&self.layer])).await
    }

    /// The image behind ten milliseconds and 16 MiB/s, after the large file has been read.
    async fn learnt(&self, world: World) -> World {
        world.source.always(reply(Then::Bytes));
        // Out of order, so that nothing is read ahead.
        for chunk in 0..LARGE / CHUNK {
            let at = chunk * 7 % (LARGE / CHUNK) * CHUNK;
            world.read(&self.large, at as u64, CHUNK as u64).await.unwrap();
        }
        world.quiet().await;
        world
    }
}

fn reply(then: Then) -> Reply {
    Reply { latency: Duration::from_millis(10), pace: Duration::from_millis(1), part: 16 * KIB, then }
}

async fn read(world: &World, (object, content): &(Digest, Vec<u8>)) {
    assert_eq!(world.read(object, 0, content.len() as u64).await.unwrap(), *content);
}

#[tokio::test(start_paused = true)]
async fn small_files_that_lie_together_cost_one_round_trip_for_many() {
    for form in [Form::Raw, Form::Gzip, Form::Zstd] {
        let tree = Tree::new(form);
        let world = tree.world().await;
        let (before, began) = (world.image.stats(), Instant::now());
        for file in tree.files.iter().take(100) {
            read(&world, file).await;
        }
        let stats = world.image.stats();
        assert!(stats.requests - before.requests < 20, "{form:?}: {stats:?}");
        assert!(began.elapsed() < Duration::from_millis(100 * 10 / 3), "{form:?}: {:?}", began.elapsed());
        assert!(stats.early_ahead.used - before.early_ahead.used > 80 * SMALL as u64, "{form:?}: {stats:?}");
        world.quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn neighbours_are_at_most_as_many_bytes_as_readers_requested() {
    let tree = Tree::new(Form::Raw);
    let world = tree.world().await;
    let mut random = Random(3);
    for _ in 0..150 {
        read(&world, &tree.files[random.index(tree.files.len())]).await;
    }
    world.quiet().await;
    let stats = world.image.stats();
    assert!(stats.bytes_ahead > stats.bytes_demand / 2 && stats.bytes_ahead <= stats.bytes_demand, "{stats:?}");
    assert_eq!(stats.bytes_fetched, world.asked());
}

#[tokio::test(start_paused = true)]
async fn before_the_link_is_known_nothing_comes_along() {
    let tree = Tree::new(Form::Raw);
    let world = World::new(&[&tree.layer]);
    for file in tree.files.iter().take(20) {
        read(&world, file).await;
    }
    assert_eq!(world.asked(), 20 * SMALL as u64);
}

#[tokio::test(start_paused = true)]
async fn a_reader_gets_its_piece_at_once_and_the_neighbours_still_arrive() {
    let tree = Tree::new(Form::Raw);
    let world = tree.world().await;
    let began = Instant::now();
    read(&world, &tree.files[200]).await;
    assert!(began.elapsed() <= Duration::from_millis(12), "{:?}", began.elapsed());
    assert!(world.fetcher.pieces_in_flight() > 10);
    world.quiet().await;
    let requests = world.image.stats().requests;
    read(&world, &tree.files[210]).await;
    assert_eq!(world.image.stats().requests, requests);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_is_cancelled_before_its_piece_arrived_cancels_the_neighbours() {
    let tree = Tree::new(Form::Raw);
    let world = tree.world().await;
    let gone = tokio::time::timeout(Duration::from_millis(5), read(&world, &tree.files[200])).await;
    assert!(gone.is_err());
    world.quiet().await;
    let before = world.image.stats();
    read(&world, &tree.files[201]).await;
    assert!(world.image.stats().requests > before.requests);
}

#[tokio::test(start_paused = true)]
async fn neighbours_that_did_not_arrive_are_requested_by_the_next_reader() {
    let tree = Tree::new(Form::Raw);
    let world = tree.world().await;
    // The first file arrives, the bytes behind it do not.
    world.source.script([reply(Then::End(SMALL + 600))]);
    read(&world, &tree.files[200]).await;
    world.quiet().await;
    for file in &tree.files[201..220] {
        read(&world, file).await;
    }
    assert_eq!(world.image.stats().failed_reads, 0);
}

#[tokio::test(start_paused = true)]
async fn no_neighbours_are_fetched_while_a_boot_pack_is_in_use() {
    let tree = Tree::new(Form::Raw);
    let (object, content) = &tree.files[399];
    let mut writer = BootWriter::new(Vec::new()).unwrap();
    writer.add(BootPiece { object: *object, offset: 0, length: 4096 }, content).unwrap();
    let (index, pack) = writer.finish("default".into()).unwrap();
    let world = World::of(&[&tree.layer], [Bytes::from(pack)]);
    let world = tree.learnt(world).await;
    assert!(world.image.replay(&index));
    while world.image.is_replaying() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let before = world.asked();
    for file in tree.files.iter().skip(200).take(20) {
        read(&world, file).await;
    }
    assert_eq!(world.asked() - before, 20 * SMALL as u64);
}

#[tokio::test(start_paused = true)]
async fn a_reader_waits_for_no_byte_behind_his_own_piece() {
    let tree = Tree::new(Form::Raw);
    let world = tree.world().await;
    world.source.script([reply(Then::Hang(SMALL + 100))]);
    let began = Instant::now();
    read(&world, &tree.files[200]).await;
    assert!(began.elapsed() <= Duration::from_millis(12), "{:?}", began.elapsed());
    // A reader that joins a hanging request sends its own before it has waited too long, and no other reader waits.
    read(&world, &tree.files[300]).await;
    read(&world, &tree.files[201]).await;
    assert!(began.elapsed() < Duration::from_secs(11), "{:?}", began.elapsed());
    assert_eq!((world.image.stats().failed_reads, world.image.stats().last_error), (0, None));
}

#[tokio::test(start_paused = true)]
async fn a_wrong_piece_is_requested_again_before_its_neighbours_arrive() {
    let tree = Tree::new(Form::Raw);
    let world = tree.world().await;
    world.source.script([reply(Then::Garbage)]);
    let (before, began) = (world.image.stats(), Instant::now());
    read(&world, &tree.files[200]).await;
    assert!(began.elapsed() <= Duration::from_millis(24), "{:?}", began.elapsed());
    assert_eq!(world.image.stats().digest_failures - before.digest_failures, 1);
    world.quiet().await;
    assert_eq!(world.image.stats().bytes_ahead, before.bytes_ahead, "only the first answer brings any along");
}

#[tokio::test(start_paused = true)]
async fn neighbours_take_little_memory_even_if_they_compress_well() {
    let mut packer = Packer::new(Form::Gzip);
    let large = packer.object(&noise(FILES, LARGE), CHUNK);
    let files = (0..20_u8).map(|seed| vec![seed; LARGE]);
    let files = files.map(|content| (packer.object(&content, LARGE), content)).collect();
    let tree = Tree { layer: packer.finish(), large, files };
    let world = tree.world().await;
    world.quiet().await;
    let before = world.image.stats();
    world.read(&tree.files[10].0, 0, 4096).await.unwrap();
    world.quiet().await;
    let stats = world.image.stats();
    assert!(stats.early_ahead.brought - before.early_ahead.brought <= 4 << 20, "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn no_neighbours_come_while_another_reader_waits() {
    let tree = Tree::new(Form::Raw);
    let world = tree.world().await;
    let before = world.asked();
    tokio::join!(read(&world, &tree.files[300]), read(&world, &tree.files[200]));
    world.quiet().await;
    let first = world.source.requests().into_iter().rev().nth(1).unwrap().1;
    assert_eq!(world.asked() - before, first.end - first.start + SMALL as u64);
}
