//! Boot packs: which bytes are fetched early, in which order, and what happens when a pack is wrong.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::{World, noise};
use proptest::prelude::*;
use tarpon_blob::Fault;
use tarpon_fetch::{BootIndex, BootPiece, BootWriter, Config, Fetcher, Hint, ImageHandle};
use tarpon_oci::Digest;
use tarpon_testkit::source::{Form, MemorySource, MemoryStore, PackedLayer, Packer, Refusal, Then, table_of};
use tokio::runtime::Handle;

const KIB: usize = 1 << 10;

/// Twenty small files and a large one in chunks of 64 KiB.
struct Files {
    layer: PackedLayer,
    small: Vec<(Digest, Vec<u8>)>,
    large: (Digest, Vec<u8>),
}

fn files() -> Files {
    let mut packer = Packer::new(Form::Gzip);
    let contents: Vec<Vec<u8>> = (0..20).map(|seed| noise(seed, 40 * KIB)).collect();
    let small = contents.into_iter().map(|content| (packer.object(&content, 64 * KIB), content)).collect();
    let content = noise(99, 1024 * KIB);
    let large = (packer.object(&content, 64 * KIB), content);
    Files { layer: packer.finish(), small, large }
}

impl Files {
    /// The small files, last one first, then 128 KiB from the middle of the large one.
    fn pack(&self) -> (BootIndex, Vec<u8>) {
        let mut writer = BootWriter::new(Vec::new()).unwrap();
        for (object, content) in self.small.iter().rev() {
            add(&mut writer, object, content, 0..content.len());
        }
        add(&mut writer, &self.large.0, &self.large.1, 512 * KIB..640 * KIB);
        writer.finish("default".into()).unwrap()
    }

    /// An image with its pack beside its layer, nothing local.
    fn world(&self, pack: &[u8]) -> World {
        let source = Arc::new(MemorySource::new([self.layer.bytes.clone(), Bytes::copy_from_slice(pack)]));
        let store = MemoryStore::default();
        let fetcher = Fetcher::new(Arc::new(store.clone()), Handle::current(), Config::default());
        let image = fetcher.add_image(table_of(&[&self.layer]), source.clone(), "test:latest");
        World { fetcher, store, source, image }
    }
}

fn add(writer: &mut BootWriter<Vec<u8>>, object: &Digest, content: &[u8], range: std::ops::Range<usize>) {
    let length = u32::try_from(range.len()).unwrap();
    let piece = BootPiece { object: *object, offset: range.start as u64, length };
    writer.add(piece, &content[range]).unwrap();
}

async fn replayed(world: &World, image: &ImageHandle) {
    let mut rounds = 0;
    while image.is_replaying() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        rounds += 1;
        assert!(rounds < 100_000, "the replay never ends");
    }
    world.quiet().await;
}

/// Bytes that were requested of the layer, not of the pack.
fn asked_of(world: &World, blob: &[u8]) -> u64 {
    let digest = Digest::of(blob);
    let of_blob = world.source.requests().into_iter().filter(|(asked, _)| *asked == digest);
    of_blob.map(|(_, range)| range.end - range.start).sum()
}

#[tokio::test(start_paused = true)]
async fn a_replay_fetches_the_pack_and_nothing_else() {
    let files = files();
    let (index, pack) = files.pack();
    let world = files.world(&pack);
    assert!(world.image.replay(&index));
    assert!(!world.image.replay(&index), "once per image");
    replayed(&world, &world.image).await;
    for (object, content) in &files.small {
        assert_eq!(world.store.object(object).unwrap(), content, "complete, and a local file");
    }
    assert_eq!(world.read(&files.large.0, 520 << 10, 100 << 10).await.unwrap(), files.large.1[520 * KIB..620 * KIB]);
    world.quiet().await;
    assert_eq!((asked_of(&world, &files.layer.bytes), asked_of(&world, &pack)), (0, pack.len() as u64));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_is_ahead_of_the_replay_overtakes_it_and_nothing_comes_twice() {
    let files = files();
    let (index, pack) = files.pack();
    let world = files.world(&pack);
    world.source.always(tarpon_testkit::source::Reply { latency: Duration::from_millis(20), ..Then::Bytes.into() });
    assert!(world.image.replay(&index));
    let first = world.read(&files.large.0, 600 << 10, 10).await.unwrap();
    assert_eq!(first, files.large.1[600 * KIB..600 * KIB + 10]);
    replayed(&world, &world.image).await;
    assert_eq!(world.store.complete(), 20);
    assert_eq!((asked_of(&world, &files.layer.bytes), asked_of(&world, &pack)), (0, pack.len() as u64));
}

#[tokio::test(start_paused = true)]
async fn hints_fetch_what_a_predicted_pack_lacks_and_nothing_of_it_again() {
    let files = files();
    let (in_both, in_hints) = (&files.small[0], &files.small[12]);
    let hint = |object: &Digest| Hint::Object { object: *object, range: 0..40 << 10 };
    let mut writer = BootWriter::new(Vec::new()).unwrap();
    add(&mut writer, &in_both.0, &in_both.1, 0..in_both.1.len());
    let (index, pack) = writer.finish("predicted".into()).unwrap();

    let alone = files.world(&pack);
    assert!(alone.image.follow(vec![hint(&in_hints.0)]));
    replayed(&alone, &alone.image).await;

    let world = files.world(&pack);
    assert!(world.image.replay_predicted(&index));
    assert!(world.image.follow(vec![hint(&in_both.0), hint(&in_hints.0)]));
    replayed(&world, &world.image).await;
    for (object, content) in [in_both, in_hints] {
        assert_eq!(world.store.object(object).unwrap(), content);
    }
    assert_eq!(asked_of(&world, &pack), pack.len() as u64);
    assert_eq!(asked_of(&world, &files.layer.bytes), asked_of(&alone, &files.layer.bytes));
    let recorded = files.world(&pack);
    assert!(recorded.image.replay(&index) && !recorded.image.follow(vec![hint(&in_hints.0)]), "that one has all");
}

#[tokio::test(start_paused = true)]
async fn read_ahead_begins_where_the_recorded_start_ended() {
    let files = files();
    let mut writer = BootWriter::new(Vec::new()).unwrap();
    add(&mut writer, &files.large.0, &files.large.1, 0..512 * KIB);
    let (index, pack) = writer.finish("default".into()).unwrap();
    let world = files.world(&pack);
    assert!(world.image.replay(&index));
    replayed(&world, &world.image).await;
    let read = async |chunk: u64| {
        world.read(&files.large.0, (chunk * 64) << 10, 64 << 10).await.unwrap();
        world.quiet().await;
    };
    for chunk in 0..8 {
        read(chunk).await;
    }
    assert_eq!(asked_of(&world, &files.layer.bytes), 0);
    for chunk in 8..12 {
        read(chunk).await;
    }
    assert!(asked_of(&world, &files.layer.bytes) > (5 * 64) << 10);
}

#[tokio::test(start_paused = true)]
async fn local_frames_are_not_fetched_again() {
    let files = files();
    let (index, pack) = files.pack();
    let world = files.world(&pack);
    for (object, content) in &files.small {
        assert_eq!(world.read(object, 0, 40 << 10).await.unwrap(), *content);
    }
    world.quiet().await;
    let last = u64::from(index.frames.last().unwrap().length);
    assert!(world.image.replay(&index));
    replayed(&world, &world.image).await;
    assert_eq!(asked_of(&world, &pack), last, "the frame with the large file");
}

#[tokio::test(start_paused = true)]
async fn leftovers_of_an_earlier_process_are_not_replayed_again() {
    let files = files();
    let (index, pack) = files.pack();
    let first = files.world(&pack);
    assert!(first.image.replay(&index));
    replayed(&first, &first.image).await;
    let source = first.source.clone();
    let asked = source.requests().len();
    let store = first.store.clone();
    drop(first);
    let fetcher = Fetcher::new(Arc::new(store.clone()), Handle::current(), Config::default());
    let image = fetcher.add_image(table_of(&[&files.layer]), source.clone(), "test:latest");
    let second = World { fetcher, store, source, image };
    assert!(second.image.replay(&index));
    replayed(&second, &second.image).await;
    assert_eq!(second.read(&files.large.0, 520 << 10, 100 << 10).await.unwrap(), files.large.1[520 * KIB..620 * KIB]);
    assert_eq!(second.source.requests().len(), asked, "nothing was requested again");
}

#[tokio::test(start_paused = true)]
async fn a_missing_pack_causes_no_read_error() {
    let files = files();
    let (index, pack) = files.pack();
    let world = files.world(b"another blob");
    world.source.script([Then::Refuse(Fault::NotFound).into()]);
    assert!(world.image.replay(&index));
    for (object, content) in &files.small {
        assert_eq!(world.read(object, 0, 40 << 10).await.unwrap(), *content);
    }
    replayed(&world, &world.image).await;
    assert!(world.image.stats().last_error.unwrap().contains("boot pack"), "the status names the failure");
    let _ = pack;
}

#[tokio::test(start_paused = true)]
async fn a_pack_that_hangs_or_fails_leaves_readers_time_to_turn_to_the_layer() {
    let files = files();
    let (index, pack) = files.pack();
    for then in [Then::Never, Then::Hang(100), Then::Refuse(Fault::Unavailable), Then::Break(1000, Fault::Timeout)] {
        let world = files.world(&pack);
        world.source.script([then.into()]);
        assert!(world.image.replay(&index));
        let (object, content) = files.small.last().unwrap();
        assert_eq!(world.read(object, 0, 40 << 10).await.unwrap(), *content, "{then:?}");
        replayed(&world, &world.image).await;
        reads_right(&world, &files).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_wrong_byte_comes_out_of_a_pack_that_is_wrong_anywhere() {
    let files = files();
    let (index, pack) = files.pack();
    for place in (0..pack.len()).step_by(pack.len() / 23) {
        let mut wrong = pack.clone();
        wrong[place] ^= 0x10;
        let world = files.world(&wrong);
        // The source does not have it under the digest of its content.
        let index = BootIndex { blob: tarpon_oci::Blob { digest: Digest::of(&wrong), ..index.blob }, ..index.clone() };
        assert!(world.image.replay(&index));
        replayed(&world, &world.image).await;
        reads_right(&world, &files).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_index_that_names_other_objects_other_places_or_another_order_is_no_harm() {
    let files = files();
    let (index, pack) = files.pack();
    let mut lies: Vec<BootIndex> = Vec::new();
    let mut lie = |change: &dyn Fn(&mut BootIndex)| {
        let mut index = index.clone();
        change(&mut index);
        lies.push(index);
    };
    lie(&|index| index.frames.reverse());
    lie(&|index| index.frames[0].pieces.reverse());
    lie(&|index| index.frames[0].pieces[0].object = files.small[0].0);
    lie(&|index| index.frames[0].pieces[0].object = Digest::of(b"unknown"));
    lie(&|index| index.frames[0].pieces[0].offset = 1 << 40);
    lie(&|index| index.frames.last_mut().unwrap().pieces[0].offset = 0);
    lie(&|index| drop(index.frames.remove(0)));
    lie(&|index| index.frames[1].length = 0);
    lie(&|index| index.frames[1].length = u32::MAX);
    for index in lies {
        let world = files.world(&pack);
        assert!(world.image.replay(&index));
        replayed(&world, &world.image).await;
        reads_right(&world, &files).await;
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_piece_that_begins_and_ends_inside_of_chunks_the_chunks_between_are_used() {
    let files = files();
    let (object, content) = &files.large;
    let mut writer = BootWriter::new(Vec::new()).unwrap();
    add(&mut writer, object, content, 100 * KIB..300 * KIB);
    let (index, pack) = writer.finish("default".into()).unwrap();
    let world = files.world(&pack);
    assert!(world.image.replay(&index));
    replayed(&world, &world.image).await;
    assert_eq!(asked_of(&world, &pack), pack.len() as u64);
    assert_eq!(world.read(object, 128 << 10, 128 << 10).await.unwrap(), content[128 * KIB..256 * KIB]);
    assert_eq!(asked_of(&world, &files.layer.bytes), 0, "both are local");
    for at in [64 * KIB, 256 * KIB] {
        let asked = asked_of(&world, &files.layer.bytes);
        assert_eq!(world.read(object, at as u64, 1).await.unwrap(), content[at..=at]);
        assert!(asked_of(&world, &files.layer.bytes) > asked, "the chunk at byte {at} is not all in the piece");
    }
}

async fn reads_right(world: &World, files: &Files) {
    for (object, content) in &files.small {
        assert_eq!(world.read(object, 0, 40 << 10).await.unwrap(), *content);
    }
    assert_eq!(world.read(&files.large.0, 0, 1 << 20).await.unwrap(), files.large.1);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_goes_takes_its_replay_with_it() {
    let files = files();
    let (index, pack) = files.pack();
    let World { fetcher, source, image, .. } = files.world(&pack);
    source.always(tarpon_testkit::source::Reply { latency: Duration::from_secs(1), ..Then::Bytes.into() });
    assert!(image.replay(&index));
    drop(image);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!((fetcher.pieces_in_flight(), fetcher.stats().requests_in_flight), (0, 0));
    assert!(source.requests().len() <= 2);
}

fn index() -> impl Strategy<Value = BootIndex> {
    let piece = (any::<[u8; 32]>(), 0_u64..1 << 40, 1_u32..100_000);
    let piece =
        piece.prop_map(|(object, offset, length)| BootPiece { object: Digest::from_bytes(object), offset, length });
    let frame = (1_u32..1 << 20, prop::collection::vec(piece, 1..20));
    let frame = frame.prop_map(|(length, pieces)| tarpon_fetch::BootFrame { length, pieces });
    (prop::collection::vec(frame, 0..20), "[a-z]{0,20}").prop_map(|(frames, profile)| {
        let size = frames.iter().map(|frame| u64::from(frame.length)).sum();
        BootIndex { profile, blob: tarpon_oci::Blob { digest: Digest::of(b"frames"), size }, frames }
    })
}

proptest! {
    #[test]
    fn an_index_that_is_written_is_read_and_no_part_of_it_is_an_index(index in index(), cut in 0_usize..10_000) {
        let bytes = index.write();
        prop_assert_eq!(BootIndex::read(&bytes), Ok(index));
        prop_assert!(BootIndex::read(&bytes[..cut % bytes.len()]).is_err());
        prop_assert!(BootIndex::read(&[&bytes[..], b"x"].concat()).is_err());
    }
}

/// The store takes nothing, so chunks stay in a little memory, which loses one of two in the same frame.
#[tokio::test(start_paused = true)]
async fn a_frame_is_fetched_again_when_only_a_later_chunk_of_it_is_missing() {
    let mut packer = Packer::new(Form::Raw);
    let (content, other) = (noise(1, 8 * KIB), noise(2, 4 * KIB));
    let (object, another) = (packer.object(&content, 4 * KIB), packer.object(&other, 4 * KIB));
    let layer = packer.finish();
    let mut writer = BootWriter::new(Vec::new()).unwrap();
    add(&mut writer, &object, &content, 0..8 * KIB);
    let (index, pack) = writer.finish("default".into()).unwrap();
    let source = Arc::new(MemorySource::new([layer.bytes.clone(), Bytes::from(pack)]));
    let (store, config) = (MemoryStore::default(), Config { bypass_bytes: 8 << 10, ..Config::default() });
    store.refuse(Some(Refusal::Full));
    let fetcher = Fetcher::new(Arc::new(store.clone()), Handle::current(), config);
    let image = fetcher.add_image(table_of(&[&layer]), source.clone(), "test:latest");
    let world = World { fetcher, store, source, image };
    assert!(world.image.replay(&index));
    replayed(&world, &world.image).await;
    assert_eq!(world.read(&object, 0, 8 << 10).await.unwrap(), content);
    assert_eq!(world.read(&object, 0, 10).await.unwrap(), content[..10], "used later than the second chunk");
    assert_eq!(world.read(&another, 0, 4 << 10).await.unwrap(), other);
    assert_eq!(world.read(&object, 0, 8 << 10).await, Ok(content.into()));
}
