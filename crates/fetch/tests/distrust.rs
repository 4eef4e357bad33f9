//! A layer whose index is false is no longer read, and nothing else is affected.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{World, noise};
use futures::FutureExt;
use tarpon_fetch::{Background, ReadError};
use tarpon_testkit::source::{Form, MemorySource, PackedLayer, Packer, Reply, table_of};
use tokio::time::Instant;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const REASON: &str = "the index sha256:… is wrong about etc/passwd";

/// A layer of one object for each of these seeds, in chunks of 64 KiB.
fn layer(seeds: &[u64]) -> (PackedLayer, Vec<tarpon_oci::Digest>) {
    let mut packer = Packer::new(Form::Raw);
    let objects = seeds.iter().map(|seed| {
        let bytes = noise(*seed, MIB);
        packer.object(&bytes, 64 * KIB);
        tarpon_oci::Digest::of(&bytes)
    });
    let objects = objects.collect();
    (packer.finish(), objects)
}

#[tokio::test(start_paused = true)]
async fn incomplete_objects_of_a_distrusted_layer_fail_at_once_and_others_are_read() {
    let ((bad, objects), (good, others)) = (layer(&[1, 2, 3]), layer(&[4]));
    let world = World::new(&[&bad, &good]);
    let [complete, partial, unread] = objects[..] else { unreachable!() };
    world.read(&complete, 0, 1 << 20).await.unwrap();
    world.until_complete(&complete).await;
    world.read(&partial, 0, 100_000).await.unwrap();
    world.quiet().await;
    assert!(world.fetcher.read_local(&partial, 0, 1000).is_some());

    world.image.distrust(&bad.blob.digest, REASON);
    let (asked, now) = (world.asked(), Instant::now());
    for object in [partial, unread] {
        assert!(world.fetcher.read_local(&object, 0, 1000).is_none(), "also what was checked chunk by chunk");
        let error = world.fetcher.read(&object, 0, 1000).await.unwrap_err();
        assert!(matches!(&error, ReadError::Distrusted { layer, .. } if *layer == bad.blob.digest), "{error}");
        assert!(error.to_string().contains(REASON) && error.to_string().contains("test:latest"), "{error}");
        assert_eq!(world.fetcher.object_size(&object), Some(1 << 20), "it is still there to be looked at");
        world.fetcher.prefetch(&object, 0..1 << 20);
    }
    world.quiet().await;
    assert_eq!((world.asked(), Instant::now()), (asked, now), "no request and no wait");
    assert!(world.read(&complete, 0, 1 << 20).await.unwrap()[..] == noise(1, MIB)[..]);
    assert!(world.read(&others[0], 0, 1 << 20).await.unwrap()[..] == noise(4, MIB)[..]);

    world.image.distrust(&bad.blob.digest, "once more");
    let stats = world.image.stats();
    assert_eq!((stats.distrusted_layers, stats.failed_reads), (1, 2));
    assert!(stats.last_error.is_some_and(|error| error.contains(REASON)));
}

#[tokio::test(start_paused = true)]
async fn another_image_with_the_same_layer_remains_readable() {
    let (bad, objects) = layer(&[1]);
    let world = World::new(&[&bad]);
    let source = Arc::new(MemorySource::new([bad.bytes.clone()]));
    let _other = world.fetcher.add_image(table_of(&[&bad]), source, "other:latest");
    world.image.distrust(&bad.blob.digest, REASON);
    assert!(world.read(&objects[0], 0, 1 << 20).await.unwrap()[..] == noise(1, MIB)[..]);
}

/// A read names only the object: readers of the distrusted image get what is left.
#[tokio::test(start_paused = true)]
async fn what_another_image_states_about_an_object_is_hashed_whole_before_it_replaces_a_distrusted_layer() {
    let (honest, objects) = layer(&[1]);
    let mut packer = Packer::new(Form::Raw);
    let lie = packer.object(&noise(2, MIB), 64 * KIB);
    packer.lie(&lie, objects[0]);
    let hostile = packer.finish();
    let world = World::new(&[&honest]);
    let source = Arc::new(MemorySource::new([hostile.bytes.clone()]));
    let _hostile = world.fetcher.add_image(table_of(&[&hostile]), source, "hostile:latest");
    world.image.distrust(&honest.blob.digest, REASON);
    for _ in 0..2 {
        let error = world.fetcher.read(&objects[0], 0, 1000).await.unwrap_err();
        assert!(matches!(error, ReadError::Poisoned(_)), "{error}");
    }
    assert!(world.fetcher.read_local(&objects[0], 0, 1000).is_none());
}

#[tokio::test(start_paused = true)]
async fn background_work_waits_for_readers() {
    let (layer, objects) = layer(&[1]);
    let world = World::new(&[&layer]);
    assert!(world.fetcher.turn(Background::IdleBackfill).now_or_never().is_some(), "no read is waiting");
    world.source.script([Reply { latency: Duration::from_secs(1), ..Reply::default() }]);
    let reading = tokio::spawn({
        let (fetcher, object) = (world.fetcher.clone(), objects[0]);
        async move { fetcher.read(&object, 0, 1000).await.map(|bytes| bytes.into_bytes()) }
    });
    while world.source.requests().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(world.fetcher.turn(Background::IdleBackfill).now_or_never().is_none(), "a read is waiting");
    reading.await.unwrap().unwrap();
    world.quiet().await;
    assert!(world.fetcher.turn(Background::IdleBackfill).now_or_never().is_some());
}
