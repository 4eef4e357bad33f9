//! Published indexes: made for a list of images, listed and removed.

use parking_lot::Mutex;
use tarpon_engine::{
    ErrorKind, ImageRequest, IndexSignature, SyncEntry, SyncOptions, SyncState, Synced, Unwanted, index_destination,
    known_indexes, remove_indexes,
};
use tarpon_testkit::registry::Referrers;

use crate::fixture::{LISTS, Repos, start};
use crate::signed::{demand_signatures, key, sign};

pub(crate) const OPTIONS: SyncOptions<'_> = SyncOptions { jobs: 4, predict: true, key: None };

async fn sync(repos: &Repos, store: &str, requests: Vec<ImageRequest>) -> Vec<Synced> {
    let told = Mutex::new(0);
    let count = requests.len();
    let done = repos.engine(store).sync_indexes(requests, OPTIONS, &|_| *told.lock() += 1).await;
    assert_eq!(*told.lock(), count);
    done
}

pub(crate) fn states(synced: &[Synced]) -> Vec<&'static str> {
    let state = |one: &Synced| match one.state {
        SyncState::Indexed { .. } => "indexed",
        SyncState::Known { .. } => "known",
        SyncState::Unneeded => "unneeded",
        SyncState::Failed { .. } => "failed",
    };
    synced.iter().map(state).collect()
}

#[tokio::test]
async fn a_list_is_indexed_once_and_what_failed_is_made_up_for() {
    for referrers in [LISTS, Referrers::Unknown] {
        let repos = Repos::with(referrers).await;
        let requests = |names: &[&str]| names.iter().map(|name| repos.request(name)).collect::<Vec<_>>();
        let first = sync(&repos, "first", requests(&["app:v1", "app:none", "app:v1"])).await;
        assert_eq!(states(&first), ["indexed", "failed", "known"], "the same image is indexed once: {first:?}");
        // Another host, or a run after an interruption.
        let before = repos.requests().0;
        let second = sync(&repos, "second", requests(&["app:v0", "app:v1"])).await;
        assert_eq!(states(&second), ["indexed", "known"]);
        let third = sync(&repos, "third", requests(&["app:v0", "app:v1"])).await;
        assert_eq!(states(&third), ["known", "known"]);
        assert!(repos.requests().0 - before < 12, "of known images only the manifests are requested");
        for name in ["app:v0", "app:v1"] {
            assert_eq!(repos.prepared(name, &repos.request(name)).await.0, "index-trusted");
        }
    }
}

#[tokio::test]
async fn a_layout_gets_the_indexes_of_all_images_at_once() {
    let repos = Repos::new().await;
    let request = |name| ImageRequest { index_repos: vec![repos.layout_repo()], ..repos.request(name) };
    let synced = sync(&repos, "maker", ["app:v0", "app:v1"].map(request).into()).await;
    assert_eq!(states(&synced), ["indexed", "indexed"]);
    assert_eq!(states(&sync(&repos, "again", ["app:v0", "app:v1"].map(request).into()).await), ["known", "known"]);
}

#[tokio::test]
async fn an_index_that_the_key_did_not_sign_is_made_again() {
    let (repos, key) = (Repos::new().await, key());
    demand_signatures(&repos, &key);
    let request = repos.request("app:v1");
    repos.publish(&request, &[]).await;
    let engine = repos.engine("sync");
    let options = SyncOptions { key: Some(&key), predict: false, ..OPTIONS };
    for state in ["indexed", "known"] {
        let synced = engine.sync_indexes(vec![request.clone()], options, &|_| ()).await;
        assert_eq!(states(&synced), [state], "anybody may have made it: {synced:?}");
        assert_eq!(known_indexes(&request).await.unwrap().indexes[0].signature, IndexSignature::ByPolicy);
    }
    assert_eq!(repos.prepared("store", &request).await.0, "index-signed");
}

#[tokio::test]
async fn the_tags_of_a_repository_are_selected_by_a_pattern() {
    let repos = Repos::new().await;
    let request = repos.request("app:v1");
    let [entry] = SyncEntry::list(&repos.images.name("app:v?")).unwrap().try_into().unwrap();
    let names = entry.images(&request.access).await.unwrap();
    assert_eq!(names, ["app:v0", "app:v1"].map(|name| repos.images.name(name)));
    let [none] = SyncEntry::list(&repos.images.name("app:x*")).unwrap().try_into().unwrap();
    assert_eq!(none.images(&request.access).await.unwrap_err().kind, ErrorKind::NotFound);
}

#[tokio::test]
async fn published_indexes_are_listed_and_removed() {
    for referrers in [LISTS, Referrers::Unknown] {
        let repos = Repos::with(referrers).await;
        let request = repos.request("app:v1");
        assert!(known_indexes(&request).await.unwrap().indexes.is_empty());
        let old = repos.publish(&request, &[]).await;
        let new = repos.publish(&request, &[start()]).await;
        sign(&repos, &key(), &request, &new.index_digest).await;
        let known = known_indexes(&request).await.unwrap();
        assert_eq!(known.problems, [""; 0]);
        let listed: Vec<_> = known.indexes.iter().map(|index| index.index_digest).collect();
        assert_eq!(listed, [new.index_digest, old.index_digest], "the newest first");
        let index = &known.indexes[0];
        assert_eq!((&index.place, index.signature), (&repos.place(), IndexSignature::ByOther));
        assert_eq!((index.index_size, index.packs[0].size), (new.index_size, new.boots[0].size));

        let removed = remove_indexes(&request, Unwanted::Old).await.unwrap();
        assert_eq!(removed.removed, [old.index_digest]);
        let error = remove_indexes(&request, Unwanted::One(old.index_digest)).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound);
        assert_eq!(repos.prepared("lazy", &request).await.0, "index-trusted");
        let removed = remove_indexes(&request, Unwanted::All).await.unwrap();
        assert_eq!(removed.removed, [new.index_digest]);
        assert!(known_indexes(&request).await.unwrap().indexes.is_empty());
        assert_eq!(repos.prepared("streamed", &request).await, ("diffID-verified".to_owned(), Vec::new()));
    }
}

#[tokio::test]
async fn indexes_of_an_image_that_is_gone_are_removed_by_its_digest() {
    let repos = Repos::new().await;
    let made = repos.publish(&repos.request("app:v1"), &[]).await;
    let gone = repos.request(&format!("app@{}", repos.v1.digest()));
    repos.images.registry().model().remove_manifest(&repos.v1.digest()).await;
    assert_eq!(known_indexes(&gone).await.unwrap().indexes[0].index_digest, made.index_digest);
    assert_eq!(remove_indexes(&gone, Unwanted::All).await.unwrap().removed, [made.index_digest]);
    assert_eq!(known_indexes(&repos.request("app:v1")).await.unwrap_err().kind, ErrorKind::NotFound);
}

#[tokio::test]
async fn a_layout_keeps_what_other_indexes_need() {
    let repos = Repos::new().await;
    let request = |name| ImageRequest { index_repos: vec![repos.layout_repo()], ..repos.request(name) };
    repos.publish(&request("app:v0"), &[]).await;
    let blobs = || std::fs::read_dir(repos.layout().join("blobs/sha256")).unwrap().count();
    let before = blobs();
    repos.publish(&request("app:v1"), &[start()]).await;
    assert!(blobs() > before);
    remove_indexes(&request("app:v1"), Unwanted::All).await.unwrap();
    assert_eq!(blobs(), before);
    assert_eq!(repos.prepared("store", &request("app:v0")).await.0, "index-trusted");
}

#[tokio::test]
async fn a_registry_that_does_not_delete_keeps_everything() {
    let repos = Repos::new().await;
    let request = repos.request("app:v1");
    repos.publish(&request, &[]).await;
    repos.indexes.registry().model().refuse_writes();
    let error = remove_indexes(&request, Unwanted::All).await.unwrap_err();
    assert!(error.kind == ErrorKind::Denied && error.hint.is_some_and(|hint| hint.contains("may not allow it")));
    assert_eq!(repos.prepared("store", &request).await.0, "index-trusted");
}

#[tokio::test]
async fn an_image_in_no_registry_has_no_place_in_one() {
    let repos = Repos::new().await;
    let request = ImageRequest { index_repos: vec![repos.repo()], ..crate::support::request("oci:/an/image:v1") };
    assert_eq!(index_destination(&request).unwrap_err().kind, ErrorKind::Refused);
}
