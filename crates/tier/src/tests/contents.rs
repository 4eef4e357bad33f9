//! Usage, removal and verification.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt as _};
use parking_lot::Mutex;
use tarpon_oci::Digest;

use super::faulty::{Fault, FaultyStore, Operation};
use super::{bytes, layer, object, over, tier};
use crate::{ErrorKind, Leftovers, Tier, TierLocation, TierOptions, Usage, Verdict};

const DAY: Duration = Duration::from_secs(24 * 3600);

async fn put(tier: &Tier, path: &Path, bytes: impl Into<Bytes>) {
    tier.store().put(path, bytes.into().into()).await.unwrap();
}

fn index_of(bytes: &[u8]) -> String {
    format!("index-{}", Digest::of(bytes).hex())
}

/// An object with this path below the tier's folder, used this long ago.
fn listed(path: &str, size: u64, age: Duration) -> ObjectMeta {
    ObjectMeta {
        location: Path::parse(format!("team/v1/layers/{path}")).unwrap(),
        last_modified: (SystemTime::now() - age).into(),
        size,
        e_tag: None,
        version: None,
    }
}

fn hex(blob: &[u8]) -> String {
    Digest::of(blob).hex()
}

#[tokio::test]
async fn usage_counts_blobs_and_indexes_by_layer_with_their_last_use() {
    let (store, tier) = tier();
    let (one, other) = (hex(b"one"), hex(b"other"));
    store.lists(vec![
        listed(&format!("{one}/blob"), 100, 9 * DAY),
        listed(&format!("{one}/index-{other}"), 7, 8 * DAY),
        listed(&format!("{one}/index-{one}"), 5, 9 * DAY),
        listed(&format!("{one}/used"), 0, 3 * DAY),
        listed(&format!("{one}/claim-3"), 40, 5 * DAY),
        listed(&format!("{other}/index-{one}"), 3, DAY),
    ]);
    let usage = tier.usage().await.unwrap();
    assert_eq!(usage.bytes(), 115);
    let of = |hex: &str| usage.layers.iter().find(|layer| layer.layer.hex() == hex).unwrap();
    let found = of(&one);
    assert_eq!((found.blob_bytes, found.index_bytes, found.bytes()), (Some(100), 12, 112));
    let age = found.last_use.elapsed().unwrap();
    assert!((3 * DAY..4 * DAY).contains(&age), "{age:?}");
    assert_eq!(found.verifiable().collect::<Vec<_>>(), ["blob", &format!("index-{other}"), &format!("index-{one}")]);
    let found = of(&other);
    assert_eq!((found.blob_bytes, found.index_bytes), (None, 3));
}

#[tokio::test]
async fn what_no_tier_writes_is_neither_counted_nor_removed() {
    let (store, tier) = tier();
    let layer = hex(b"layer");
    store.lists(vec![
        listed(&format!("{layer}/deeper/blob"), 100, 90 * DAY),
        listed(&format!("{}/blob", layer.to_uppercase()), 100, 90 * DAY),
        listed("short/blob", 100, 90 * DAY),
        listed(&layer, 100, 90 * DAY),
        listed(&format!("{layer}/notes"), 100, 90 * DAY),
        listed(&format!("{layer}/index-1"), 100, 90 * DAY),
        listed(&format!("{layer}/index-{}", layer.to_uppercase()), 100, 90 * DAY),
        listed(&format!("{layer}/claim-01"), 100, 90 * DAY),
        listed(&format!("{layer}/claim-4294967296"), 100, 90 * DAY),
        listed(&format!("{layer}/blob-1"), 100, 90 * DAY),
        ObjectMeta { location: Path::from("elsewhere/blob"), ..listed("x", 1, DAY) },
        ObjectMeta { location: Path::from(format!("team/v1/layersX/{layer}/blob")), ..listed("x", 1, DAY) },
    ]);
    let usage = tier.usage().await.unwrap();
    assert_eq!(usage.layers, []);
    tier.collect_garbage(&usage, DAY, false).await.unwrap();
    assert_eq!(store.count(Operation::Delete), 0);
}

#[tokio::test]
async fn sizes_of_a_hostile_listing_do_not_overflow() {
    let (store, tier) = tier();
    let (one, other) = (hex(b"one"), hex(b"other"));
    let (a, b) = (index_of(b"a"), index_of(b"b"));
    let all = [("blob", &one), (&a, &one), (&b, &one), ("blob", &other)];
    store.lists(all.map(|(name, layer)| listed(&format!("{layer}/{name}"), u64::MAX, DAY)).to_vec());
    let usage = tier.usage().await.unwrap();
    assert_eq!((usage.bytes(), usage.layers.len()), (u64::MAX, 2));
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_fails_or_hangs_is_an_error() {
    let (store, tier) = tier();
    for (fault, cause) in [(Fault::Fail, "the disk is on fire"), (Fault::Hang, "it does not answer in time")] {
        store.always(Operation::List, fault);
        assert_eq!(tier.usage().await.unwrap_err().to_string(), format!("cannot list the tier: {cause}"));
    }
}

/// Layers that were last used 40 and 20 days ago, and one that will be used tomorrow.
async fn of_three_ages() -> (Arc<FaultyStore>, Arc<Tier>, Usage) {
    let (store, tier) = tier();
    let index = index_of(b"x");
    let objects = ["blob", "claim-0", &*index, "used"];
    let all = [(b"old", 40 * DAY), (b"new", 20 * DAY)]
        .into_iter()
        .flat_map(|(layer, age)| objects.map(|name| (format!("{}/{name}", hex(layer)), age)));
    let all: Vec<_> = all.collect();
    for (path, _) in &all {
        put(&tier, &Path::from(format!("team/v1/layers/{path}")), "12345").await;
    }
    let mut listing: Vec<_> = all.iter().map(|(path, age)| listed(path, 5, *age)).collect();
    let tomorrow = (SystemTime::now() + DAY).into();
    let path = format!("{}/blob", hex(b"tomorrow"));
    listing.push(ObjectMeta { last_modified: tomorrow, ..listed(&path, 5, DAY) });
    store.lists(listing);
    let usage = tier.usage().await.unwrap();
    (store, tier, usage)
}

#[tokio::test]
async fn only_layers_that_were_not_used_are_removed_indexes_first() {
    let (store, tier, usage) = of_three_ages().await;
    let removed = tier.collect_garbage(&usage, 30 * DAY, false).await.unwrap();
    assert_eq!(
        removed.iter().map(|layer| (layer.layer, layer.bytes())).collect::<Vec<_>>(),
        [(Digest::of(b"old"), 10)]
    );
    assert_eq!(store.names(Operation::Delete), [&*index_of(b"x"), "blob", "claim-0", "used"]);
    let exists = async |layer: &[u8]| {
        let path = Path::from(format!("team/v1/layers/{}/blob", hex(layer)));
        tier.store().get(&path).await.is_ok()
    };
    assert!(!exists(b"old").await && exists(b"new").await);
}

#[tokio::test]
async fn an_hour_is_added_to_the_age_for_clocks_that_differ() {
    let (_store, tier, usage) = of_three_ages().await;
    for (unused, count) in [(Duration::ZERO, 2), (20 * DAY, 1), (20 * DAY - DAY / 12, 2), (Duration::MAX, 0)] {
        let removed = tier.collect_garbage(&usage, unused, true).await.unwrap();
        assert_eq!(removed.len(), count, "{unused:?}");
    }
}

#[tokio::test]
async fn a_trial_removes_nothing() {
    let (store, tier, usage) = of_three_ages().await;
    assert_eq!(tier.collect_garbage(&usage, 30 * DAY, true).await.unwrap().len(), 1);
    assert_eq!(store.count(Operation::Delete), 0);
}

#[tokio::test]
async fn what_another_host_removes_meanwhile_is_no_error() {
    let (store, tier, usage) = of_three_ages().await;
    tier.collect_garbage(&usage, 30 * DAY, false).await.unwrap();
    assert_eq!(tier.collect_garbage(&usage, 30 * DAY, false).await.unwrap().len(), 1);
    store.always(Operation::Delete, Fault::Refuse);
    let error = tier.collect_garbage(&usage, 30 * DAY, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert_eq!(error.to_string(), "cannot remove layers from the tier: no key");
}

/// A tier with a layer whose blob and one of its indexes are right.
async fn verifiable() -> (Arc<FaultyStore>, Arc<Tier>, Usage) {
    let (store, tier) = tier();
    let blob = bytes(100_000);
    put(&tier, &object(&blob, "blob"), blob.clone()).await;
    put(&tier, &object(&blob, &index_of(b"right")), "right").await;
    put(&tier, &object(&blob, &index_of(b"wrong")), "other").await;
    put(&tier, &object(&blob, "index-odd"), "odd").await;
    put(&tier, &object(&Bytes::from_static(b"x"), "blob"), "y").await;
    put(&tier, &object(&blob, "used"), "").await;
    let usage = tier.usage().await.unwrap();
    (store, tier, usage)
}

/// The verdict about each object of a tier, and the bytes that were received.
async fn verdicts(tier: &Arc<Tier>, usage: &Usage) -> (Vec<(String, Verdict)>, u64) {
    let (mut verdicts, received) = (Vec::new(), Mutex::new(0));
    for layer in &usage.layers {
        for name in layer.verifiable() {
            let verdict = tier.verify(layer, name, |bytes| *received.lock() += bytes).await.unwrap();
            verdicts.push((name.to_owned(), verdict));
        }
    }
    let received = *received.lock();
    (verdicts, received)
}

fn with(verdicts: &[(String, Verdict)], verdict: Verdict) -> Vec<&str> {
    let mut names: Vec<&str> =
        verdicts.iter().filter(|(_, given)| *given == verdict).map(|(name, _)| &**name).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn objects_whose_bytes_differ_from_their_names_are_wrong_and_can_be_removed() {
    let (_store, tier, usage) = verifiable().await;
    let (found, received) = verdicts(&tier, &usage).await;
    assert_eq!(with(&found, Verdict::Right), ["blob", &index_of(b"right")]);
    let mut wrong = vec!["blob".to_owned(), index_of(b"wrong")];
    wrong.sort_unstable();
    assert_eq!(with(&found, Verdict::Wrong), wrong);
    assert_eq!((found.len(), received), (4, 100_000 + 5 + 5 + 1), "one with an odd name is no object of a tier");

    for layer in &usage.layers {
        for name in layer.verifiable().filter(|name| wrong.contains(&(*name).to_owned()) && layer.bytes() != 100_010) {
            tier.remove_object(layer, name).await.unwrap();
        }
    }
    let (found, _) = verdicts(&tier, &usage).await;
    assert_eq!(with(&found, Verdict::Gone), ["blob"]);
}

#[tokio::test]
async fn a_layer_whose_wrong_blob_was_removed_can_be_claimed_again() {
    let (_store, tier) = tier();
    let blob = bytes(10);
    let index = index_of(b"x");
    for (name, bytes) in [("blob", "wrong"), ("claim-0", "x"), ("claim-1", "x"), (&*index, "x")] {
        put(&tier, &object(&blob, name), bytes).await;
    }
    let usage = tier.usage().await.unwrap();
    tier.remove_object(&usage.layers[0], "blob").await.unwrap();
    let usage = tier.usage().await.unwrap();
    assert_eq!(usage.layers[0].verifiable().collect::<Vec<_>>(), [&*index]);
    let state = layer(&tier, &blob).look().await.unwrap();
    assert_eq!(state.claim, None);
}

#[tokio::test(start_paused = true)]
async fn a_blob_that_becomes_shorter_or_longer_while_it_is_verified_is_wrong() {
    let (store, tier, usage) = verifiable().await;
    let layer = usage.layers.iter().find(|layer| layer.bytes() > 100_000).unwrap();
    for (fault, verdict) in [
        (Fault::End(5), Verdict::Wrong),
        (Fault::Spin(5), Verdict::Wrong),
        // What follows the object is not read.
        (Fault::Append(b"more"), Verdict::Right),
    ] {
        store.script(Operation::Get, [Some(fault)]);
        assert_eq!(tier.verify(layer, "blob", |_| ()).await.unwrap(), verdict, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_is_not_called_wrong() {
    let (store, tier, usage) = verifiable().await;
    let layer = usage.layers.iter().find(|layer| layer.bytes() > 100_000).unwrap();
    for fault in [Fault::Fail, Fault::Hang, Fault::Break(3), Fault::Stall(3)] {
        store.script(Operation::Get, [Some(fault)]);
        assert!(tier.verify(layer, "blob", |_| ()).await.is_err(), "{fault:?}");
    }
}

/// A tier in a folder with files of these names and ages, of five bytes each.
fn folder(files: &[(&str, Duration)]) -> (tempfile::TempDir, Arc<Tier>, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let layer = folder.path().join("v1/layers").join(hex(b"layer"));
    std::fs::create_dir_all(&layer).unwrap();
    for (name, age) in files {
        let file = std::fs::File::create(layer.join(name)).unwrap();
        std::io::Write::write_all(&mut &file, b"12345").unwrap();
        file.set_modified(SystemTime::now() - *age).unwrap();
    }
    let location = TierLocation::of_folder(folder.path().to_owned()).unwrap();
    let tier = Tier::open(&location, &TierOptions::default()).unwrap();
    (folder, tier, layer)
}

#[tokio::test]
async fn unfinished_copies_in_a_folder_are_removed_when_they_are_old() {
    let old = 40 * DAY;
    let index = format!("{}#12", index_of(b""));
    let removed = ["blob#1", &*index, "claim-7#1", "used#3"];
    let kept = [("blob", old), ("blob#2", DAY), ("blob#", old), ("blob#x", old), ("notes#1", old)];
    let files: Vec<_> = removed.iter().map(|name| (*name, old)).chain(kept).collect();
    let (_folder, tier, layer) = folder(&files);
    let leftovers = Leftovers { files: 4, bytes: 20 };
    assert_eq!(tier.collect_leftovers(30 * DAY, true).await.unwrap(), leftovers);
    assert_eq!(tier.collect_leftovers(30 * DAY, false).await.unwrap(), leftovers);
    assert_eq!(tier.collect_leftovers(30 * DAY, false).await.unwrap(), Leftovers::default());
    for (name, _) in kept {
        assert!(layer.join(name).exists(), "{name}");
    }
}

#[tokio::test]
async fn the_folder_of_a_removed_layer_is_removed_too() {
    let (_folder, tier, layer) = folder(&[("blob", 40 * DAY), ("used", 40 * DAY)]);
    let kept = layer.parent().unwrap().join(hex(b"other"));
    std::fs::create_dir(&kept).unwrap();
    std::fs::write(kept.join("blob"), "12345").unwrap();
    let usage = tier.usage().await.unwrap();
    for _ in 0..2 {
        // Another host may have removed it meanwhile.
        assert_eq!(tier.collect_garbage(&usage, 30 * DAY, false).await.unwrap().len(), 1);
    }
    tier.collect_leftovers(30 * DAY, true).await.unwrap();
    assert!(layer.exists() && !layer.join("blob").exists());
    tier.collect_leftovers(30 * DAY, false).await.unwrap();
    assert!(!layer.exists() && kept.join("blob").exists());
}

#[tokio::test]
async fn unfinished_copies_are_not_looked_for_behind_links_or_in_a_bucket() {
    let (elsewhere, _, _) = folder(&[("blob#1", 40 * DAY)]);
    let (_folder, tier, layer) = folder(&[]);
    let behind = elsewhere.path().join("v1/layers").join(hex(b"layer"));
    std::os::unix::fs::symlink(&behind, layer.parent().unwrap().join(hex(b"link"))).unwrap();
    std::os::unix::fs::symlink(behind.join("blob#1"), layer.join("blob#1")).unwrap();
    assert_eq!(tier.collect_leftovers(DAY, false).await.unwrap(), Leftovers::default());
    let bucket = over(Arc::new(InMemory::new()));
    assert_eq!(bucket.collect_leftovers(DAY, false).await.unwrap(), Leftovers::default());
}

#[tokio::test]
async fn a_folder_without_layers_is_an_empty_tier() {
    let folder = tempfile::tempdir().unwrap();
    let location = TierLocation::of_folder(folder.path().to_owned()).unwrap();
    let tier = Tier::open(&location, &TierOptions::default()).unwrap();
    assert_eq!(tier.usage().await.unwrap().layers, []);
    assert_eq!(tier.collect_leftovers(DAY, false).await.unwrap(), Leftovers::default());
}
