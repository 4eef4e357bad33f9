//! Images with false claims about objects of other images, and the reads of those.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{World, noise};
use tarpon_blob::Fault;
use tarpon_fetch::{Fetcher, ImageHandle, ReadError};
use tarpon_oci::Digest;
use tarpon_testkit::source::{Form, MemorySource, PackedLayer, Packer, Refusal, Reply, Then, table_of};
use tokio::time::Instant;

/// Compares without printing megabytes on failure.
macro_rules! assert_bytes {
    ($left:expr, $right:expr) => {
        assert!($left[..] == $right[..], "these are not the right bytes");
    };
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// One object of these bytes, in chunks of this size.
fn honest(bytes: &[u8], chunk: usize) -> PackedLayer {
    let mut packer = Packer::new(Form::Raw);
    packer.object(bytes, chunk);
    packer.finish()
}

/// An object of these bytes that claims to be `name`.
fn lie(name: &Digest, bytes: &[u8], chunk: usize) -> PackedLayer {
    let mut packer = Packer::new(Form::Raw);
    let object = packer.object(bytes, chunk);
    packer.lie(&object, *name);
    packer.finish()
}

fn add(fetcher: &Fetcher, layer: &PackedLayer, name: &str) -> (ImageHandle, Arc<MemorySource>) {
    let source = Arc::new(MemorySource::new([layer.bytes.clone()]));
    (fetcher.add_image(table_of(&[layer]), source.clone(), name), source)
}

/// The object, the world of an image with a false claim about it, and the layer of an honest one.
fn contested() -> (Vec<u8>, Digest, World, PackedLayer) {
    let good = noise(1, 2 * MIB);
    let object = Digest::of(&good);
    let world = World::new(&[&lie(&object, &noise(2, 2 * MIB), 64 * KIB)]);
    (good.clone(), object, world, honest(&good, 64 * KIB))
}

#[tokio::test(start_paused = true)]
async fn false_chunks_in_one_image_do_not_affect_an_honest_image() {
    for lies_first in [true, false] {
        for (size, chunk) in [(2 * MIB, 64 * KIB), (2 * MIB, 2 * MIB), (100, 100), (3 * MIB, 64 * KIB)] {
            let good = noise(1, 2 * MIB);
            let object = Digest::of(&good);
            let (honest, lie) = (honest(&good, 64 * KIB), lie(&object, &noise(2, size), chunk));
            let layers = if lies_first { [&lie, &honest] } else { [&honest, &lie] };
            let world = World::new(&layers[..1]);
            let _other = add(&world.fetcher, layers[1], "other:latest");
            assert_bytes!(world.read(&object, 100_000, 300_000).await.unwrap(), good[100_000..400_000]);
            assert_bytes!(world.read(&object, 0, 2 << 20).await.unwrap(), good);
            world.quiet().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_that_a_lying_image_fetched_before_are_not_another_images() {
    let (good, object, world, layer) = contested();
    assert!(
        world.read(&object, 0, 200_000).await.unwrap() != good[..200_000],
        "the hostile image reads its own false chunks"
    );
    world.quiet().await;
    let (_good, _) = add(&world.fetcher, &layer, "good:latest");
    assert!(world.fetcher.read_local(&object, 0, 1000).is_none());
    assert_bytes!(world.read(&object, 0, 200_000).await.unwrap(), good[..200_000]);
}

#[tokio::test(start_paused = true)]
async fn zeros_that_a_table_invents_are_served_to_no_other_image() {
    let good = noise(1, MIB);
    let object = Digest::of(&good);
    let world = World::new(&[&lie(&object, &vec![0; MIB], MIB)]);
    let (_good, _) = add(&world.fetcher, &honest(&good, MIB), "good:latest");
    assert_bytes!(world.read(&object, 0, 1 << 20).await.unwrap(), good);
}

#[tokio::test(start_paused = true)]
async fn a_false_list_writes_nothing_into_the_partial_object_of_another_image() {
    let good = noise(1, 2 * MIB);
    let object = Digest::of(&good);
    let world = World::new(&[&honest(&good, 64 * KIB)]);
    assert_bytes!(world.read(&object, 0, 600_000).await.unwrap(), good[..600_000]);
    world.quiet().await;
    let (evil, _) = add(&world.fetcher, &lie(&object, &noise(2, 2 * MIB), 64 * KIB), "evil:latest");
    // Fetching for the false image continues while it is not decided which one is false.
    world.source.always(Then::Refuse(Fault::NotFound).into());
    let _contested = world.read(&object, 1 << 20, 64 * 1024).await;
    world.quiet().await;
    drop(evil);
    assert_bytes!(world.fetcher.read_local(&object, 0, 600_000).unwrap().unwrap(), good[..600_000]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_was_found_out_fails_its_own_image_alone() {
    let (good, object, world, layer) = contested();
    world.read(&object, 0, 2 << 20).await.unwrap();
    for _ in 0..1000 {
        if world.image.stats().poisoned_objects > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(matches!(world.fetcher.read(&object, 0, 10).await, Err(ReadError::Poisoned(_))));
    let (_good, source) = add(&world.fetcher, &layer, "good:latest");
    assert_bytes!(world.read(&object, 1 << 20, 1000).await.unwrap(), good[MIB..MIB + 1000]);
    assert_eq!(source.requests().len(), 1, "and lazily, since one list alone is left");
}

#[tokio::test(start_paused = true)]
async fn a_piece_that_a_lying_image_could_not_read_is_not_remembered_against_another() {
    let good = noise(1, 200 * KIB);
    let layer = honest(&good, 200 * KIB);
    // The same layer, with chunks in it that differ from the index.
    let mut wrong = layer.clone();
    wrong.index.chunks[0].digest = Digest::of(b"something else");
    let mut packer = Packer::new(Form::Raw);
    packer.object(&good, 200 * KIB);
    packer.lie(&Digest::of(&good), Digest::of(b"another object"));
    wrong.index.entries = packer.finish().index.entries;
    let world = World::new(&[&wrong]);
    let (_good, _) = add(&world.fetcher, &layer, "good:latest");
    assert!(world.read(&Digest::of(b"another object"), 0, 1000).await.is_err());
    assert_bytes!(world.read(&Digest::of(&good), 0, 1000).await.unwrap(), good[..1000]);
}

#[tokio::test(start_paused = true)]
async fn honest_images_that_split_an_object_differently_are_both_right() {
    let content = noise(3, 3 * MIB);
    let object = Digest::of(&content);
    for chunks in [[100 * KIB, 64 * KIB], [64 * KIB, 3 * MIB]] {
        let world = World::new(&[&honest(&content, chunks[0])]);
        assert!(world.read(&object, 0, 1000).await.is_ok());
        let (_other, _) = add(&world.fetcher, &honest(&content, chunks[1]), "other:latest");
        assert_bytes!(world.read(&object, 1_000_000, 500_000).await.unwrap(), content[1_000_000..1_500_000]);
        world.quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_dispute_is_settled_once_and_for_a_store_without_room_too() {
    let (good, object, world, layer) = contested();
    world.store.refuse(Some(Refusal::Full));
    let (_good, source) = add(&world.fetcher, &layer, "good:latest");
    let reads = (0..8).map(|i| world.read(&object, i * 1000, 1000));
    for (i, bytes) in futures::future::join_all(reads).await.into_iter().enumerate() {
        assert_bytes!(bytes.unwrap(), good[i * 1000..i * 1000 + 1000]);
    }
    let asked = |source: &MemorySource| -> u64 { source.requests().iter().map(|(_, r)| r.end - r.start).sum() };
    assert!(asked(&source) <= 3 << 20, "{}", asked(&source));
    let before = asked(&source);
    assert_bytes!(world.read(&object, 1 << 20, 1000).await.unwrap(), good[MIB..MIB + 1000]);
    assert!(asked(&source) - before <= 64 << 10, "from now on its chunks are fetched as they are needed");
}

#[tokio::test(start_paused = true)]
async fn a_false_list_whose_source_hangs_does_not_block_another_image() {
    let (good, object, world, layer) = contested();
    world.source.always(Then::Never.into());
    let (_good, _) = add(&world.fetcher, &layer, "good:latest");
    let began = Instant::now();
    assert_bytes!(world.read(&object, 5, 1000).await.unwrap(), good[5..1005]);
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_dispute_that_cannot_be_settled_fails_within_the_deadline_and_then_at_once() {
    let (good, object, world, layer) = contested();
    let (_good, source) = add(&world.fetcher, &layer, "good:latest");
    for source in [&world.source, &source] {
        source.always(Then::Never.into());
    }
    let began = Instant::now();
    assert!(matches!(world.fetcher.read(&object, 0, 1000).await, Err(ReadError::Disputed { .. })));
    let deadline = tarpon_fetch::Config::default().read_deadline.as_secs();
    assert_eq!(began.elapsed().as_secs(), deadline);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(world.fetcher.read(&object, 0, 1000).await.is_err());
    assert_eq!(began.elapsed().as_secs(), deadline + 1);
    for source in [&world.source, &source] {
        source.calm();
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_bytes!(world.read(&object, 0, 1000).await.unwrap(), good[..1000]);
}

#[tokio::test(start_paused = true)]
async fn a_read_that_is_late_for_a_dispute_is_not_late_twice() {
    let good = noise(1, 12 * MIB);
    let object = Digest::of(&good);
    let world = World::new(&[&lie(&object, &noise(2, 12 * MIB), 64 * KIB)]);
    let (_good, source) = add(&world.fetcher, &honest(&good, 64 * KIB), "good:latest");
    // No part of the object is late, the whole takes a minute.
    let trickle = Reply { part: 64 * KIB, pace: Duration::from_millis(312), ..Reply::default() };
    for source in [&world.source, &source] {
        source.always(trickle);
    }
    let began = Instant::now();
    // The kernel follows an error with a second request.
    for _ in 0..2 {
        assert!(matches!(world.fetcher.read(&object, 0, 1000).await, Err(ReadError::Disputed { .. })));
    }
    assert!(began.elapsed() <= Duration::from_secs(30), "{:?}", began.elapsed());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_bytes!(world.read(&object, 0, 1000).await.unwrap(), good[..1000]);
}

#[tokio::test(start_paused = true)]
async fn an_image_detects_inodes_with_content_that_it_does_not_confirm() {
    let (_, object, world, layer) = contested();
    assert_eq!(world.fetcher.hold_inode(&object), Some(2 << 20));
    let (good, _) = add(&world.fetcher, &layer, "good:latest");
    assert_eq!(good.contested_inode(), Some(object));
    assert_eq!(world.image.contested_inode(), None);
    world.fetcher.release_inode(&object);
    assert_eq!(good.contested_inode(), None, "the kernel has let go of it");
    world.fetcher.hold_inode(&object).unwrap();
    assert_eq!(good.contested_inode(), None, "since both are registered, only what was hashed is handed out");
}

/// The kernel keeps the inode while images come and go.
#[tokio::test(start_paused = true)]
async fn an_inode_with_pages_of_two_lists_is_contested_for_an_image_with_either_of_them() {
    let good = noise(1, 2 * MIB);
    let object = Digest::of(&good);
    let layers = [lie(&object, &noise(2, 2 * MIB), 64 * KIB), honest(&good, 64 * KIB)];
    let World { fetcher, image, .. } = World::new(&[&layers[0]]);
    fetcher.hold_inode(&object).unwrap();
    drop(image);
    let (image, _) = add(&fetcher, &layers[1], "good:latest");
    assert_bytes!(fetcher.read(&object, 0, 1000).await.unwrap().into_bytes(), good[..1000]);
    drop(image);
    for layer in &layers {
        let (image, _) = add(&fetcher, layer, "again:latest");
        assert_eq!(image.contested_inode(), Some(object));
    }
    fetcher.release_inode(&object);
    let (image, _) = add(&fetcher, &layers[0], "again:latest");
    assert_eq!(image.contested_inode(), None);
}

#[tokio::test(start_paused = true)]
async fn an_inode_with_the_true_content_is_shared_by_all_images() {
    let content = noise(3, 2 * MIB);
    let object = Digest::of(&content);
    let world = World::new(&[&honest(&content, 64 * KIB)]);
    world.fetcher.hold_inode(&object).unwrap();
    world.read(&object, 0, 1000).await.unwrap();
    let (other, _) = add(&world.fetcher, &honest(&content, 100 * KIB), "other:latest");
    assert_eq!(other.contested_inode(), Some(object), "contested until it is checked");
    drop(other);
    world.read(&object, 0, 2 << 20).await.unwrap();
    world.until_complete(&object).await;
    world.quiet().await;
    let (other, _) = add(&world.fetcher, &honest(&content, 100 * KIB), "other:latest");
    for _ in 0..1000 {
        if other.contested_inode().is_none() {
            return;
        }
        // The thread that hashed the object reports it.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never confirmed");
}

#[tokio::test(start_paused = true)]
async fn an_inode_never_has_a_size_that_one_image_invents() {
    let good = noise(1, 100 * KIB);
    let object = Digest::of(&good);
    let (small, whole) = (lie(&object, b"short", 5), honest(&good, 100 * KIB));
    let world = World::new(&[&small]);
    assert_eq!(world.fetcher.hold_inode(&object), Some(5));
    let (image, _) = add(&world.fetcher, &whole, "good:latest");
    assert_eq!(image.contested_inode(), Some(object));
    world.fetcher.release_inode(&object);
    let mut size = world.fetcher.hold_inode(&object);
    for _ in 0..100 {
        if size.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        size = world.fetcher.hold_inode(&object);
    }
    assert_eq!(size, Some(100 << 10));
    assert_eq!(image.contested_inode(), None);
}

/// The object of the earlier boot is hashed, and then the lists are compared with it: nothing is fetched.
#[tokio::test(start_paused = true)]
async fn a_list_that_does_not_fit_the_local_object_is_not_believed() {
    let good = noise(1, 100 * KIB);
    let object = Digest::of(&good);
    let world = World::new(&[&honest(&good, 50 * KIB)]);
    world.read(&object, 0, 100 << 10).await.unwrap();
    world.until_complete(&object).await;
    world.quiet().await;
    world.fetcher.close_local(&object);
    world.store.reboot();
    let lies = (1..9).map(|size| add(&world.fetcher, &lie(&object, &noise(2, size), size), "lie:latest"));
    let lies: Vec<_> = lies.collect();
    let mut size = world.fetcher.hold_inode(&object);
    for _ in 0..1000 {
        if size.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        size = world.fetcher.hold_inode(&object);
    }
    assert_eq!(size, Some(100 << 10));
    assert_eq!(world.image.stats().poisoned_objects, 0);
    assert!(lies.iter().all(|(_, source)| source.requests().is_empty()));
}

#[tokio::test(start_paused = true)]
async fn a_true_list_without_bytes_blocks_another_image_once() {
    let content = noise(3, 600 * KIB);
    let object = Digest::of(&content);
    let layer = honest(&content, 100 * KIB);
    let world = World::new(&[&layer]);
    world.source.always(Then::Never.into());
    let (_other, _) = add(&world.fetcher, &honest(&content, 100 * KIB), "other:latest");
    let began = Instant::now();
    assert_bytes!(world.read(&object, 0, 1000).await.unwrap(), content[..1000]);
    assert!(began.elapsed() <= Duration::from_secs(15), "{:?}", began.elapsed());
    tokio::time::sleep(Duration::from_secs(60)).await;
    for chunk in 1..6 {
        let (began, at) = (Instant::now(), chunk * 100 * KIB);
        assert_bytes!(world.read(&object, at as u64, 1000).await.unwrap(), content[at..at + 1000]);
        assert!(began.elapsed() < Duration::from_secs(1));
        tokio::time::sleep(Duration::from_secs(6)).await;
    }
}
