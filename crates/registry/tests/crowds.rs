//! A registry that accepts a limited number of parallel requests: what it is sent, and when.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::ops::Range;
use std::sync::Arc;

use common::{blob, blob_bytes, contents};
use futures::{TryStreamExt as _, future::join_all};
use tarpon_blob::SourceError;
use tarpon_oci::Reference;
use tarpon_registry::{CredentialSource, Repository, open_with};
use tarpon_testkit::crowd::CrowdedTransport;
use tarpon_testkit::registry::{Auth, FakeRegistry};
use tarpon_testkit::transport::ScriptedTransport;
use tokio::time::Instant;

/// A registry that accepts this many requests at once and is known to serve blobs itself.
async fn crowded(at_once: usize, pause: u32) -> (Arc<CrowdedTransport>, Repository) {
    let (transport, repository) = unknown(at_once, pause);
    read(&repository, 0..1).await.unwrap();
    transport.take();
    (transport, repository)
}

fn unknown(at_once: usize, pause: u32) -> (Arc<CrowdedTransport>, Repository) {
    let registry = Arc::new(FakeRegistry::new(contents(), Auth::Anonymous, None));
    let transport = Arc::new(CrowdedTransport::new(Arc::new(ScriptedTransport::new(registry)), at_once, pause));
    let reference: Reference = "registry.test/app:1".parse().unwrap();
    let credentials = CredentialSource::new(None, Vec::new());
    let repository = open_with(&reference, transport.clone(), credentials, true).unwrap();
    (transport, repository)
}

async fn read(repository: &Repository, range: Range<u64>) -> Result<(), SourceError> {
    let pieces = repository.blobs().read(blob(), range.clone()).await?;
    let read: Vec<u8> = pieces.map_ok(|piece| piece.to_vec()).try_concat().await?;
    let (start, end) = (usize::try_from(range.start).unwrap(), usize::try_from(range.end).unwrap());
    assert_eq!(read, blob_bytes()[start..end]);
    Ok(())
}

/// Ten at once. Returns how many of them failed.
async fn ten(repository: &Repository) -> usize {
    let reads = join_all((0..10).map(|number| read(repository, number * 1_000..number * 1_000 + 500))).await;
    reads.iter().filter(|read| read.is_err()).count()
}

#[tokio::test(start_paused = true)]
async fn ten_requests_at_once_all_succeed_at_a_registry_that_takes_four() {
    let (transport, repository) = crowded(4, 2).await;
    assert_eq!(ten(&repository).await, 0);
    let first = transport.take();
    assert_eq!((first.most, first.too_early), (10, 0), "{first:?}");
    assert!(first.refused >= 6, "{first:?}");
    // Those that were refused come back at different times, so it may take another crowd to show that eight are too many.
    assert_eq!((ten(&repository).await, transport.take().too_early), (0, 0));
    for _ in 0..10 {
        assert_eq!(ten(&repository).await, 0);
        let later = transport.take();
        // It tries one more now and then, and adapts.
        assert!(later.most <= 5 && later.refused <= 2, "{later:?}");
        assert_eq!(later.too_early, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn requests_during_a_pause_wait_until_its_end() {
    let (transport, repository) = crowded(1, 7).await;
    let began = Instant::now();
    let two = join_all([read(&repository, 0..10), read(&repository, 10..20)]);
    let later = async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        read(&repository, 20..30).await.map(|()| began.elapsed())
    };
    let (two, later) = tokio::join!(two, later);
    assert!(two.iter().all(Result::is_ok));
    assert!(later.unwrap().as_secs() >= 7);
    assert_eq!(transport.take().too_early, 0);
}

#[tokio::test(start_paused = true)]
async fn requests_fail_at_once_if_the_registry_asks_for_a_pause_beyond_their_deadline() {
    let (transport, repository) = unknown(0, 60);
    let began = Instant::now();
    assert_eq!(ten(&repository).await, 10);
    let asked = transport.take().refused;
    let error = read(&repository, 0..10).await.unwrap_err().to_string();
    assert!(error.contains("requested a pause") && error.contains("next attempt only in"), "{error}");
    assert_eq!((transport.take().refused, began.elapsed().as_secs()), (0, 0), "{asked}");
}

#[tokio::test(start_paused = true)]
async fn requests_that_waited_for_a_location_continue_at_once_if_the_registry_serves_the_blob_itself() {
    let (transport, repository) = unknown(100, 1);
    let began = Instant::now();
    assert_eq!(ten(&repository).await, 0);
    assert_eq!(
        (transport.take().most, began.elapsed().as_millis()),
        (5, 100),
        "one round trip of the first request and of four that did not wait, and another of all others"
    );
}
