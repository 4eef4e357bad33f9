//! What a host sees of a layer: listings, indexes, uses.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt as _};
use tarpon_oci::{Blob, Digest, Verified};

use super::faulty::{Fault, Operation};
use super::{bytes, layer, object, over, tier};
use crate::{ErrorKind, LayerState, SharedLayer, Tier};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// An object of the layer with this blob.
fn listed(blob: &Bytes, name: &str, size: u64) -> ObjectMeta {
    let (location, last_modified) = (object(blob, name), SystemTime::now().into());
    ObjectMeta { location, last_modified, size, e_tag: None, version: None }
}

fn index_name(bytes: &[u8]) -> String {
    format!("index-{}", Digest::of(bytes).hex())
}

/// What a layer of ten bytes is with these objects.
async fn state_of(objects: &[(&str, u64)]) -> LayerState {
    let ((store, tier), blob) = (tier(), bytes(10));
    store.lists(objects.iter().map(|(name, size)| listed(&blob, name, *size)).collect());
    layer(&tier, &blob).look().await.unwrap()
}

/// The number of the claim that a host sees.
fn claim(state: &LayerState) -> Option<u32> {
    state.claim.as_ref().map(crate::claim::SeenClaim::number)
}

#[tokio::test]
async fn an_empty_tier_has_nothing_of_a_layer() {
    let ((store, tier), blob) = (tier(), bytes(10));
    let state = layer(&tier, &blob).look().await.unwrap();
    assert_eq!((state.has_blob, state.indexes, state.claim), (false, Vec::new(), None));
    assert_eq!((store.count(Operation::List), tier.account().requests), (1, 1));
}

#[tokio::test]
async fn a_host_sees_blob_indexes_and_the_last_claim() {
    let (one, other) = (index_name(b"one"), index_name(b"other"));
    let state =
        state_of(&[("blob", 10), ("claim-3", 1), ("claim-12", 1), ("claim-9", 1), (&one, 100), (&other, 200)]).await;
    let index = |bytes: &[u8], size| Blob { digest: Digest::of(bytes), size };
    assert_eq!((state.has_blob, claim(&state)), (true, Some(12)));
    assert_eq!(state.indexes, [index(b"one", 100), index(b"other", 200)]);
}

#[tokio::test]
async fn a_blob_of_another_size_is_not_there() {
    for size in [0, 9, 11, u64::MAX] {
        assert!(!state_of(&[("blob", size)]).await.has_blob, "{size}");
    }
}

#[tokio::test]
async fn objects_with_odd_names_are_not_seen() {
    let upper = index_name(b"one").to_uppercase();
    let names = [
        "",
        "Blob",
        "blob-",
        "blob-1",
        "deeper/blob",
        "index-",
        "index-12",
        "index-/x",
        &upper,
        "claim-",
        "claim--1",
        "claim-+1",
        "claim-01",
        "claim-1.5",
        "claim-1-2",
        "claim-4294967296",
        "claim-18446744073709551615",
        "claim-99999999999999999999999999999999",
        "deeper/claim-7",
        "used/blob",
        "-",
        "é",
    ];
    for name in names {
        let state = state_of(&[(name, 10)]).await;
        assert_eq!((state.has_blob, &*state.indexes, claim(&state)), (false, &[][..], None), "{name}");
    }
    let (deeper, mine) = (format!("deeper/{}", index_name(b"one")), "claim-2");
    let state = state_of(&[(&deeper, 10), ("claim-18446744073709551615", 1), (mine, 1)]).await;
    assert_eq!((&*state.indexes, claim(&state)), (&[][..], Some(2)));
}

#[tokio::test]
async fn after_the_largest_claim_there_is_a_next_one() {
    let ((_store, tier), blob) = (tier(), bytes(10));
    let layer = layer(&tier, &blob);
    tier.store().put(&object(&blob, "claim-4294967295"), "x".into()).await.unwrap();
    let state = layer.look().await.unwrap();
    assert_eq!(claim(&state), Some(u32::MAX));
    let claimed = layer.claim(&state).await.unwrap().unwrap();
    let state = layer.look().await.unwrap();
    assert_eq!(claim(&state), None, "the expired one is gone");
    let other = layer.claim(&state).await.unwrap();
    assert!(other.is_some(), "two owners cost a transfer");
    claimed.release().await;
}

#[tokio::test]
async fn an_index_that_claims_to_be_larger_than_any_is_not_seen() {
    let (large, largest) = (index_name(b"one"), index_name(b"other"));
    let state = state_of(&[(&large, (64 << 20) + 1), (&largest, 64 << 20)]).await;
    assert_eq!(state.indexes.iter().map(|index| index.size).collect::<Vec<_>>(), [64 << 20]);
}

#[tokio::test]
async fn only_the_first_objects_of_a_listing_are_received() {
    let ((store, tier), blob) = (tier(), bytes(10));
    let mut objects: Vec<_> =
        (0..100_000_u32).map(|number| listed(&blob, &index_name(&number.to_le_bytes()), 10)).collect();
    objects.push(listed(&blob, "blob", 10));
    store.lists(objects);
    let state = layer(&tier, &blob).look().await.unwrap();
    assert_eq!((state.indexes.len(), state.has_blob), (64, false));
    assert!(!state.is_complete);
}

#[tokio::test]
async fn a_layer_with_too_many_objects_is_not_complete() {
    for (count, is_complete) in [(0, true), (63, true), (64, false), (65, false)] {
        let names: Vec<_> = (0..count).map(|number| format!("claim-{number}")).collect();
        let objects: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
        assert_eq!(state_of(&objects).await.is_complete, is_complete, "{count}");
    }
}

#[tokio::test]
async fn objects_of_a_layer_whose_digest_begins_alike_are_not_seen() {
    let ((store, tier), blob) = (tier(), bytes(10));
    let path = format!("team/v1/layers/{}0/blob", Digest::of(&blob).hex());
    store.lists(vec![ObjectMeta { location: Path::from(path), ..listed(&blob, "x", 10) }]);
    assert!(!layer(&tier, &blob).look().await.unwrap().has_blob);
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_fails_or_hangs_is_an_error_and_the_tier_rests() {
    for fault in [Fault::Fail, Fault::Refuse, Fault::Hang] {
        let ((store, tier), blob) = (tier(), bytes(10));
        store.always(Operation::List, fault);
        let error = layer(&tier, &blob).look().await.unwrap_err();
        assert_eq!(error.kind() == ErrorKind::Denied, fault == Fault::Refuse);
        assert_eq!(tier.is_resting(), Some(error.to_string()));
    }
}

#[tokio::test]
async fn a_file_whose_name_no_tier_writes_does_not_let_the_whole_tier_rest() {
    let (folder, blob) = (tempfile::tempdir().unwrap(), bytes(10));
    let tier = over(Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap()));
    let files = folder.path().join(object(&blob, "").as_ref());
    std::fs::create_dir_all(&files).unwrap();
    std::fs::write(files.join(std::ffi::OsStr::from_bytes(b"\xff")), "x").unwrap();
    assert!(layer(&tier, &blob).look().await.is_err());
    assert_eq!(tier.is_resting(), None);
    assert!(layer(&tier, &bytes(11)).look().await.is_ok());
}

/// Keeps an index, and returns its digest and size.
async fn keep(layer: &SharedLayer, bytes: &'static [u8]) -> Blob {
    let index = Verified::seal(Bytes::from_static(bytes));
    layer.keep_index(&index).await.unwrap();
    Blob { digest: *index.digest(), size: bytes.len() as u64 }
}

#[tokio::test]
async fn an_index_is_returned_as_it_was_kept() {
    let ((_store, tier), blob) = (tier(), bytes(10));
    let layer = layer(&tier, &blob);
    let index = keep(&layer, b"where its files are").await;
    assert_eq!(keep(&layer, b"where its files are").await, index, "two hosts may keep the same");
    assert_eq!(layer.look().await.unwrap().indexes, [index]);
    let read = layer.index(index).await.unwrap();
    assert_eq!((read.digest(), &read[..]), (&index.digest, &b"where its files are"[..]));
    assert_eq!(tier.account().bytes, index.size);
}

#[tokio::test(start_paused = true)]
async fn an_index_with_wrong_bytes_is_an_error_and_is_replaced_by_the_next_host_that_has_it() {
    let ((store, tier), blob) = (tier(), bytes(10));
    let layer = layer(&tier, &blob);
    let index = keep(&layer, b"right").await;
    let path = object(&blob, &index_name(b"right"));
    for wrong in ["wrong", "short", "", "right and more"] {
        tier.store().put(&path, wrong.into()).await.unwrap();
        let error = layer.index(index).await.unwrap_err();
        assert!(error.to_string().starts_with("cannot read an index in the tier: digest mismatch"), "{error}");
    }
    for fault in [Fault::Fail, Fault::Break(2), Fault::End(2), Fault::Stall(2), Fault::Spin(2), Fault::Hang] {
        store.script(Operation::Get, [Some(fault)]);
        assert!(layer.index(index).await.is_err(), "{fault:?}");
    }
    keep(&layer, b"right").await;
    assert!(layer.index(index).await.is_ok());
}

#[tokio::test]
async fn of_an_index_that_is_longer_than_it_was_listed_little_is_received() {
    let (folder, blob) = (tempfile::tempdir().unwrap(), bytes(10));
    let tier = over(Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap()));
    let layer = layer(&tier, &blob);
    let index = keep(&layer, b"right").await;
    let path = folder.path().join(object(&blob, &index_name(b"right")).as_ref());
    std::fs::write(path, [b"right", &bytes(10 << 20)[..]].concat()).unwrap();
    assert!(layer.index(index).await.is_err());
    assert!(tier.account().bytes < 1 << 20, "{:?}", tier.account());
}

/// Whether an index of this size arrives whose pieces of a MiB take this long each.
async fn arrives(mebibytes: usize, each: Duration) -> bool {
    let ((store, tier), blob) = (tier(), bytes(10));
    let (layer, index) = (layer(&tier, &blob), Verified::seal(bytes(mebibytes << 20)));
    layer.keep_index(&index).await.unwrap();
    store.always(Operation::Get, Fault::Trickle(1 << 20, each));
    layer.index(Blob { digest: *index.digest(), size: index.len() as u64 }).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_large_index_has_more_time_to_arrive() {
    assert!(arrives(20, Duration::from_millis(1_200)).await, "24 s of 25 s");
    assert!(!arrives(20, Duration::from_millis(1_300)).await, "26 s");
    assert!(!arrives(2, Duration::from_millis(2_100)).await, "silent for too long");
}

#[tokio::test]
async fn an_index_that_no_host_would_read_is_not_kept() {
    let ((store, tier), blob) = (tier(), bytes(10));
    let index = Verified::seal(bytes((64 << 20) + 1));
    assert!(layer(&tier, &blob).keep_index(&index).await.is_err());
    assert_eq!((store.count(Operation::Put), tier.is_resting()), (0, None));
}

/// How often a host writes a use of a layer whose use was noted so long ago.
async fn notes(age: Option<Duration>) -> usize {
    let ((store, tier), blob) = (tier(), bytes(10));
    let used =
        age.map(|age| ObjectMeta { last_modified: (SystemTime::now() - age).into(), ..listed(&blob, "used", 0) });
    store.lists(used.into_iter().collect());
    let layer = layer(&tier, &blob);
    let state = layer.look().await.unwrap();
    layer.note_use(&state).await;
    store.names(Operation::Put).iter().filter(|name| *name == "used").count()
}

#[tokio::test]
async fn a_use_is_noted_once_a_day() {
    assert_eq!(notes(None).await, 1);
    assert_eq!(notes(Some(Duration::from_secs(60))).await, 0);
    assert_eq!(notes(Some(DAY - Duration::from_secs(60))).await, 0);
    assert_eq!(notes(Some(DAY + Duration::from_secs(60))).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_use_that_cannot_be_noted_is_no_error() {
    let ((store, tier), blob) = (tier(), bytes(10));
    let layer = layer(&tier, &blob);
    let state = layer.look().await.unwrap();
    store.always(Operation::Put, Fault::Hang);
    layer.note_use(&state).await;
    assert!(!tier.may_write());
    assert!(layer.claim(&state).await.is_err());
}

#[tokio::test]
async fn layers_are_below_the_prefix_of_the_tier() {
    let ((store, _), blob) = (tier(), bytes(10));
    for (location, path) in [("s3://bucket/a/b", "a/b/v1/layers/"), ("s3://bucket", "v1/layers/")] {
        let tier = Tier::over(location.parse().unwrap(), store.clone());
        keep(&layer(&tier, &blob), b"x").await;
        let path = Path::from(format!("{path}{}/{}", Digest::of(&blob).hex(), index_name(b"x")));
        assert!(store.get(&path).await.is_ok(), "{path}");
    }
}
