//! Hints without a boot pack: which bytes are fetched early, in which order, and how many.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::time::Duration;

use common::{World, noise};
use tarpon_blob::Fault;
use tarpon_fetch::Hint;
use tarpon_oci::Digest;
use tarpon_testkit::source::{Form, PackedLayer, Packer, Reply, Then};

const KIB: usize = 1 << 10;

/// Forty files of 40 KiB far from each other, and a large one in chunks of 64 KiB.
struct Files {
    layer: PackedLayer,
    small: Vec<(Digest, Vec<u8>)>,
    large: Digest,
}

fn files(form: Form) -> Files {
    let mut packer = Packer::new(form);
    let contents: Vec<Vec<u8>> = (0..40).map(|seed| noise(seed, 40 * KIB)).collect();
    let small = contents.into_iter().map(|content| {
        packer.gap(40 * KIB);
        (packer.object(&content, 64 * KIB), content)
    });
    let small = small.collect();
    let large = packer.object(&noise(99, 1024 * KIB), 64 * KIB);
    Files { layer: packer.finish(), small, large }
}

impl Files {
    fn whole(&self, number: usize) -> Hint {
        let (object, content) = &self.small[number];
        Hint::Object { object: *object, range: 0..content.len() as u64 }
    }
}

async fn followed(world: &World) {
    let mut rounds = 0;
    while world.image.is_replaying() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        rounds += 1;
        assert!(rounds < 10_000, "it never ends");
    }
    world.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_trace_is_fetched_in_its_order_and_nothing_else_is() {
    let files = files(Form::Gzip);
    let world = World::new(&[&files.layer]);
    let order = [30, 3, 17, 30, 8];
    let mut hints: Vec<Hint> = order.iter().map(|number| files.whole(*number)).collect();
    hints.push(Hint::Object { object: files.large, range: 512 * 1024..576 * 1024 });
    hints.push(Hint::Object { object: Digest::of(b"of another image"), range: 0..10 });
    assert!(world.image.follow(hints) && !world.image.follow(Vec::new()), "one at a time");
    followed(&world).await;
    let stats = world.image.stats();
    assert_eq!((stats.requests, stats.bytes_trace, stats.stalls), (5, stats.bytes_fetched, 0));
    let starts: Vec<u64> = world.source.requests().iter().map(|(_, range)| range.start).collect();
    assert!(starts[0] > starts[2] && starts[2] > starts[3] && starts[3] > starts[1], "{starts:?}");
    for number in order {
        let (object, content) = &files.small[number];
        assert_eq!(world.read(object, 0, 40 * 1024).await.unwrap(), *content);
    }
    assert!(world.read(&files.large, 520 * 1024, 1024).await.is_ok());
    assert_eq!(world.image.stats().requests, 5, "all of it is here");
}

#[tokio::test(start_paused = true)]
async fn adjacent_hints_share_a_request_and_several_requests_run_at_a_time() {
    let mut packer = Packer::new(Form::Raw);
    let objects: Vec<Digest> = (0..50).map(|seed| packer.gap(512).object(&noise(seed, 4 * KIB), 4 * KIB)).collect();
    let world = World::new(&[&packer.finish()]);
    let hints = objects.iter().rev().map(|object| Hint::Object { object: *object, range: 0..4096 }).collect();
    world.image.follow(hints);
    followed(&world).await;
    assert_eq!(world.source.requests().len(), 1);

    let files = files(Form::Raw);
    let world = World::new(&[&files.layer]);
    world.source.always(Reply { latency: Duration::from_millis(100), ..Then::Bytes.into() });
    let began = tokio::time::Instant::now();
    world.image.follow((0..40).map(|number| files.whole(number)).collect());
    followed(&world).await;
    assert_eq!(world.source.requests().len(), 40);
    assert!(began.elapsed() < Duration::from_millis(4_000 / 4), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn everything_before_a_landmark_is_fetched_and_nothing_after_it() {
    let (first, second) = (files(Form::Zstd), files(Form::GzipStream));
    let world = World::new(&[&first.layer, &second.layer]);
    let until = 10 * 81 * 1024;
    let start = |layer: Digest| Hint::LayerStart { layer, until };
    world.image.follow(vec![start(second.layer.blob.digest), start(first.layer.blob.digest)]);
    followed(&world).await;
    assert!(!world.source.requests().is_empty());
    for (layer, range) in world.source.requests() {
        assert!(layer == first.layer.blob.digest && range.start < until && range.end < until + 64 * 1024, "{range:?}");
    }
    assert!(
        world.fetcher.open_local(&first.small[9].0).is_some() && world.fetcher.open_local(&first.small[12].0).is_none()
    );
}

#[tokio::test(start_paused = true)]
async fn hints_pause_for_readers_and_end_with_their_source() {
    let files = files(Form::Raw);
    let world = World::new(&[&files.layer]);
    world.source.always(Then::Refuse(Fault::Unavailable).into());
    world.image.follow((0..40).map(|number| files.whole(number)).collect());
    followed(&world).await;
    assert!(world.source.requests().len() < 40, "{}", world.source.requests().len());
    world.source.calm();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(world.image.follow(vec![files.whole(5)]));
    followed(&world).await;
    assert!(world.fetcher.open_local(&files.small[5].0).is_some());
}

#[tokio::test(start_paused = true)]
async fn hints_end_when_they_are_stopped() {
    let files = files(Form::Raw);
    let world = World::new(&[&files.layer]);
    world.source.always(Reply { latency: Duration::from_secs(1), ..Then::Bytes.into() });
    assert!(world.image.follow((0..40).map(|number| files.whole(number)).collect()));
    world.image.stop_following();
    followed(&world).await;
    assert!(world.source.requests().len() < 40, "{}", world.source.requests().len());
    world.source.calm();
    assert!(world.image.follow(vec![files.whole(5)]), "others may be followed after");
    followed(&world).await;
    assert!(world.fetcher.open_local(&files.small[5].0).is_some());
}
