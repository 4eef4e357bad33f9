//! Objects of layers without random access, after they were evicted.

mod common;

use std::time::Duration;

use common::{World, noise};
use futures::FutureExt as _;
use tarpon_blob::Fault;
use tarpon_fetch::Config;
use tarpon_oci::Digest;
use tarpon_testkit::source::{Form, MemoryStore, PackedLayer, Packer, Refusal, Reply, Then};

/// A layer of `count` objects of 20,000 bytes.
fn layer(form: Form, count: u64) -> (Vec<(Digest, Vec<u8>)>, PackedLayer) {
    let mut packer = Packer::new(form);
    let objects = (0..count).map(|seed| {
        let content = noise(seed, 20_000);
        packer.gap(512);
        (packer.object(&content, 1 << 20), content)
    });
    (objects.collect(), packer.finish())
}

#[tokio::test(start_paused = true)]
async fn one_pass_serves_the_request_and_keeps_everything_before_it() {
    for form in [Form::GzipStream, Form::ZstdStream] {
        let (objects, layer) = layer(form, 50);
        let world = World::new(&[&layer]);
        let (last, content) = &objects[49];
        assert_eq!(world.read(last, 100, 500).await.unwrap(), content[100..600]);
        for (object, content) in &objects {
            assert_eq!(world.read(object, 0, 20_000).await.unwrap(), *content);
        }
        world.quiet().await;
        assert_eq!((world.source.requests().len(), world.store.complete()), (1, 50), "{form:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn many_readers_of_a_layer_share_one_pass() {
    let (objects, layer) = layer(Form::GzipStream, 40);
    let world = World::new(&[&layer]);
    let reads = objects.iter().rev().map(|(object, _)| world.read(object, 0, 20_000));
    for (bytes, (_, content)) in futures::future::join_all(reads).await.into_iter().zip(objects.iter().rev()) {
        assert_eq!(bytes.unwrap(), *content);
    }
    assert_eq!(world.source.requests().len(), 1);
    world.quiet().await;
}

#[tokio::test]
async fn a_pass_stands_still_for_the_next_reader_and_then_ends() {
    let (objects, layer) = layer(Form::ZstdStream, 60);
    for (linger, requests) in [(Duration::from_secs(3600), 1), (Duration::ZERO, 2)] {
        let config = Config { stream_linger: linger, ..Config::default() };
        let world = World::with(&[&layer], MemoryStore::default(), config);
        world.read(&objects[1].0, 0, 1).await.unwrap();
        if linger.is_zero() {
            world.quiet().await;
        }
        world.read(&objects[59].0, 0, 1).await.unwrap();
        assert_eq!(world.source.requests().len(), requests, "{linger:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_evicted_after_the_pass_starts_a_new_one() {
    let (objects, layer) = layer(Form::GzipStream, 10);
    let world = World::new(&[&layer]);
    world.read(&objects[9].0, 0, 1).await.unwrap();
    world.fetcher.close_local(&objects[2].0);
    world.store.evict(&objects[2].0);
    assert_eq!(world.read(&objects[2].0, 0, 20_000).await.unwrap(), objects[2].1);
    assert_eq!(world.source.requests().len(), 2);
    world.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn wrong_bytes_broken_answers_and_full_stores_never_yield_wrong_bytes() {
    let (objects, layer) = layer(Form::GzipStream, 10);
    let (object, content) = &objects[5];
    for then in [Then::Garbage, Then::Corrupt(90_000), Then::Break(50_000, Fault::Unavailable), Then::End(3000)] {
        let world = World::new(&[&layer]);
        world.source.always(then.into());
        let answer = world.read(object, 0, 20_000).await;
        assert!(answer.as_ref().map_or(true, |bytes| bytes == content), "{then:?}");
        world.source.always(Reply::default());
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(world.read(object, 0, 20_000).await.unwrap(), *content);
        world.quiet().await;
    }
    let world = World::new(&[&layer]);
    world.store.refuse(Some(Refusal::Full));
    assert_eq!(world.read(object, 0, 20_000).await.unwrap(), *content);
    assert_eq!(world.store.complete(), 0);
}

#[tokio::test(start_paused = true)]
async fn wrong_bytes_are_streamed_once_more() {
    let (objects, layer) = layer(Form::ZstdStream, 10);
    let world = World::new(&[&layer]);
    world.source.script([Then::Garbage.into()]);
    assert_eq!(world.read(&objects[5].0, 0, 20_000).await.unwrap(), objects[5].1);
    assert!(world.image.stats().digest_failures > 0);
}

#[tokio::test]
async fn a_slow_stream_continues_after_its_reader_gave_up() {
    let (objects, layer) = layer(Form::GzipStream, 50);
    let ten = Duration::from_millis(10);
    let config = Config { read_deadline: ten, failure_memo: ten, ..Config::default() };
    let world = World::with(&[&layer], MemoryStore::default(), config);
    world.source.always(Reply { part: 100_000, pace: ten, ..Then::Bytes.into() });
    let (object, content) = &objects[49];
    assert!(world.read(object, 0, 10).await.unwrap_err().contains("not received within"));
    while world.store.object(object).is_none() {
        tokio::time::sleep(ten).await;
    }
    assert_eq!(world.read(object, 0, 10).await.unwrap(), content[..10]);
    assert_eq!(world.source.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_large_object_is_checked_on_disk_and_needs_room_there() {
    let content = noise(1, 17 << 20);
    let mut packer = Packer::new(Form::ZstdStream);
    let object = packer.object(&content, 1 << 30);
    let layer = packer.finish();
    let world = World::new(&[&layer]);
    assert_eq!(world.read(&object, 16 << 20, 100).await.unwrap(), content[16 << 20..][..100]);
    assert!(world.store.object(&object).is_some());
    let full = World::with(&[&layer], MemoryStore::default(), Config::default());
    full.store.refuse(Some(Refusal::Full));
    assert!(full.read(&object, 0, 100).await.unwrap_err().contains("only be checked on disk"));
}

#[tokio::test(start_paused = true)]
async fn a_sparse_object_of_a_stream_is_put_together_from_its_parts() {
    let mut content = vec![0; 3 << 20];
    content[..100_000].copy_from_slice(&noise(1, 100_000));
    content[2 << 20..][..50_000].copy_from_slice(&noise(2, 50_000));
    let mut packer = Packer::new(Form::GzipStream);
    let object = packer.object(&content, 1 << 20);
    let world = World::new(&[&packer.finish()]);
    assert_eq!(world.read(&object, 0, 3 << 20).await.unwrap(), content);
    world.until_complete(&object).await;
}

/// Not with a paused clock: it stops while a thread is blocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_is_late_for_the_publishing_of_an_object_is_not_late_twice() {
    // A chunk that is too large to be hashed for each read, and a second one: the first alone would prove itself.
    let large = tarpon_oci::limits::CHUNK_BYTES + 1;
    let content = vec![7; usize::try_from(large).unwrap() + 1000];
    let mut packer = Packer::new(Form::GzipStream);
    let object = packer.object(&content, usize::try_from(large).unwrap());
    let config = Config { read_deadline: Duration::from_secs(5), ..Config::default() };
    let world = World::with(&[&packer.finish()], MemoryStore::default(), config);
    world.store.hold_publishing(true);
    world.read(&object, 0, 10).await.unwrap();
    world.read(&object, large, 10).await.unwrap();
    let began = std::time::Instant::now();
    let late = loop {
        // The object is read before a thread begins to publish it.
        match world.read(&object, 0, 10).await {
            Ok(_) => assert!(began.elapsed() < Duration::from_secs(20), "never published"),
            late => break late,
        }
        tokio::task::yield_now().await;
    };
    let second = world.read(&object, 0, 10).now_or_never();
    world.store.hold_publishing(false);
    assert!(late.as_ref().is_err_and(|error| error.contains("not received within")), "{late:?}");
    assert_eq!(second, Some(late));
    world.until_complete(&object).await;
    assert_eq!(world.read(&object, 0, 10).await.unwrap(), content[..10]);
}
