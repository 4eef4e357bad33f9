//! Complete objects that must be hashed before use: callers that may not wait do not hash, and each object is hashed once.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{World, noise};
use futures::future::join_all;
use tarpon_oci::Digest;
use tarpon_testkit::source::{Form, Packer};
use tokio::task::yield_now;
use tokio::time::advance;

const SIZE: u64 = 300_000;

/// A world that has the whole object from an earlier boot.
async fn after_a_boot() -> (World, Digest, Bytes) {
    let content = noise(1, 300_000);
    let mut packer = Packer::new(Form::Raw);
    let object = packer.object(&content, 100_000);
    let world = World::new(&[&packer.finish()]);
    assert_eq!(world.read(&object, 0, SIZE).await.unwrap(), content);
    world.until_complete(&object).await;
    world.quiet().await;
    world.store.reboot();
    until_closed(&world, &object).await;
    (world, object, content.into())
}

/// Waits until the object is not read from its parts any more: the thread that publishes it frees them after it is in the store.
async fn until_closed(world: &World, object: &Digest) {
    let began = Instant::now();
    world.fetcher.close_local(object);
    while world.fetcher.read_local(object, 0, 1).is_some() {
        assert!(began.elapsed() < Duration::from_secs(60), "it is open for ever");
        yield_now().await;
        std::thread::yield_now();
        world.fetcher.close_local(object);
    }
}

/// Runs other tasks and threads until the store was called to hash this many objects.
async fn until_hashing(world: &World, count: usize) {
    let began = Instant::now();
    while world.store.hashed_by().len() < count {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing is hashed");
        yield_now().await;
    }
}

#[tokio::test]
async fn a_thread_that_serves_the_kernel_never_hashes_an_object() {
    let (world, object, content) = after_a_boot().await;
    assert!(world.fetcher.read_local(&object, 0, 10).is_none());
    assert!(world.fetcher.open_local(&object).is_none());
    assert_eq!(world.fetcher.object_size(&object), Some(SIZE));
    assert_eq!(world.fetcher.hold_inode(&object), Some(SIZE));
    world.fetcher.prefetch(&object, 0..SIZE);
    assert_eq!(world.store.hashed_by(), []);
    let asked = world.asked();
    assert_eq!(world.read(&object, 5, 10).await.unwrap(), content[5..15]);
    let by = world.store.hashed_by();
    assert_eq!(by.len(), 1);
    assert_ne!(by[0], std::thread::current().id());
    assert!(world.fetcher.read_local(&object, 0, 10).is_some());
    assert!(world.fetcher.open_local(&object).is_some());
    assert_eq!((world.store.hashed_by().len(), world.asked()), (1, asked));
}

#[tokio::test]
async fn all_readers_of_an_object_wait_for_one_check() {
    let (world, object, content) = after_a_boot().await;
    let asked = world.asked();
    let held = world.store.hold_hashing();
    let reads = join_all((0..100).map(|at| world.read(&object, at * 1000, 1000)));
    let opened = async {
        let before = world.fetcher.check_local(&object).expect("it is not hashed");
        before.await;
        world.fetcher.open_local(&object)
    };
    let (answers, opened, ()) = tokio::join!(reads, opened, async {
        until_hashing(&world, 1).await;
        drop(held);
    });
    for (answer, at) in answers.into_iter().zip((0..).step_by(1000)) {
        assert_eq!(answer.unwrap(), content[at..at + 1000]);
    }
    assert_eq!(opened.unwrap().size, SIZE);
    assert!(world.fetcher.check_local(&object).is_none());
    assert_eq!((world.store.hashed_by().len(), world.asked()), (1, asked));
}

#[tokio::test(start_paused = true)]
async fn a_read_that_is_late_for_a_hash_fails_in_time_and_the_next_one_joins_the_work() {
    let (world, object, content) = after_a_boot().await;
    let held = world.store.hold_hashing();
    let late = async {
        let (read, before) = (world.read(&object, 0, 10), world.fetcher.check_local(&object).unwrap());
        tokio::join!(read, before).0
    };
    let (answer, ()) = tokio::join!(late, async {
        until_hashing(&world, 1).await;
        advance(Duration::from_secs(28)).await;
    });
    assert!(answer.unwrap_err().contains("not received within 28 s"));
    let again = world.read(&object, 0, 10).await;
    assert!(
        again.unwrap_err().contains("not received within 28 s"),
        "the second request of the kernel is answered at once"
    );
    advance(Duration::from_secs(3)).await;
    let (answer, ()) = tokio::join!(world.read(&object, 0, 10), async {
        yield_now().await;
        drop(held);
    });
    assert_eq!(answer.unwrap(), content[..10]);
    assert_eq!(world.store.hashed_by().len(), 1);
}

#[tokio::test]
async fn an_object_that_turns_out_damaged_is_fetched_again() {
    let (world, object, content) = after_a_boot().await;
    world.store.damage(&object);
    assert_eq!(world.read(&object, 0, SIZE).await.unwrap(), content);
    assert_eq!(world.store.hashed_by().len(), 1);
}

#[tokio::test]
async fn an_object_of_no_image_has_its_size_when_it_was_hashed() {
    let (world, object, content) = after_a_boot().await;
    let World { fetcher, store, image, .. } = world;
    drop(image);
    assert_eq!(fetcher.hold_inode(&object), None, "a lookup cannot wait");
    let before = fetcher.check_local(&object);
    if let Some(before) = before {
        before.await;
    }
    assert_eq!(fetcher.hold_inode(&object), Some(SIZE));
    assert_eq!(fetcher.read(&object, 0, 10).await.unwrap().into_bytes(), content[..10]);
    assert_eq!(store.hashed_by().len(), 1);
}
