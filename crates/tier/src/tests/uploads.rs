//! Uploads: copies of blobs behind their readers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::{Error, ObjectStoreExt as _};
use tokio::time::{Instant, sleep};

use super::faulty::{Fault, FaultyStore, Operation};
use super::{bytes, layer, object, over, proof, tier};
use crate::claim::Claim;
use crate::{LayerState, Tier, Upload};

const MIB: usize = 1 << 20;
/// As they arrive from a registry.
const PIECE: usize = 256 << 10;
/// Three parts, the last of them short.
const LARGE: usize = 17 * MIB;
/// Enough for everything that goes on in the background.
const LONG: Duration = Duration::from_secs(1_000);

/// The upload of a layer, and its claim.
async fn begin(tier: &Arc<Tier>, blob: &Bytes) -> (Upload, Claim) {
    let layer = layer(tier, blob);
    let claim = layer.claim(&LayerState::default()).await.unwrap().unwrap();
    (layer.upload(&claim), claim)
}

async fn push(upload: &mut Upload, bytes: &Bytes) {
    for start in (0..bytes.len()).step_by(PIECE) {
        upload.push(&bytes.slice(start..bytes.len().min(start + PIECE))).await;
    }
}

async fn stored(tier: &Tier, blob: &Bytes) -> Option<Bytes> {
    match tier.store().get(&object(blob, "blob")).await {
        Ok(found) => Some(found.bytes().await.unwrap()),
        Err(Error::NotFound { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

async fn is_visible_only_after_it_was_finished(store: Arc<FaultyStore>, blob: Bytes) {
    let tier = over(store.clone());
    let (mut upload, _claim) = begin(&tier, &blob).await;
    push(&mut upload, &blob).await;
    sleep(LONG).await;
    assert_eq!(stored(&tier, &blob).await, None);
    assert!(!layer(&tier, &blob).look().await.unwrap().has_blob);
    upload.finish(&proof(&blob)).await.unwrap();
    assert!(stored(&tier, &blob).await.unwrap() == blob);
    assert!(layer(&tier, &blob).look().await.unwrap().has_blob);
    assert_eq!(store.unfinished(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_small_blob_is_visible_only_after_it_was_finished() {
    is_visible_only_after_it_was_finished(tier().0, bytes(MIB + 1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_blob_of_many_parts_is_visible_only_after_it_was_finished() {
    let (store, _) = tier();
    is_visible_only_after_it_was_finished(store.clone(), bytes(LARGE)).await;
    assert_eq!((store.count(Operation::Begin), store.count(Operation::Part)), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn a_blob_of_two_whole_parts_is_kept() {
    let (store, _) = tier();
    is_visible_only_after_it_was_finished(store.clone(), bytes(16 * MIB)).await;
    assert_eq!(store.count(Operation::Part), 2);
}

#[tokio::test(start_paused = true)]
async fn an_empty_blob_is_kept() {
    is_visible_only_after_it_was_finished(tier().0, Bytes::new()).await;
}

#[tokio::test(start_paused = true)]
async fn a_blob_in_a_folder_is_visible_only_after_it_was_finished() {
    for size in [MIB, LARGE] {
        let (folder, blob) = (tempfile::tempdir().unwrap(), bytes(size));
        let files = LocalFileSystem::new_with_prefix(folder.path()).unwrap().with_fsync(true);
        is_visible_only_after_it_was_finished(FaultyStore::over(files), blob.clone()).await;
        let layer = folder.path().join(object(&blob, "").as_ref());
        let mut left: Vec<_> = std::fs::read_dir(layer).unwrap().map(|file| file.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["blob", "claim-0"]);
    }
}

/// The files of a layer that is being copied, and what the tier has of it.
async fn half_copied(folder: &tempfile::TempDir, blob: &Bytes) -> (Arc<Tier>, Upload, Claim, PathBuf) {
    let tier = over(Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap()));
    let (mut upload, claim) = begin(&tier, blob).await;
    push(&mut upload, &blob.slice(..12 * MIB)).await;
    sleep(LONG).await;
    let layer = folder.path().join(object(blob, "").as_ref());
    (tier, upload, claim, layer)
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_being_written_is_not_listed_and_is_removed_when_the_copy_is_given_up() {
    let (folder, blob) = (tempfile::tempdir().unwrap(), bytes(LARGE));
    let (tier, upload, claim, files) = half_copied(&folder, &blob).await;
    let staged = files.join("blob#1");
    assert!(staged.exists());
    assert!(!layer(&tier, &blob).look().await.unwrap().has_blob);
    let usage = tier.usage().await.unwrap();
    assert_eq!((usage.layers.len(), usage.bytes()), (1, 0), "the claim is listed, the file is not");

    drop(upload);
    sleep(LONG).await;
    assert!(!staged.exists());
    drop(claim);
}

async fn leaves_nothing(size: usize, pushed: usize) {
    let ((store, tier), blob) = (tier(), bytes(size));
    let (mut upload, _claim) = begin(&tier, &blob).await;
    push(&mut upload, &blob.slice(..pushed)).await;
    sleep(LONG).await;
    drop(upload);
    sleep(LONG).await;
    assert_eq!((stored(&tier, &blob).await, store.unfinished()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_upload_leaves_nothing() {
    leaves_nothing(MIB, MIB).await;
    leaves_nothing(LARGE, 12 * MIB).await;
    leaves_nothing(LARGE, LARGE).await;
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_was_given_up_ends_at_once_while_the_store_hangs() {
    let ((store, tier), blob) = (tier(), bytes(100 * MIB));
    store.always(Operation::Part, Fault::Hang);
    let (mut upload, _claim) = begin(&tier, &blob).await;
    push(&mut upload, &blob.slice(..35 * MIB)).await;
    assert_eq!(store.unfinished(), 1);
    drop(upload);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(store.unfinished(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_a_little_slower_than_the_source_holds_it_up_and_gets_the_blob() {
    let ((store, tier), blob) = (tier(), bytes(100 * MIB));
    store.always(Operation::Part, Fault::Wait(Duration::from_millis(200)));
    let (mut upload, _claim) = begin(&tier, &blob).await;
    let began = Instant::now();
    push(&mut upload, &blob).await;
    assert!(began.elapsed() > Duration::ZERO);
    upload.finish(&proof(&blob)).await.unwrap();
    assert!(stored(&tier, &blob).await.unwrap() == blob);
}

/// How long a source of `pieces` that needs `each` for one of them took, with a copy that is given up.
async fn with_a_hanging_store(pieces: usize, each: Duration) -> Duration {
    let ((store, tier), blob) = (tier(), bytes(pieces * PIECE));
    store.always(Operation::Part, Fault::Hang);
    let (mut upload, _claim) = begin(&tier, &blob).await;
    let began = Instant::now();
    for piece in 0..pieces {
        sleep(each).await;
        upload.push(&blob.slice(piece * PIECE..(piece + 1) * PIECE)).await;
    }
    let took = began.elapsed();
    let error = upload.finish(&proof(&blob)).await.unwrap_err();
    assert!(error.to_string().starts_with("cannot copy a blob to the tier: "), "{error}");
    sleep(LONG).await;
    assert_eq!((stored(&tier, &blob).await, store.unfinished()), (None, 0));
    took
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_costs_the_source_two_seconds_or_a_quarter_of_its_time() {
    // A source that is at once there: two seconds.
    assert_eq!(with_a_hanging_store(400, Duration::ZERO).await, Duration::from_secs(2));
    // One that takes 20 seconds, and 9 until the copy waits.
    let slow = with_a_hanging_store(400, Duration::from_millis(50)).await;
    assert!((Duration::from_secs(24)..Duration::from_secs(25)).contains(&slow), "{slow:?}");
}

#[tokio::test(start_paused = true)]
async fn many_short_waits_for_a_store_count_together() {
    let ((store, tier), blob) = (tier(), bytes(100 * MIB));
    store.always(Operation::Part, Fault::Wait(Duration::from_millis(1_500)));
    let (mut upload, _claim) = begin(&tier, &blob).await;
    let began = Instant::now();
    push(&mut upload, &blob).await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(upload.finish(&proof(&blob)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_blob_that_is_sent_whole_has_a_second_for_each_megabyte() {
    for (seconds, is_kept) in [(9, true), (30, false)] {
        let ((store, tier), blob) = (tier(), bytes(8 * MIB));
        let (mut upload, _claim) = begin(&tier, &blob).await;
        push(&mut upload, &blob).await;
        store.always(Operation::Put, Fault::Wait(Duration::from_secs(seconds)));
        assert_eq!(upload.finish(&proof(&blob)).await.is_ok(), is_kept, "{seconds} s");
    }
}

#[tokio::test(start_paused = true)]
async fn an_upload_fails_with_its_first_part_and_the_source_goes_on() {
    let ((store, tier), blob) = (tier(), bytes(100 * MIB));
    store.script(Operation::Part, [None, Some(Fault::Fail)]);
    let (mut upload, _claim) = begin(&tier, &blob).await;
    let began = Instant::now();
    push(&mut upload, &blob).await;
    let error = upload.finish(&proof(&blob)).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot copy a blob to the tier: the disk is on fire");
    assert_eq!((began.elapsed(), store.unfinished()), (Duration::ZERO, 0));
    assert_eq!(stored(&tier, &blob).await, None);
    assert!(!tier.may_write() && tier.is_resting().is_none());
}

#[tokio::test(start_paused = true)]
async fn an_upload_whose_completion_fails_or_hangs_leaves_nothing() {
    for fault in [Fault::Fail, Fault::Hang] {
        let ((store, tier), blob) = (tier(), bytes(LARGE));
        store.always(Operation::Complete, fault);
        let (mut upload, _claim) = begin(&tier, &blob).await;
        push(&mut upload, &blob).await;
        assert!(upload.finish(&proof(&blob)).await.is_err());
        assert_eq!((stored(&tier, &blob).await, store.unfinished()), (None, 0), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_not_the_whole_blob_are_not_kept() {
    for size in [MIB, LARGE] {
        let blob = bytes(size);
        for pushed in [blob.slice(..size - 1), [&blob[..], b"x"].concat().into()] {
            let (store, tier) = tier();
            let (mut upload, _claim) = begin(&tier, &blob).await;
            push(&mut upload, &pushed).await;
            assert!(upload.finish(&proof(&blob)).await.is_err());
            assert_eq!((stored(&tier, &blob).await, store.unfinished()), (None, 0));
            assert_eq!(tier.account().failures, 0, "the tier is not at fault");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_proof_of_other_bytes_finishes_nothing() {
    let ((_store, tier), blob) = (tier(), bytes(MIB));
    let (mut upload, _claim) = begin(&tier, &blob).await;
    push(&mut upload, &blob).await;
    assert!(upload.finish(&proof(&bytes(3))).await.is_err());
    sleep(LONG).await;
    assert_eq!(stored(&tier, &blob).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_blob_of_a_wrong_size_is_replaced() {
    for size in [MIB, LARGE] {
        let ((_store, tier), blob) = (tier(), bytes(size));
        tier.store().put(&object(&blob, "blob"), "short".into()).await.unwrap();
        assert!(!layer(&tier, &blob).look().await.unwrap().has_blob);
        let (mut upload, _claim) = begin(&tier, &blob).await;
        push(&mut upload, &blob).await;
        upload.finish(&proof(&blob)).await.unwrap();
        assert!(stored(&tier, &blob).await.unwrap() == blob);
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_keeps_its_claim_alive() {
    for size in [MIB, LARGE] {
        let ((store, tier), blob) = (tier(), bytes(size));
        let (mut upload, claim) = begin(&tier, &blob).await;
        push(&mut upload, &blob.slice(..PIECE)).await;
        sleep(Duration::from_secs(10)).await;
        assert_eq!(store.names(Operation::Put), ["claim-0", "claim-0"]);
        drop((upload, claim));
    }
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_copy_are_its_parts() {
    let ((_store, tier), blob) = (tier(), bytes(LARGE));
    let (mut upload, _claim) = begin(&tier, &blob).await;
    push(&mut upload, &blob).await;
    upload.finish(&proof(&blob)).await.unwrap();
    assert_eq!(tier.account().requests, 6, "a claim, the begin, three parts and the end");
}
