//! Failures of writes, which do not affect reads, and the reverse.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::ObjectStoreExt as _;
use tarpon_blob::BlobSource as _;
use tarpon_oci::Verified;
use tarpon_testkit::source::MemorySource;
use tokio::time::sleep;

use super::faulty::{Fault, FaultyStore, Operation};
use super::{blob, bytes, layer, object, proof, tier};
use crate::health::REST;
use crate::{LayerState, Tier, TieredBlobs};

fn index() -> Verified<Bytes> {
    Verified::seal(Bytes::from_static(b"index"))
}

/// A tier with a blob, whose writes have this fault; one of them has failed.
async fn without_writes(fault: Fault) -> (Arc<FaultyStore>, Arc<Tier>, Bytes) {
    let ((store, tier), bytes) = (tier(), bytes(1_000));
    tier.store().put(&object(&bytes, "blob"), bytes.clone().into()).await.unwrap();
    for operation in [Operation::Put, Operation::Begin] {
        store.always(operation, fault);
    }
    assert!(layer(&tier, &bytes).keep_index(&index()).await.is_err());
    (store, tier, bytes)
}

/// Tries all that writes; how often the store was asked to.
async fn writes(store: &FaultyStore, tier: &Arc<Tier>, bytes: &Bytes) -> usize {
    let asked = || store.count(Operation::Put) + store.count(Operation::Begin);
    let (layer, before) = (layer(tier, bytes), asked());
    assert!(layer.keep_index(&index()).await.is_err());
    layer.note_use(&layer.look().await.unwrap()).await;
    let error = layer.claim(&LayerState::default()).await.unwrap_err();
    assert!(error.to_string().starts_with("cannot claim a layer in the tier: "), "{error}");
    asked() - before
}

#[tokio::test(start_paused = true)]
async fn a_write_that_fails_lets_writes_rest_and_reads_go_on() {
    for fault in [Fault::Fail, Fault::Hang, Fault::Refuse] {
        let (store, tier, bytes) = without_writes(fault).await;
        assert_eq!((tier.may_write(), tier.is_resting(), tier.account().rest), (false, None, None), "{fault:?}");
        assert_eq!(writes(&store, &tier, &bytes).await, 0, "{fault:?}");
        let source = Arc::new(MemorySource::new([]));
        let read = TieredBlobs::new(tier.clone(), source.clone()).read(blob(&bytes), 0..1_000).await.unwrap();
        assert!(read.try_collect::<Vec<_>>().await.unwrap().concat() == bytes);
        assert!(!tier.may_write(), "a read shows nothing about writes");
        let account = tier.account();
        assert_eq!(account.failures, 1, "{fault:?}");
        let why = account.last_failure.unwrap();
        assert!(why.starts_with("cannot keep an index in the tier: "), "{why}");
        let other = tier.with_own_account().account();
        assert!(other.last_failure.unwrap().starts_with(&why), "other images show why nothing is written");
    }
}

#[tokio::test(start_paused = true)]
async fn writes_are_tried_again_after_a_rest_unless_they_are_not_permitted() {
    for (fault, is_tried) in [(Fault::Fail, true), (Fault::Refuse, false)] {
        let (store, tier, bytes) = without_writes(fault).await;
        sleep(REST).await;
        assert_eq!(tier.may_write(), is_tried);
        assert_eq!(writes(&store, &tier, &bytes).await > 0, is_tried);
        store.always(Operation::Put, None);
        sleep(Duration::from_secs(24 * 3600)).await;
        assert_eq!((tier.may_write(), tier.with_own_account().may_write()), (is_tried, is_tried));
        assert_eq!(layer(&tier, &bytes).keep_index(&index()).await.is_ok(), is_tried);
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_that_fails_does_not_keep_layers_from_being_written() {
    let ((store, tier), bytes) = (tier(), bytes(10));
    let layer = layer(&tier, &bytes);
    store.always(Operation::List, Fault::Refuse);
    assert!(layer.look().await.is_err());
    assert_eq!((tier.is_resting().is_some(), tier.may_write()), (true, true));
    layer.keep_index(&index()).await.unwrap();
    assert!(tier.is_resting().is_some(), "a write shows nothing about reads");
}

#[tokio::test(start_paused = true)]
async fn a_tier_that_permits_no_removal_is_written() {
    let ((store, tier), bytes) = (tier(), bytes(10));
    let layer = layer(&tier, &bytes);
    store.always(Operation::Delete, Fault::Refuse);
    let claim = layer.claim(&LayerState::default()).await.unwrap().unwrap();
    claim.release().await;
    assert_eq!((store.count(Operation::Delete), tier.account().failures), (1, 1));
    assert!(tier.may_write());
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_begins_while_writes_rest_is_not_made_and_the_source_goes_on() {
    let ((store, tier), bytes) = (tier(), bytes(20 << 20));
    let layer = layer(&tier, &bytes);
    let claim = layer.claim(&LayerState::default()).await.unwrap().unwrap();
    store.script(Operation::Put, [Some(Fault::Fail)]);
    assert!(layer.keep_index(&index()).await.is_err());
    let mut upload = layer.upload(&claim);
    for start in (0..bytes.len()).step_by(1 << 20) {
        upload.push(&bytes.slice(start..start + (1 << 20))).await;
    }
    let error = upload.finish(&proof(&bytes)).await.unwrap_err().to_string();
    assert!(
        error.starts_with("cannot copy a blob to the tier: nothing is written to the tier at the moment"),
        "{error}"
    );
    assert_eq!(store.count(Operation::Begin), 0);
    claim.release().await;
    assert_eq!(store.count(Operation::Delete), 1, "others do not wait until the claim expires");
}
