//! Claims: who streams a layer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use object_store::ObjectStoreExt as _;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use tokio::time::{Instant, sleep};

use super::faulty::{Fault, FaultyStore, Operation};
use super::{bytes, layer, object, over, tier};
use crate::claim::{Claim, LEASE, SeenClaim, Watch};
use crate::{LayerState, SharedLayer, Tier};

/// How often a host that waits looks.
const PAUSE: Duration = Duration::from_secs(1);

async fn claimed(layer: &SharedLayer) -> Claim {
    layer.claim(&LayerState::default()).await.unwrap().expect("nobody else has it")
}

/// Watches until the claim has expired; how long that took.
async fn expiry(layer: &SharedLayer) -> Duration {
    let (mut watch, began) = (Watch::default(), Instant::now());
    loop {
        let state = layer.look().await.unwrap();
        if state.claim.as_ref().is_some_and(|claim| watch.has_expired(claim)) {
            return began.elapsed();
        }
        sleep(PAUSE).await;
    }
}

/// The names of a layer's claims.
async fn names(tier: &Arc<Tier>, blob: &Bytes) -> Vec<String> {
    use futures::TryStreamExt as _;
    let all: Vec<_> = tier.store().list(Some(&object(blob, ""))).try_collect().await.unwrap();
    let names = all.iter().filter_map(|object| object.location.filename()).filter(|name| name.starts_with("claim-"));
    names.map(str::to_owned).collect()
}

/// How many of the hosts get the claim of a layer that they have looked at.
async fn race(hosts: Vec<Arc<Tier>>) -> usize {
    let blob = bytes(10);
    let look = async |host: &Arc<Tier>| {
        let layer = layer(host, &blob);
        let state = layer.look().await.unwrap();
        (layer, state)
    };
    let looked = join_all(hosts.iter().map(look)).await;
    let claim = |(layer, state): (SharedLayer, LayerState)| tokio::spawn(async move { layer.claim(&state).await });
    let claims = join_all(looked.into_iter().map(claim)).await;
    claims.into_iter().filter_map(|claim| claim.unwrap().unwrap()).count()
}

#[tokio::test]
async fn a_claim_names_its_host() {
    let ((_store, tier), blob) = (tier(), bytes(10));
    let _claim = claimed(&layer(&tier, &blob)).await;
    let written = tier.store().get(&object(&blob, "claim-0")).await.unwrap().bytes().await.unwrap();
    let written: serde_json::Value = serde_json::from_slice(&written).unwrap();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert!(!host.is_empty() && written["host"] == host, "{written}");
}

#[tokio::test]
async fn a_claim_that_a_stale_listing_lacks_is_found_by_its_name() {
    let ((store, tier), blob) = (tier(), bytes(10));
    let (layer, stale) = (layer(&tier, &blob), LayerState::default());
    store.lists(Vec::new());
    let claim = claimed(&layer).await;
    assert!(layer.claim(&stale).await.unwrap().is_none(), "another host has it");
    let number = async || layer.look_again(Some(0)).await.unwrap().claim.as_ref().map(SeenClaim::number);
    assert_eq!(number().await, Some(0));
    claim.release().await;
    assert_eq!(number().await, None);
}

#[tokio::test]
async fn a_listed_claim_is_not_looked_up_again() {
    let ((store, tier), blob) = (tier(), bytes(10));
    let layer = layer(&tier, &blob);
    let _claim = claimed(&layer).await;
    let state = layer.look_again(Some(0)).await.unwrap();
    assert_eq!((state.next_claim(), store.count(Operation::Get)), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_16_hosts_gets_the_claim_in_memory() {
    let store = Arc::new(InMemory::new());
    assert_eq!(race((0..16).map(|_| over(store.clone())).collect()).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_16_hosts_gets_the_claim_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let host = |_| over(Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap().with_fsync(true)));
    assert_eq!(race((0..16).map(host).collect()).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_changes_does_not_expire() {
    let ((_store, tier), blob) = (tier(), bytes(10));
    let layer = layer(&tier, &blob);
    let claim = claimed(&layer).await;
    let mut watch = Watch::default();
    for _ in 0..20 {
        claim.progressed(1);
        sleep(LEASE / 3).await;
        let state = layer.look().await.unwrap();
        assert!(!watch.has_expired(&state.claim.unwrap()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_does_not_change_expires_after_the_lease_and_the_next_number_replaces_it() {
    let ((_store, tier), blob) = (tier(), bytes(10));
    let layer = layer(&tier, &blob);
    // Alive, but without progress.
    let first = claimed(&layer).await;
    let state = layer.look().await.unwrap();
    assert!((LEASE..LEASE + 2 * PAUSE).contains(&expiry(&layer).await));
    let second = layer.claim(&state).await.unwrap().unwrap();
    assert_eq!(names(&tier, &blob).await, ["claim-1"], "the expired one is removed");
    assert!(layer.claim(&state).await.unwrap().is_none(), "another host that waited as long is too late");

    // The new claim is watched from its beginning.
    assert!(expiry(&layer).await >= LEASE);
    drop((first, second));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_claim_expires() {
    let ((_store, tier), blob) = (tier(), bytes(10));
    let layer = layer(&tier, &blob);
    let claim = claimed(&layer).await;
    claim.progressed(1);
    drop(claim);
    assert!((LEASE..LEASE + 2 * PAUSE).contains(&expiry(&layer).await));
}

#[tokio::test(start_paused = true)]
async fn a_released_claim_lets_the_next_host_claim_at_once() {
    let (store, blob) = (FaultyStore::over(InMemory::new()), bytes(10));
    let (one, other) = (over(store.clone()), over(store.clone()));
    let claim = claimed(&layer(&one, &blob)).await;
    let state = layer(&other, &blob).look().await.unwrap();
    assert!(state.claim.is_some());

    let began = Instant::now();
    claim.release().await;
    let state = layer(&other, &blob).look().await.unwrap();
    assert_eq!(state.claim, None);
    assert!(layer(&other, &blob).claim(&state).await.unwrap().is_some());
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_that_is_on_its_way_does_not_bring_a_released_claim_back() {
    let ((store, tier), blob) = (tier(), bytes(10));
    let layer = layer(&tier, &blob);
    let claim = claimed(&layer).await;
    claim.progressed(1);
    // The store has the refresh, and answers later.
    store.script(Operation::Put, [Some(Fault::Late(Duration::from_secs(2)))]);
    sleep(PAUSE).await;
    assert_eq!(store.count(Operation::Put), 2, "the claim and its refresh");
    claim.release().await;
    sleep(Duration::from_secs(4)).await;
    assert_eq!(store.names(Operation::Delete), ["claim-0"]);
    assert_eq!(names(&tier, &blob).await, [""; 0]);
    assert_eq!(tier.account().failures, 0, "the refresh was not broken off");
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_refreshed_only_by_progress() {
    let ((store, tier), blob) = (tier(), bytes(10));
    let claim = claimed(&layer(&tier, &blob)).await;
    sleep(10 * LEASE).await;
    assert_eq!(store.count(Operation::Put), 1);
    claim.progressed(5);
    claim.progressed(2);
    sleep(LEASE).await;
    assert_eq!(store.count(Operation::Put), 2);
    let written = tier.store().get(&object(&blob, "claim-0")).await.unwrap().bytes().await.unwrap();
    let written: serde_json::Value = serde_json::from_slice(&written).unwrap();
    assert_eq!(written["progress"], 7);
    drop(claim);
}

#[tokio::test(start_paused = true)]
async fn a_claim_outlives_a_refresh_that_fails_or_hangs() {
    for fault in [Fault::Fail, Fault::Hang] {
        let ((store, tier), blob) = (tier(), bytes(10));
        let layer = layer(&tier, &blob);
        let claim = claimed(&layer).await;
        store.script(Operation::Put, [Some(fault)]);
        let mut watch = Watch::default();
        for _ in 0..20 {
            claim.progressed(1);
            sleep(PAUSE).await;
            assert!(!watch.has_expired(&layer.look().await.unwrap().claim.unwrap()), "{fault:?}");
        }
        assert!(store.count(Operation::Put) > 3, "it is refreshed again");
    }
}
