//! Which index is found, at which cost, and what happens without one.

use std::sync::Arc;

use serde_json::json;
use tarpon_engine::oci::IndexLock;
use tarpon_engine::oci::media_type::{OCI_INDEX, OCI_MANIFEST};
use tarpon_engine::{ImageRequest, IndexChoice, index_destination};
use tarpon_images::access;
use tarpon_testkit::registry::Referrers;
use tokio::sync::Barrier;

use crate::fixture::{LISTS, Repos};

#[tokio::test]
async fn a_second_host_starts_lazily_by_an_index_that_the_images_registry_does_not_have() {
    let repos = Repos::new().await;
    let request = repos.request("app:v1");
    let made = repos.publish(&request, &[]).await;
    let (images, indexes) = repos.requests();
    let (state, notes) = repos.prepared("second", &request).await;
    assert_eq!(state, "index-trusted");
    let (index, place) = (made.index_digest, repos.place());
    assert_eq!(notes, [format!("the index {index} of {place} is used, because the index repository lists it")]);
    let after = repos.requests();
    assert_eq!((after.0 - images, after.1 - indexes), (2, 4), "manifest and config; list, tag, index and its blob");
}

#[tokio::test]
async fn the_list_may_be_kept_under_a_tag() {
    let repos = Repos::with(Referrers::Unknown).await;
    let request = repos.request("app:v1");
    repos.publish(&request, &[]).await;
    assert_eq!(repos.prepared("second", &request).await.0, "index-trusted");
}

#[tokio::test]
async fn all_repositories_are_asked_at_the_same_time() {
    let repos = Repos::new().await;
    let request = ImageRequest { index: IndexChoice::Registry, ..repos.request("app:v1") };
    repos.publish(&request, &[]).await;
    let both = Arc::new(Barrier::new(2));
    for fixture in [&repos.images, &repos.indexes] {
        fixture.registry().model().gate_referrers(both.clone());
    }
    // Neither answers before the other was asked.
    assert_eq!(repos.prepared("second", &request).await.0, "index-trusted");
}

#[tokio::test]
async fn the_list_of_the_images_registry_is_not_needed() {
    let repos = Repos::new().await;
    let request = ImageRequest { index: IndexChoice::Registry, ..repos.request("app:v1") };
    repos.publish(&request, &[]).await;
    repos.images.registry().model().set_referrers(Referrers::Refused);
    assert_eq!(repos.prepared("second", &request).await.0, "index-trusted");
}

#[tokio::test]
async fn the_first_repository_in_order_wins_and_the_images_own_comes_last() {
    let repos = Repos::new().await;
    let own = ImageRequest { index: IndexChoice::Registry, index_repos: Vec::new(), ..repos.request("app:v1") };
    let first = ImageRequest { index_repos: vec![repos.layout_repo(), repos.repo()], ..own.clone() };
    let second = ImageRequest { index_repos: vec![repos.repo()], ..own.clone() };
    repos.publish(&second, &[]).await;
    let used = async |store: &str, request: &ImageRequest| repos.prepared(store, request).await.1.remove(0);
    let place = repos.place();
    assert!(used("empty", &first).await.contains(&place), "the layout does not exist");
    repos.publish(&first, &[]).await;
    let layout = repos.layout_repo().to_string();
    assert!(used("layout", &first).await.contains(&layout));
    let other = ImageRequest { index_repos: vec![repos.repo(), repos.layout_repo()], ..own };
    assert!(used("registry", &other).await.contains(&place));
}

#[tokio::test]
async fn an_index_of_another_image_is_refused() {
    let repos = Repos::with(Referrers::Unknown).await;
    let (old, new) = (repos.request("app:v0"), repos.request("app:v1"));
    let made = repos.publish(&old, &[]).await;
    // The index repository lists it for the newer image.
    let (place, access) = index_destination(&new).unwrap();
    let target = access::open_destination(&place, &access).unwrap();
    let size =
        access::open(&place.to_string(), &access).await.unwrap().manifest(&made.index_digest).await.unwrap().len();
    let list = json!({
        "schemaVersion": 2,
        "mediaType": OCI_INDEX,
        "manifests": [{
            "mediaType": OCI_MANIFEST,
            "digest": made.index_digest.to_string(),
            "size": size,
            "artifactType": "application/vnd.tarpon.index.v1",
        }],
    });
    let tag = format!("sha256-{}", repos.v1.digest().hex());
    target.push_manifest(OCI_INDEX, list.to_string().into(), Some(&tag)).await.unwrap();
    let (state, notes) = repos.prepared("second", &new).await;
    assert_eq!(state, "diffID-verified");
    let (index, place) = (made.index_digest, repos.place());
    assert_eq!(notes, [format!("the index {index} of {place} is not used: it is about another image")]);
}

#[tokio::test]
async fn an_index_repository_that_is_away_costs_a_line_and_the_layers_are_streamed() {
    let mut repos = Repos::new().await;
    let request = repos.request("app:v1");
    repos.publish(&request, &[]).await;
    let place = repos.place();
    repos.indexes.stop_registry();
    let (state, notes) = repos.prepared("second", &request).await;
    assert_eq!(state, "diffID-verified");
    assert!(notes.len() == 1 && notes[0].starts_with(&format!("no index of {place} is used: ")), "{notes:?}");
}

#[tokio::test]
async fn an_image_without_an_index_is_news_only_to_who_asked_for_one() {
    let repos = Repos::new().await;
    let request = repos.request("app:v1");
    assert_eq!(repos.prepared("silent", &request).await, ("diffID-verified".to_owned(), Vec::new()));
    let asked = ImageRequest { index: IndexChoice::Registry, ..request };
    let (_, notes) = repos.prepared("told", &asked).await;
    let (place, own) = (repos.place(), repos.images.name("app:v1"));
    assert_eq!(notes, [format!("no index is used: {place} and {own} list none for this image")]);
}

#[tokio::test]
async fn the_users_choice_counts_in_index_repositories_too() {
    let repos = Repos::new().await;
    let request = repos.request("app:v1");
    let made = repos.publish(&request, &[]).await;
    let (_, before) = repos.requests();
    for (store, index) in [("none", IndexChoice::None), ("signed", IndexChoice::Signed)] {
        let request = ImageRequest { index, ..request.clone() };
        assert_eq!(repos.prepared(store, &request).await, ("diffID-verified".to_owned(), Vec::new()));
    }
    assert_eq!(repos.requests().1, before, "without a key no signature verifies");

    let pinned = ImageRequest { index: IndexChoice::Pinned(made.index_digest), ..request.clone() };
    assert_eq!(repos.prepared("pinned", &pinned).await.0, "index-pinned");
    let mut lock = IndexLock::default();
    lock.pin(repos.v1.digest(), "app:v1", made.index_digest);
    let locked = ImageRequest { index: IndexChoice::Locked(Arc::new(lock)), ..request.clone() };
    assert_eq!(repos.prepared("locked", &locked).await.0, "index-pinned");
    let empty = ImageRequest { index: IndexChoice::Locked(Arc::default()), ..request.clone() };
    assert_eq!(repos.prepared("not locked", &empty).await.0, "index-trusted", "as without a lock file");

    let other = ImageRequest { index: IndexChoice::Pinned(repos.v0.digest()), ..request };
    let (state, notes) = repos.prepared("missing", &other).await;
    assert!(state == "diffID-verified" && notes.len() == 1 && notes[0].contains(&repos.place()), "{notes:?}");
}

#[tokio::test]
async fn a_layout_is_an_index_repository_for_the_images_of_all_registries() {
    let repos = Repos::with(LISTS).await;
    let request = ImageRequest { index_repos: vec![repos.layout_repo()], ..repos.request("app:v1") };
    let other = ImageRequest { index_repos: vec![repos.layout_repo()], ..repos.request("app:v0") };
    repos.publish(&request, &[]).await;
    repos.publish(&other, &[]).await;
    let before = repos.requests();
    for (store, request) in [("one", &request), ("other", &other)] {
        assert_eq!(repos.prepared(store, request).await.0, "index-trusted");
    }
    assert_eq!(repos.requests(), (before.0 + 4, before.1));
}

#[tokio::test]
async fn too_many_index_repositories_are_an_error() {
    let repos = Repos::new().await;
    let request = ImageRequest { index_repos: vec![repos.repo(); 9], ..repos.request("app:v1") };
    let error = repos.engine("store").prepare(&request, &repos.notes).await.unwrap_err();
    assert!(error.cause().to_string().contains("there are 9 of them, more than 8"), "{error}");
}
