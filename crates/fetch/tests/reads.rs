//! The results of reads, and how often the source is queried for them.

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::{World, noise};
use tarpon_blob::Fault;
use tarpon_fetch::{Config, Fetcher, ReadError};
use tarpon_oci::Digest;
use tarpon_testkit::source::{Form, MemorySource, MemoryStore, Packer, Refusal, Reply, Then, table_of};
use tokio::runtime::Handle;
use tokio::time::Instant;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// An object of 2 MiB in chunks of 64 KiB.
fn big(form: Form) -> (Vec<u8>, Digest, tarpon_testkit::source::PackedLayer) {
    let content = noise(1, 2 * MIB);
    let mut packer = Packer::new(form);
    packer.gap(512);
    let object = packer.object(&content, 64 * KIB);
    (content, object, packer.finish())
}

#[tokio::test(start_paused = true)]
async fn a_read_returns_exactly_the_requested_bytes_and_is_clipped_at_the_end() {
    for form in [Form::Raw, Form::Gzip, Form::Zstd] {
        let (content, object, layer) = big(form);
        let world = World::new(&[&layer]);
        for (offset, length) in [(0, 10), (65_530, 20), (1_000_000, 300_000), (2 * MIB - 5, 100), (2 * MIB, 1), (0, 0)]
        {
            let bytes = world.read(&object, offset as u64, length as u64).await.unwrap();
            assert_eq!(bytes, content[offset..content.len().min(offset + length)], "{form:?} {offset} {length}");
        }
        world.quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn neighbouring_chunks_are_one_request() {
    let (content, object, layer) = big(Form::Zstd);
    let world = World::new(&[&layer]);
    let bytes = world.read(&object, 128 * 1024, 512 * 1024).await.unwrap();
    assert_eq!(bytes, content[128 * KIB..640 * KIB]);
    assert_eq!(world.source.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn local_chunks_are_not_requested_again() {
    let (content, object, layer) = big(Form::Raw);
    let world = World::new(&[&layer]);
    world.read(&object, 256 * 1024, 64 * 1024).await.unwrap();
    world.quiet().await;
    assert_eq!(world.read(&object, 192 * 1024, 192 * 1024).await.unwrap(), content[192 * KIB..384 * KIB]);
    world.quiet().await;
    assert_eq!((world.source.requests().len(), world.asked()), (3, 192 * 1024));
    assert!(world.fetcher.read_local(&object, 200_000, 100_000).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_small_object_is_fetched_whole_and_becomes_a_local_file() {
    let content = noise(2, 100 * KIB);
    let mut packer = Packer::new(Form::Raw);
    let object = packer.object(&content, 16 * KIB);
    let world = World::new(&[&packer.finish()]);
    assert_eq!(world.read(&object, 50_000, 10).await.unwrap(), content[50_000..50_010]);
    world.until_complete(&object).await;
    assert_eq!(world.fetcher.read_local(&object, 0, 1 << 20).unwrap().unwrap().to_vec(), content);
    assert_eq!((world.source.requests().len(), world.asked()), (1, 100 * 1024));
    assert_eq!(world.fetcher.open_local(&object).unwrap().size, 100 * 1024);
}

#[tokio::test(start_paused = true)]
async fn objects_that_share_a_piece_are_fetched_once() {
    let mut packer = Packer::new(Form::Gzip);
    let contents: Vec<Vec<u8>> = (0..20).map(|seed| noise(seed, 3000)).collect();
    let objects = packer.shared(&contents.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let world = World::new(&[&packer.finish()]);
    let reads = objects.iter().map(|object| world.read(object, 0, 3000));
    for (bytes, content) in futures::future::join_all(reads).await.into_iter().zip(&contents) {
        assert_eq!(bytes.unwrap(), *content);
    }
    world.quiet().await;
    assert_eq!((world.source.requests().len(), world.store.complete()), (1, 20));
}

#[tokio::test(start_paused = true)]
async fn thirty_two_readers_of_the_same_bytes_make_one_request() {
    let (content, object, layer) = big(Form::Raw);
    let world = World::new(&[&layer]);
    world.source.always(Reply { latency: Duration::from_millis(50), ..Then::Bytes.into() });
    let reads = (0..32).map(|i| world.read(&object, 64 * 1024 + i, 128 * 1024 - i));
    for (i, bytes) in futures::future::join_all(reads).await.into_iter().enumerate() {
        assert_eq!(bytes.unwrap(), content[64 * KIB + i..192 * KIB]);
    }
    assert_eq!((world.source.requests().len(), world.asked()), (1, 128 * 1024));
    world.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn two_images_with_the_same_object_share_its_requests() {
    let content = noise(3, 600 * KIB);
    let layers = [Form::Raw, Form::Zstd].map(|form| {
        let mut packer = Packer::new(form);
        packer.object(&content, 100 * KIB);
        packer.finish()
    });
    let world = World::new(&[&layers[0]]);
    let other = Arc::new(MemorySource::new([layers[1].bytes.clone()]));
    let _other = world.fetcher.add_image(table_of(&[&layers[1]]), other.clone(), "other:latest");
    let object = Digest::of(&content);
    let reads = (0..8).map(|_| world.read(&object, 0, 600 * 1024));
    assert!(futures::future::join_all(reads).await.into_iter().all(|bytes| bytes.unwrap() == content));
    assert_eq!((world.source.requests().len(), other.requests().len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn another_image_serves_when_the_first_cannot() {
    let content = noise(3, 600 * KIB);
    let mut packers = [Packer::new(Form::Raw), Packer::new(Form::Gzip)];
    let layers = packers.each_mut().map(|packer| {
        packer.object(&content, 100 * KIB);
        std::mem::replace(packer, Packer::new(Form::Raw)).finish()
    });
    let world = World::new(&[&layers[0]]);
    world.source.always(Then::Refuse(Fault::Unavailable).into());
    let other = Arc::new(MemorySource::new([layers[1].bytes.clone()]));
    let _other = world.fetcher.add_image(table_of(&[&layers[1]]), other.clone(), "other:latest");
    assert_eq!(world.read(&Digest::of(&content), 5, 500_000).await.unwrap(), content[5..500_005]);
    // The first image's failure is remembered: its source is not queried again.
    let asked = world.source.requests().len();
    assert!(world.read(&Digest::of(&content), 550_000, 10).await.is_ok());
    assert!(world.source.requests().len() <= asked + 1);
}

#[tokio::test(start_paused = true)]
async fn another_source_of_the_same_layer_continues_where_the_first_failed() {
    let (content, object, layer) = big(Form::Raw);
    let world = World::new(&[&layer]);
    let other = Arc::new(MemorySource::new([layer.bytes.clone()]));
    let _other = world.fetcher.add_image(table_of(&[&layer]), other.clone(), "mirror:latest");
    world.source.script([Then::Break(100 * KIB, Fault::Unavailable).into()]);
    assert_eq!(world.read(&object, 0, 256 * 1024).await.unwrap(), content[..256 * KIB]);
    assert_eq!(other.requests(), [(layer.blob.digest, 512 + 64 * 1024..512 + 256 * 1024)]);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gets_its_chunk_before_the_rest_of_the_range_arrives() {
    let (content, object, layer) = big(Form::Raw);
    let world = World::new(&[&layer]);
    let pace = Duration::from_millis(100);
    world.source.script([Reply { pace, part: 64 * KIB, ..Then::Bytes.into() }]);
    let began = Instant::now();
    let (long, short) = tokio::join!(world.read(&object, 0, 1 << 20), async {
        let bytes = world.read(&object, 0, 1000).await;
        (bytes, began.elapsed())
    });
    assert_eq!(long.unwrap(), content[..MIB]);
    assert_eq!(short.0.unwrap(), content[..1000]);
    assert!(short.1 < 2 * pace, "{:?}: the second piece had to arrive first", short.1);
    assert!(began.elapsed() > 15 * pace);
}

#[tokio::test(start_paused = true)]
async fn wrong_bytes_are_fetched_once_more_and_counted() {
    let (content, object, layer) = big(Form::Raw);
    let world = World::new(&[&layer]);
    world.source.script([Then::Corrupt(512 + 70_000).into()]);
    assert_eq!(world.read(&object, 0, 256 * 1024).await.unwrap(), content[..256 * KIB]);
    let again = world.source.requests()[1].1.clone();
    assert_eq!(again, 512 + 64 * 1024..512 + 128 * 1024, "only the wrong chunk");
    assert_eq!(world.image.stats().digest_failures, 1);
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_wrong_twice_are_an_error() {
    let (content, object, layer) = big(Form::Gzip);
    let world = World::new(&[&layer]);
    world.source.always(Then::Garbage.into());
    let error = world.read(&object, 0, 1000).await.unwrap_err();
    assert!(error.contains("wrong bytes, twice") && error.contains("test:latest"), "{error}");
    assert_eq!((world.source.requests().len(), world.image.stats().digest_failures), (2, 2));
    world.source.always(Reply::default());
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!(world.read(&object, 0, 1000).await.unwrap(), content[..1000]);
    world.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_ends_early_is_an_error_not_a_short_read() {
    let (_, object, layer) = big(Form::Raw);
    let world = World::new(&[&layer]);
    world.source.always(Then::End(1000).into());
    assert!(world.read(&object, 0, 2000).await.unwrap_err().contains("ended early"));
}

#[tokio::test(start_paused = true)]
async fn a_silent_source_costs_a_reader_the_deadline_and_the_next_one_nothing() {
    for silence in [Then::Never, Then::Hang(100)] {
        let (content, object, layer) = big(Form::Raw);
        let world = World::new(&[&layer]);
        world.source.script([silence.into()]);
        let began = Instant::now();
        assert!(world.read(&object, 0, 1000).await.is_err());
        let deadline = Config::default().read_deadline;
        assert_eq!(began.elapsed().as_secs(), deadline.as_secs());
        assert!(world.read(&object, 0, 1000).await.is_err());
        assert_eq!(began.elapsed().as_secs(), deadline.as_secs(), "remembered");
        assert_eq!(world.source.requests().len(), 1);
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(world.read(&object, 0, 1000).await.unwrap(), content[..1000]);
        world.quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn other_chunks_are_read_while_one_fails() {
    let (content, object, layer) = big(Form::Raw);
    let world = World::new(&[&layer]);
    world.source.script([Then::Never.into()]);
    let (failed, read) = tokio::join!(world.read(&object, 0, 10), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        (world.read(&object, 1 << 20, 10).await, began.elapsed())
    });
    assert!(failed.is_err());
    assert_eq!(read.0.unwrap(), content[MIB..MIB + 10]);
    assert!(read.1 < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_goes_away_takes_nothing_from_the_others_and_the_last_one_ends_the_request() {
    let (content, object, layer) = big(Form::Raw);
    let world = World::new(&[&layer]);
    world.source.script([Reply { latency: Duration::from_secs(2), ..Then::Bytes.into() }, Then::Never.into()]);
    let second = Duration::from_secs(1);
    let (gone, stayed) =
        tokio::join!(tokio::time::timeout(second, world.read(&object, 0, 10)), world.read(&object, 5, 10));
    assert!(gone.is_err());
    assert_eq!(stayed.unwrap(), content[5..15]);
    assert!(tokio::time::timeout(second, world.read(&object, 1 << 20, 10)).await.is_err());
    tokio::task::yield_now().await;
    let stats = world.fetcher.stats();
    assert_eq!((world.fetcher.pieces_in_flight(), stats.requests_in_flight, stats.bytes_in_flight), (0, 0, 0));
    assert!(world.read(&object, 1 << 20, 10).await.is_ok(), "nothing is remembered of it");
}

#[tokio::test(start_paused = true)]
async fn a_store_without_room_costs_no_error_and_no_second_fetch_of_a_chunk() {
    for refusal in [Refusal::Full, Refusal::Io] {
        let content = noise(4, 4 * MIB);
        let mut packer = Packer::new(Form::Zstd);
        let object = packer.object(&content, 4 * MIB);
        let world = World::new(&[&packer.finish()]);
        world.store.refuse(Some(refusal));
        for (part, expected) in (0_u64..).zip(content.chunks(128 * KIB)) {
            let bytes = world.read(&object, part * 128 * 1024, 128 * 1024).await.unwrap();
            assert_eq!(bytes, expected);
        }
        world.quiet().await;
        assert_eq!(world.source.requests().len(), 1);
        assert_eq!(world.fetcher.stats().bypassed_chunks, 1);
        assert_eq!(world.store.complete(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn writing_resumes_when_the_store_has_space_again() {
    let content = noise(5, 2000);
    let mut packer = Packer::new(Form::Raw);
    let (first, second) = (packer.object(&content, 4096), packer.object(&content[1..], 4096));
    let world = World::new(&[&packer.finish()]);
    world.store.refuse(Some(Refusal::Full));
    world.read(&first, 0, 10).await.unwrap();
    world.quiet().await;
    world.store.refuse(None);
    world.read(&second, 0, 10).await.unwrap();
    assert_eq!(world.store.complete(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_object_whose_chunks_match_and_whose_name_does_not_is_poisoned() {
    let content = noise(6, 300 * KIB);
    let mut packer = Packer::new(Form::Raw);
    let object = packer.object(&content, 100 * KIB);
    let lie = Digest::of(b"something else");
    packer.lie(&object, lie);
    let world = World::new(&[&packer.finish()]);
    world.read(&lie, 0, 300 * 1024).await.unwrap();
    while world.image.stats().poisoned_objects == 0 {
        tokio::task::yield_now().await;
    }
    assert!(matches!(world.fetcher.read(&lie, 0, 10).await, Err(ReadError::Poisoned(_))));
    assert!(world.fetcher.read_local(&lie, 0, 10).is_none(), "nor is anything of it handed out at once");
}

#[tokio::test(start_paused = true)]
async fn leftovers_of_an_earlier_process_are_used_only_after_their_digest_matched() {
    let (content, object, layer) = big(Form::Raw);
    let store = MemoryStore::default();
    let first = World::with(&[&layer], store.clone(), Config::default());
    first.read(&object, 0, 300_000).await.unwrap();
    first.quiet().await;
    drop(first);
    let second = World::with(&[&layer], store.clone(), Config::default());
    assert_eq!(second.read(&object, 0, 300_000).await.unwrap(), content[..300_000]);
    assert_eq!(second.source.requests().len(), 0);
    drop(second);
    store.rot();
    let third = World::with(&[&layer], store, Config::default());
    assert_eq!(third.read(&object, 0, 300_000).await.unwrap(), content[..300_000]);
    assert_eq!(third.source.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn leftovers_of_an_earlier_process_are_not_read_ahead_again() {
    let content = noise(8, 16 * MIB);
    let mut packer = Packer::new(Form::Raw);
    let object = packer.object(&content, 64 * KIB);
    let layer = packer.finish();
    let store = MemoryStore::default();
    let mut asked = Vec::new();
    for _ in 0..2 {
        let world = World::with(&[&layer], store.clone(), Config::default());
        for i in 0..16 {
            world.read(&object, i * 131_072, 131_072).await.unwrap();
            world.quiet().await;
        }
        asked.push(world.asked());
    }
    assert!(asked[0] > 16 * 131_072 && asked[1] == 0, "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn zeros_are_never_fetched() {
    let mut content = vec![0; MIB];
    content[500_000..500_100].copy_from_slice(&noise(7, 100));
    let mut packer = Packer::new(Form::Raw);
    let object = packer.object(&content, 4096);
    let world = World::new(&[&packer.finish()]);
    assert_eq!(world.read(&object, 0, 400_000).await.unwrap(), content[..400_000]);
    assert_eq!(world.asked(), 0);
    assert_eq!(world.read(&object, 0, 1 << 20).await.unwrap(), content);
    assert!(world.asked() <= 8192);
}

#[tokio::test(start_paused = true)]
async fn a_sequential_reader_is_read_ahead_for_and_a_jumping_one_is_not() {
    let content = noise(8, 16 * MIB);
    let mut packer = Packer::new(Form::Raw);
    let object = packer.object(&content, 64 * KIB);
    let layer = packer.finish();
    let world = World::new(&[&layer]);
    for i in 0..128 {
        assert_eq!(world.read(&object, i * 131_072, 131_072).await.unwrap().len(), 131_072);
        world.quiet().await;
    }
    assert!(world.source.requests().len() < 40, "{}", world.source.requests().len());
    assert_eq!(world.asked(), 16 << 20, "no byte twice");

    let jumping = World::new(&[&layer]);
    for i in 0..64 {
        jumping.read(&object, (i * 37 % 64) * 262_144, 65_536).await.unwrap();
    }
    jumping.quiet().await;
    assert!(jumping.asked() <= 64 * 65_536 * 3 / 2, "{}", jumping.asked());
}

#[tokio::test(start_paused = true)]
async fn read_ahead_gives_way_to_demand() {
    let (content, object, layer) = big(Form::Raw);
    let world = World::new(&[&layer]);
    let pace = Duration::from_millis(10);
    world.source.always(Reply { pace, part: 64 * KIB, ..Then::Bytes.into() });
    world.fetcher.prefetch(&object, 0..1 << 20);
    tokio::time::sleep(Duration::from_millis(15)).await;
    assert_eq!(world.read(&object, 1 << 20, 10).await.unwrap(), content[MIB..MIB + 10]);
    assert!(world.fetcher.read_local(&object, 512 * 1024, 10).is_none(), "read-ahead was paused");
    world.quiet().await;
    assert!(world.fetcher.read_local(&object, 0, 1 << 20).is_some());
}

#[tokio::test(start_paused = true)]
async fn unknown_objects_and_reads_that_are_too_long_are_errors() {
    let (_, object, layer) = big(Form::Raw);
    let world = World::new(&[&layer]);
    let unknown = Digest::of(b"unknown");
    assert!(matches!(world.fetcher.read(&unknown, 0, 1).await, Err(ReadError::UnknownObject(_))));
    assert!(matches!(world.fetcher.read(&object, 0, u64::MAX).await, Err(ReadError::TooLong { .. })));
    let World { image, fetcher, .. } = world;
    drop(image);
    assert!(matches!(fetcher.read(&object, 0, 1).await, Err(ReadError::UnknownObject(_))));
}

#[tokio::test]
async fn reads_from_many_threads_end_and_are_right() {
    let (content, object, layer) = big(Form::Gzip);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let source = Arc::new(MemorySource::new([layer.bytes.clone()]));
    let fetcher = Fetcher::new(Arc::new(MemoryStore::default()), runtime.handle().clone(), Config::default());
    let _image = fetcher.add_image(table_of(&[&layer]), source.clone(), "test:latest");
    let _: &Handle = runtime.handle();
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (fetcher, runtime, content) = (&fetcher, &runtime, &content);
            scope.spawn(move || {
                for i in 0..200_u64 {
                    let at = (i * 7919 + thread * 104_729) * 1021 % (2 << 20);
                    let bytes = match fetcher.read_local(&object, at, 30_000) {
                        Some(answer) => answer.unwrap().into_bytes(),
                        None => runtime.block_on(fetcher.read(&object, at, 30_000)).unwrap().into_bytes(),
                    };
                    let at = usize::try_from(at).unwrap();
                    assert_eq!(bytes, Bytes::copy_from_slice(&content[at..content.len().min(at + 30_000)]));
                }
            });
        }
    });
    let asked: u64 = source.requests().iter().map(|(_, range)| range.end - range.start).sum();
    assert!(asked <= layer.blob.size, "{asked} of {}", layer.blob.size);
    tokio::task::spawn_blocking(move || drop(runtime)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn local_bytes_of_a_response_are_neither_checked_nor_kept_again() {
    let contents: Vec<Vec<u8>> = (0..3).map(|seed| noise(seed, 40 * KIB)).collect();
    let mut packer = Packer::new(Form::Zstd);
    let objects = packer.shared(&contents.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let layer = packer.finish();
    let world = World::new(&[&layer]);
    world.read(&objects[0], 0, 10).await.unwrap();
    world.quiet().await;
    assert_eq!(world.store.complete(), 3);
    world.store.evict(&objects[0]);
    world.fetcher.close_local(&objects[0]);
    // A wrong byte in the last of the three, which is never checked.
    world.source.always(Then::Corrupt(layer.blob.size - 1000).into());
    assert_eq!(world.read(&objects[0], 0, 40 * 1024).await.unwrap(), contents[0]);
    world.quiet().await;
    assert_eq!((world.image.stats().digest_failures, world.store.complete()), (0, 3));
    assert_eq!(world.read(&objects[2], 0, 40 * 1024).await.unwrap(), contents[2]);
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_is_gone_costs_one_long_wait_and_a_probe_for_each_read_after_it() {
    for silence in [Then::Never, Then::Refuse(Fault::Unavailable)] {
        let contents: Vec<Vec<u8>> = (0..20).map(|seed| noise(seed, 1000)).collect();
        let mut packer = Packer::new(Form::Raw);
        let objects: Vec<Digest> = contents
            .iter()
            .map(|content| {
                packer.gap(100 * KIB);
                packer.object(content, 4096)
            })
            .collect();
        let world = World::new(&[&packer.finish()]);
        world.source.always(Reply { latency: Duration::from_secs(2), ..silence.into() });
        let began = Instant::now();
        assert!(world.read(&objects[0], 0, 10).await.is_err());
        let Config { read_deadline, outage_grace, .. } = Config::default();
        let (waited, most) =
            if silence == Then::Never { (began.elapsed(), read_deadline) } else { (began.elapsed(), outage_grace * 2) };
        assert!(waited <= most, "{waited:?} for {silence:?}");
        let asked = world.source.requests().len();
        for object in &objects[1..] {
            let began = Instant::now();
            assert!(world.read(object, 0, 10).await.is_err());
            // The pause before a probe, and the duration of a probe.
            assert!(began.elapsed().as_secs() <= 5, "{:?} for {silence:?}", began.elapsed());
        }
        let probes = world.source.requests().len() - asked;
        assert!(probes <= 20, "{probes} probes for {silence:?}");
        // All at once, they share one.
        tokio::time::sleep(Duration::from_secs(6)).await;
        let reads = objects.iter().map(|object| world.read(object, 0, 10));
        let asked = world.source.requests().len();
        assert!(futures::future::join_all(reads).await.iter().all(Result::is_err));
        assert_eq!(world.source.requests().len() - asked, 1, "{silence:?}");
        // Once it answers, reads succeed as before.
        world.source.calm();
        tokio::time::sleep(Duration::from_secs(6)).await;
        for (object, content) in objects.iter().zip(&contents) {
            assert_eq!(world.read(object, 0, 1000).await.unwrap(), *content);
        }
        world.quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_silent_does_not_hold_up_the_next_one() {
    let (content, object, layer) = big(Form::Raw);
    let world = World::new(&[&layer]);
    world.source.script([Then::Refuse(Fault::Timeout).into(), Then::Never.into()]);
    let began = Instant::now();
    assert_eq!(world.read(&object, 0, 10).await.unwrap(), content[..10]);
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    world.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn an_error_of_one_blob_is_no_outage_of_the_source() {
    let (content, object, layer) = big(Form::Raw);
    for fault in [Fault::NotFound, Fault::Denied, Fault::BadData] {
        let world = World::new(&[&layer]);
        world.source.script([Then::Refuse(fault).into()]);
        assert!(world.read(&object, 0, 10).await.is_err());
        assert_eq!(world.read(&object, 1 << 20, 10).await.unwrap(), content[MIB..MIB + 10]);
    }
}
