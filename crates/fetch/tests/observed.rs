//! What is reported about fetching: the causes of fetched bytes, the use of early ones, and the waits of readers with their causes.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::{World, noise};
use parking_lot::Mutex;
use tarpon_blob::Fault;
use tarpon_fetch::{
    BootIndex, BootPiece, BootWriter, Config, Early, Event, Fetcher, ImageHandle, ReadObserver, Stats, WaitSum,
    WaitedFor,
};
use tarpon_oci::Digest;
use tarpon_testkit::source::{Form, MemorySource, MemoryStore, PackedLayer, Packer, Refusal, Reply, Then, table_of};
use tokio::runtime::Handle;

const KIB: u64 = 1 << 10;
const SMALL: u64 = 40 * KIB;
const CHUNK: u64 = 64 * KIB;
const LARGE: u64 = 1024 * KIB;

/// How long a test waits for other threads before it fails: far longer than they ever take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits for events on other threads, which the paused clock ignores.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed() < TIMEOUT, "waited in vain: {what}");
        tokio::task::yield_now().await;
    }
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap()
}

/// Four small files of a chunk each, and a large one of sixteen.
struct Files {
    layer: PackedLayer,
    small: Vec<(Digest, Vec<u8>)>,
    large: (Digest, Vec<u8>),
}

impl Files {
    fn new() -> Self {
        let mut packer = Packer::new(Form::Gzip);
        let contents = (0..4).map(|seed| noise(seed, size(SMALL)));
        let small = contents.map(|content| (packer.object(&content, size(CHUNK)), content)).collect();
        let content = noise(99, size(LARGE));
        let large = (packer.object(&content, size(CHUNK)), content);
        Self { layer: packer.finish(), small, large }
    }

    /// The small files, then two chunks of the large one.
    fn pack(&self) -> (BootIndex, Vec<u8>) {
        let mut writer = BootWriter::new(Vec::new()).unwrap();
        let mut add = |(object, content): &(Digest, Vec<u8>), range: std::ops::Range<usize>| {
            let length = u32::try_from(range.len()).unwrap();
            writer.add(BootPiece { object: *object, offset: range.start as u64, length }, &content[range]).unwrap();
        };
        self.small.iter().for_each(|file| add(file, 0..size(SMALL)));
        add(&self.large, size(8 * CHUNK)..size(10 * CHUNK));
        writer.finish("default".into()).unwrap()
    }

    fn source(&self, pack: &[u8]) -> Arc<MemorySource> {
        Arc::new(MemorySource::new([self.layer.bytes.clone(), Bytes::copy_from_slice(pack)]))
    }

    fn world(&self, pack: &[u8]) -> World {
        let (source, store) = (self.source(pack), MemoryStore::default());
        let fetcher = Fetcher::new(Arc::new(store.clone()), Handle::current(), Config::default());
        let image = fetcher.add_image(table_of(&[&self.layer]), source.clone(), "test:latest");
        World { fetcher, store, source, image }
    }

    /// An image whose pack is local.
    async fn replayed(&self) -> World {
        let (index, pack) = self.pack();
        let world = self.world(&pack);
        assert!(world.image.replay(&index));
        all_of_the_pack(&world, &world.image).await;
        world
    }
}

async fn all_of_the_pack(world: &World, image: &ImageHandle) {
    for _ in 0..100_000 {
        if !image.is_replaying() {
            return world.quiet().await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the replay never ends");
}

fn early(brought: u64, used: u64, unused: u64, unknown: u64) -> Early {
    Early { brought, used, unused, unknown }
}

/// The statistics of image and host, which are equal as long as there is one image.
fn stats(world: &World) -> Stats {
    let stats = world.image.stats();
    assert_eq!(world.fetcher.stats(), stats);
    stats
}

fn events(image: &ImageHandle) -> Vec<Event> {
    image.journal().account().events.into_iter().map(|noted| noted.event).collect()
}

const PACKED: u64 = 4 * SMALL + 2 * CHUNK;

#[tokio::test(start_paused = true)]
async fn bytes_of_a_pack_are_unused_until_a_reader_reads_them() {
    let files = Files::new();
    let world = files.replayed().await;
    assert_eq!(stats(&world).early_trace, early(PACKED, 0, PACKED, 0));
    for _twice in 0..2 {
        world.read(&files.small[0].0, 10, 10).await.unwrap();
        world.read(&files.large.0, 9 * CHUNK - 5, 5).await.unwrap();
    }
    let used = SMALL + CHUNK;
    assert_eq!(stats(&world).early_trace, early(PACKED, used, PACKED - used, 0), "whole chunks, each once");
    assert_eq!(stats(&world).early_ahead, Early::default());
}

#[tokio::test(start_paused = true)]
async fn every_byte_from_a_source_belongs_to_one_lane() {
    let files = Files::new();
    let world = files.replayed().await;
    let pack = files.pack().1.len() as u64;
    let before = stats(&world);
    assert_eq!((before.bytes_trace, before.bytes_demand, before.bytes_ahead), (pack, 0, 0));
    world.read(&files.large.0, 0, CHUNK).await.unwrap();
    world.quiet().await;
    world.fetcher.prefetch(&files.large.0, 12 * CHUNK..LARGE);
    world.quiet().await;
    let after = stats(&world);
    let asked: Vec<u64> = world.source.requests().iter().map(|(_, range)| range.end - range.start).collect();
    let [.., demand, ahead] = asked[..] else { panic!("too few requests") };
    assert_eq!((after.bytes_trace, after.bytes_demand, after.bytes_ahead), (pack, demand, ahead));
    assert_eq!(after.bytes_fetched, pack + demand + ahead);
    assert_eq!(after.early_ahead, early(4 * CHUNK, 0, 4 * CHUNK, 0));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_joins_a_request_has_used_its_bytes() {
    let files = Files::new();
    let (index, pack) = files.pack();
    let world = files.world(&pack);
    world.source.always(Reply { latency: Duration::from_millis(30), ..Then::Bytes.into() });
    assert!(world.image.replay(&index));
    until("a piece is on its way", || world.fetcher.pieces_in_flight() > 0).await;
    world.read(&files.small[1].0, 0, SMALL).await.unwrap();
    all_of_the_pack(&world, &world.image).await;
    let reported = stats(&world);
    assert_eq!(reported.early_trace, early(PACKED, SMALL, PACKED - SMALL, 0));
    assert_eq!((reported.bytes_demand, reported.bytes_trace), (0, pack.len() as u64));
    let account = world.image.journal().account();
    let stall = &account.slowest[0];
    assert_eq!((stall.object, stall.offset, stall.length), (files.small[1].0, 0, SMALL));
    assert_eq!((stall.waited_for, stall.layer, stall.failed), (WaitedFor::Pack, None, false));
    assert_eq!(events(&world.image), [Event::PackBegan { bytes: pack.len() as u64 }, Event::PackEnded]);
}

#[tokio::test(start_paused = true)]
async fn read_ahead_is_used_as_far_as_the_reader_goes() {
    let content = noise(8, 4 << 20);
    let mut packer = Packer::new(Form::Raw);
    let object = packer.object(&content, size(CHUNK));
    let world = World::new(&[&packer.finish()]);
    let step = 2 * CHUNK;
    for at in 0..16 {
        world.read(&object, at * step, step).await.unwrap();
        world.quiet().await;
    }
    let reported = stats(&world);
    let ahead = reported.early_ahead;
    assert!(ahead.used > 0 && ahead.unused > 0, "{ahead:?}");
    assert_eq!(ahead.brought, reported.bytes_ahead, "raw chunks: as many bytes as came");
    assert_eq!(
        reported.bytes_demand + ahead.used,
        16 * step,
        "what was read came for demand or was used of what came early"
    );
    assert_eq!(ahead.unused, world.asked() - 16 * step, "bytes that were requested beyond the reads are unused");
}

#[tokio::test(start_paused = true)]
async fn where_the_kernel_reads_by_itself_complete_objects_are_unknown_and_parts_are_not() {
    let files = Files::new();
    let world = files.replayed().await;
    world.read(&files.small[2].0, 0, 1).await.unwrap();
    world.image.kernel_reads();
    assert_eq!(stats(&world).early_trace, early(PACKED, SMALL, 2 * CHUNK, 3 * SMALL), "one was read through us");
    world.image.kernel_reads();
    world.read(&files.small[0].0, 0, SMALL).await.unwrap();
    assert_eq!(stats(&world).early_trace, early(PACKED, SMALL, 2 * CHUNK, 3 * SMALL), "it is not looked for any more");
    // With the rest of it the large file is complete as well.
    world.read(&files.large.0, 0, 8 * CHUNK).await.unwrap();
    world.read(&files.large.0, 10 * CHUNK, 6 * CHUNK).await.unwrap();
    world.until_complete(&files.large.0).await;
    world.quiet().await;
    // Another thread moves chunk after chunk: image and host are alike again when both have seen the last.
    let unused = |stats: Stats| stats.early_trace.unused;
    until("nothing is unused", || (unused(world.image.stats()), unused(world.fetcher.stats())) == (0, 0)).await;
    assert_eq!(stats(&world).early_trace, early(PACKED, SMALL, 0, 3 * SMALL + 2 * CHUNK));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_opened_as_a_plain_file_counts_as_read() {
    let files = Files::new();
    let world = files.replayed().await;
    assert!(world.fetcher.open_local(&files.small[3].0).is_some());
    assert!(world.fetcher.open_local(&files.large.0).is_none(), "it is not complete");
    assert_eq!(stats(&world).early_trace, early(PACKED, SMALL, PACKED - SMALL, 0));
}

#[tokio::test(start_paused = true)]
async fn the_use_of_bytes_for_the_page_cache_is_unknown_and_none_are_fetched_for_it() {
    let files = Files::new();
    let world = files.replayed().await;
    let requests = world.source.requests().len();
    let (small, large) = (&files.small[0], &files.large);
    assert_eq!(world.fetcher.page_in(&small.0, 0, SMALL).unwrap().into_bytes(), small.1);
    let bytes = world.fetcher.page_in(&large.0, 9 * CHUNK - 5, 10).unwrap().into_bytes();
    assert_eq!(bytes, large.1[size(9 * CHUNK - 5)..size(9 * CHUNK + 5)]);
    assert!(world.fetcher.page_in(&large.0, 10 * CHUNK - 5, 10).is_none(), "not all of it is local");
    world.quiet().await;
    assert_eq!(world.source.requests().len(), requests);
    assert_eq!(stats(&world).early_trace, early(PACKED, 0, 3 * SMALL, SMALL + 2 * CHUNK));
}

/// Notes the reads that it sees, which are all after the first that waited.
#[derive(Default)]
struct Notebook(Mutex<Vec<(Digest, Range<u64>)>>);

impl ReadObserver for Notebook {
    fn was_read(&self, object: &Digest, _: u64, range: Range<u64>, _: Duration) -> bool {
        self.0.lock().push((*object, range));
        true
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_of_all_reads_sees_bytes_for_the_page_cache_as_read() {
    let files = Files::new();
    let world = files.replayed().await;
    let (small, large) = (files.small[0].0, files.large.0);
    let page_in = || drop(world.fetcher.page_in(&small, 0, SMALL).unwrap());
    let notes = Arc::new(Notebook::default());
    world.image.observe(Some(notes.clone()));
    page_in();
    world.source.always(Reply { latency: Duration::from_millis(30), ..Then::Bytes.into() });
    world.read(&large, 0, CHUNK).await.unwrap();
    page_in();
    assert_eq!(*notes.0.lock(), [(large, 0..CHUNK), (small, 0..SMALL)]);
}

#[tokio::test(start_paused = true)]
async fn the_kernel_reading_one_image_directly_changes_no_other() {
    let files = Files::new();
    let world = files.replayed().await;
    let other = world.fetcher.add_image(table_of(&[&files.layer]), world.source.clone(), "test:native");
    other.kernel_reads();
    assert_eq!(stats(&world).early_trace, early(PACKED, 0, PACKED, 0));
    assert_eq!(world.fetcher.stats().early_trace, early(PACKED, 0, PACKED, 0));
    world.image.kernel_reads();
    assert_eq!(world.fetcher.stats().early_trace, early(PACKED, 0, 2 * CHUNK, 4 * SMALL));
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_lost_before_a_read_count_as_unused() {
    let files = Files::new();
    let world = files.replayed().await;
    world.store.evict(&files.small[0].0);
    world.read(&files.small[0].0, 0, SMALL).await.unwrap();
    world.quiet().await;
    let reported = stats(&world);
    assert_eq!(reported.early_trace, early(PACKED, 0, PACKED, 0), "a reader had to ask for it once more");
    world.image.kernel_reads();
    assert_eq!(stats(&world).early_trace.unknown, 3 * SMALL, "that one is known to have been of no use");
}

#[tokio::test(start_paused = true)]
async fn bytes_that_one_image_fetched_are_used_by_readers_of_another() {
    let files = Files::new();
    let (index, pack) = files.pack();
    let world = files.world(&pack);
    let second = world.fetcher.add_image(table_of(&[&files.layer]), world.source.clone(), "test:again");
    assert!(second.replay(&index));
    all_of_the_pack(&world, &second).await;
    world.read(&files.small[0].0, 0, SMALL).await.unwrap();
    assert_eq!(second.stats().early_trace, early(PACKED, SMALL, PACKED - SMALL, 0));
    assert_eq!(world.image.stats().early_trace, Early::default());
    drop(second);
    assert_eq!(world.fetcher.stats().early_trace, early(PACKED, SMALL, PACKED - SMALL, 0), "the host forgets nothing");
}

#[tokio::test(start_paused = true)]
async fn a_chunk_that_the_store_did_not_take_is_used_from_memory_like_any_other() {
    let files = Files::new();
    let (index, pack) = files.pack();
    let world = files.world(&pack);
    world.store.refuse(Some(Refusal::Full));
    assert!(world.image.replay(&index));
    all_of_the_pack(&world, &world.image).await;
    let brought = stats(&world).early_trace.brought;
    world.read(&files.small[0].0, 0, SMALL).await.unwrap();
    assert_eq!(stats(&world).early_trace, early(brought, SMALL, brought - SMALL, 0));
    assert!(events(&world.image).iter().any(|event| matches!(event, Event::StoreRefused { .. })));
}

#[tokio::test(start_paused = true)]
async fn waits_are_listed_by_length_and_by_cause() {
    let files = Files::new();
    let world = files.world(b"");
    world.source.always(Reply { latency: Duration::from_millis(30), ..Then::Bytes.into() });
    let (one, other) = tokio::join!(world.read(&files.small[0].0, 0, SMALL), world.read(&files.small[0].0, 0, SMALL));
    assert_eq!(one, other);
    world.source.always(Reply { latency: Duration::from_millis(300), ..Then::Bytes.into() });
    world.read(&files.large.0, 0, CHUNK).await.unwrap();
    world.quiet().await;
    world.fetcher.prefetch(&files.large.0, 8 * CHUNK..9 * CHUNK);
    tokio::task::yield_now().await;
    world.read(&files.large.0, 8 * CHUNK, 10).await.unwrap();
    let reported = stats(&world);
    let waits: Vec<u64> = reported.stall_histogram.buckets.iter().map(|bucket| bucket.count).collect();
    assert_eq!(waits, [0, 0, 0, 0, 0, 2, 0, 0, 2, 0, 0, 0, 0, 0]);
    assert_eq!((reported.stalls, reported.hits), (4, 0));
    let account = world.image.journal().account();
    let sum = |waited_for, stalls, millis| WaitSum {
        waited_for,
        layer: Some(files.layer.blob.digest),
        stalls,
        millis,
        start_stalls: stalls,
        start_millis: millis,
    };
    let kinds: Vec<(WaitedFor, u64)> = account.waits.iter().map(|wait| (wait.waited_for, wait.stalls)).collect();
    assert_eq!(kinds, [(WaitedFor::OwnRequest, 2), (WaitedFor::ReadAhead, 1), (WaitedFor::OtherReader, 1)]);
    let millis = account.waits[0].millis;
    assert_eq!(account.waits[0], sum(WaitedFor::OwnRequest, 2, millis), "of the layer that it came from");
    assert_eq!(account.slowest.len(), 4);
    assert!(account.slowest.is_sorted_by(|one, other| one.waited_millis >= other.waited_millis));
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_streamed_layer_has_its_own_kind() {
    let content = noise(5, size(SMALL));
    let mut packer = Packer::new(Form::ZstdStream);
    let object = packer.object(&content, size(SMALL));
    let layer = packer.finish();
    let world = World::new(&[&layer]);
    world.read(&object, 0, 10).await.unwrap();
    let account = world.image.journal().account();
    assert_eq!((account.waits[0].waited_for, account.waits[0].layer), (WaitedFor::WholeLayer, Some(layer.blob.digest)));
    assert_eq!(stats(&world).bytes_demand, stats(&world).bytes_fetched);
}

#[tokio::test(start_paused = true)]
async fn failures_and_decisions_are_in_the_journal() {
    let files = Files::new();
    let (index, _) = files.pack();
    let world = files.world(b"another blob");
    world.source.script([Then::Refuse(Fault::NotFound).into()]);
    assert!(world.image.replay(&index));
    all_of_the_pack(&world, &world.image).await;
    let reported = events(&world.image);
    assert!(matches!(&reported[..], [Event::PackBegan { .. }, Event::PackGivenUp { .. }]), "{reported:?}");

    world.source.always(Then::Refuse(Fault::Unavailable).into());
    assert!(world.read(&files.small[0].0, 0, SMALL).await.is_err());
    world.source.calm();
    tokio::time::sleep(Config::default().failure_memo * 2).await;
    world.read(&files.small[0].0, 0, SMALL).await.unwrap();
    let reported = events(&world.image).split_off(2);
    let failed_then_back =
        matches!(&reported[..], [Event::SourceRests { .. }, Event::SourceFailed { .. }, Event::SourceAnswers]);
    assert!(failed_then_back, "{reported:?}");
    assert!(world.image.journal().account().slowest.iter().any(|stall| stall.failed));

    let layer = files.layer.blob.digest;
    world.image.distrust(&layer, "a wrong chunk");
    assert_eq!(events(&world.image).pop(), Some(Event::Distrusted { layer, reason: "a wrong chunk".to_owned() }));
}
