//! Predicted starts: where their contents may go, and what becomes of them when the start is learned.

use serde_json::json;
use tarpon_engine::oci::{Compression, Digest, Source};
use tarpon_engine::registry::Contents;
use tarpon_engine::{Access, ImageRequest, IndexChoice, LearnedRequest, SyncOptions, index_destination, known_indexes};
use tarpon_fetch::BootIndex;
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{Dialect, Image, ImageBuilder, Item, Layer, tar};
use tarpon_testkit::registry::{Auth, PASSWORD, USER};

use crate::fixture::{LISTS, Repos, start, text};
use crate::learned::{keep, learned, publish, published, request};
use crate::manage::{OPTIONS, states};
use crate::support::load;

const TOOL: &[u8] = b"the program that the image starts";

fn items() -> [Item; 2] {
    [Item::file("tool", TOOL).mode(0o755), Item::file("text", text())]
}

fn image() -> Image {
    started_by("/tool", Layer::plain(&tar(&items(), Dialect::Pax), Compression::Gzip))
}

fn started_by(program: &str, layer: Layer) -> Image {
    ImageBuilder::new().layer(layer).config("Cmd", json!([program])).build()
}

/// A registry with the image `app:v1`, which takes indexes too.
async fn registry(auth: Auth) -> (Fixture, Image) {
    let (mut contents, image) = (Contents::new(), image());
    image.add_to(&mut contents, "app", "v1");
    let registry = Fixture::with_registry(contents, auth).await;
    registry.registry().model().set_referrers(LISTS);
    (registry, image)
}

/// For an image of this registry, with the index repository of `repos`.
fn request_for(repos: &Repos, registry: &Fixture, name: &str) -> ImageRequest {
    let text = registry.name(name);
    ImageRequest { source: text.parse().unwrap(), text, ..repos.request("app:v1") }
}

/// As [`request_for`], for the image of a registry that demands credentials.
fn private_request(repos: &Repos, registry: &Fixture) -> ImageRequest {
    let request = request_for(repos, registry, "app:v1");
    let access = Access { creds: Some(format!("{USER}:{PASSWORD}")), ..request.access };
    ImageRequest { access, ..request }
}

#[tokio::test]
async fn a_predicted_start_of_a_private_image_goes_to_its_own_repository_only() {
    let repos = Repos::new().await;
    let (registry, _) = registry(Auth::Basic).await;
    let request = private_request(&repos, &registry);
    let engine = repos.engine("store");

    let (place, _) = index_destination(&request).unwrap();
    let made = engine.make_predicted_index(&request, &place, &repos.notes).await.unwrap();
    assert!(made.boots.is_empty(), "others may read the index repository");
    let notes = repos.notes.take();
    let why = |note: &String| note.contains("no start is predicted") && note.contains("the image needs credentials");
    assert!(notes.iter().any(why), "{notes:?}");

    let own = ImageRequest { index_repos: Vec::new(), ..request };
    let (place, _) = index_destination(&own).unwrap();
    let made = engine.make_predicted_index(&own, &place, &repos.notes).await.unwrap();
    assert_eq!(made.boots.len(), 1);
}

#[tokio::test]
async fn a_recorded_start_of_a_private_image_stays_in_its_repository() {
    let repos = Repos::new().await;
    let (registry, _) = registry(Auth::Basic).await;
    let request = private_request(&repos, &registry);
    let own = ImageRequest { index_repos: Vec::new(), ..request.clone() };
    let engine = repos.engine("store");
    let recorded = engine.make_index(&own, &[start()], &repos.notes).await.unwrap();
    engine.publish_index(&recorded, &own.source, &own.access, None).await.unwrap();
    assert_eq!(engine.make_index(&own, &[], &repos.notes).await.unwrap().boots.len(), 1);

    repos.notes.take();
    let elsewhere = engine.make_index(&request, &[], &repos.notes).await.unwrap();
    assert!(elsewhere.boots.is_empty(), "others may read the index repository");
    let notes = repos.notes.take();
    let is_kept_back = |note: &String| note.contains("are not copied") && note.contains("credentials");
    assert!(notes.iter().any(is_kept_back), "{notes:?}");

    let layout = Source::OciLayout { directory: repos.layout(), tag: None };
    let plain = engine.make_plain_index(&own, &layout, &repos.notes).await.unwrap();
    assert!(plain.boots.is_empty() && repos.notes.take().iter().any(is_kept_back), "a layout may have other readers");
    let predicted = engine.make_predicted_index(&own, &layout, &repos.notes).await.unwrap();
    assert!(predicted.boots.is_empty(), "a layout may have other readers");
}

#[tokio::test]
async fn a_learned_start_is_published_with_what_was_predicted_and_replaces_it() {
    let repos = Repos::new().await;
    let (registry, image) = registry(Auth::Anonymous).await;
    let name = registry.name("app:v1");
    let own = ImageRequest { index_repos: Vec::new(), ..request_for(&repos, &registry, "app:v1") };
    let engine = repos.engine("store");
    let (place, _) = index_destination(&own).unwrap();
    let predicted = engine.make_predicted_index(&own, &place, &repos.notes).await.unwrap();
    engine.publish_index(&predicted, &place, &own.access, None).await.unwrap();

    // Of the text alone: the pack had the tool, so no read of it was seen.
    keep(&engine, &learned(&name, image.digest(), 3));
    let request = LearnedRequest { index_repos: Vec::new(), ..request(&repos) };
    let index = published(&publish(&engine, &request).await[0]);
    let newest = known_indexes(&own).await.unwrap().indexes.swap_remove(0);
    assert_eq!(newest.index_digest, index);
    let profiles: Vec<_> = newest.packs.iter().map(|pack| pack.profile.as_str()).collect();
    assert_eq!(profiles, ["default"]);

    let pieces = pack_of(&repos, own).await;
    assert!(pieces.contains(&Digest::of(TOOL)) && pieces.contains(&Digest::of(&text())));
}

/// The contents of the boot pack that a host uses for the image.
async fn pack_of(repos: &Repos, request: ImageRequest) -> Vec<Digest> {
    let host = repos.engine("host");
    let request = ImageRequest { index: IndexChoice::Registry, ..request };
    let prepared = host.prepare(&request, &repos.notes).await.unwrap();
    let boot = BootIndex::read(&load(&host, &prepared).boot.unwrap()).unwrap();
    boot.frames.iter().flat_map(|frame| &frame.pieces).map(|piece| piece.object).collect()
}

#[tokio::test]
async fn a_learned_start_of_a_private_image_that_may_be_published_has_what_was_predicted() {
    let repos = Repos::new().await;
    let (registry, image) = registry(Auth::Basic).await;
    let elsewhere = private_request(&repos, &registry);
    let own = ImageRequest { index_repos: Vec::new(), ..elsewhere.clone() };
    let engine = repos.engine("store");
    let predicted = engine.make_predicted_index(&own, &own.source, &repos.notes).await.unwrap();
    engine.publish_index(&predicted, &own.source, &own.access, None).await.unwrap();

    keep(&engine, &learned(&registry.name("app:v1"), image.digest(), 3));
    let access = elsewhere.access.clone();
    let request = LearnedRequest { publish_private: true, access, ..request(&repos) };
    published(&publish(&engine, &request).await[0]);
    let pieces = pack_of(&repos, elsewhere).await;
    assert!(pieces.contains(&Digest::of(TOOL)) && pieces.contains(&Digest::of(&text())));
}

#[tokio::test]
async fn an_index_without_the_predicted_pack_of_another_repository_counts_as_not_predicted() {
    let repos = Repos::new().await;
    let (registry, _) = registry(Auth::Anonymous).await;
    let elsewhere = request_for(&repos, &registry, "app:v1");
    let own = ImageRequest { index_repos: Vec::new(), ..elsewhere.clone() };
    let engine = repos.engine("store");
    let predicted = engine.make_predicted_index(&own, &own.source, &repos.notes).await.unwrap();
    engine.publish_index(&predicted, &own.source, &own.access, None).await.unwrap();
    let mut web = start();
    web.header.profile = "web".to_owned();
    let (place, _) = index_destination(&elsewhere).unwrap();
    let recorded = engine.make_index(&elsewhere, &[web], &repos.notes).await.unwrap();
    engine.publish_index(&recorded, &place, &elsewhere.access, None).await.unwrap();

    for state in ["indexed", "known"] {
        let synced = engine.sync_indexes(vec![elsewhere.clone()], OPTIONS, &|_| ()).await;
        assert_eq!(states(&synced), [state], "{synced:?}");
    }
    let packs = &known_indexes(&elsewhere).await.unwrap().indexes[0].packs;
    let mut profiles: Vec<_> = packs.iter().map(|pack| pack.profile.as_str()).collect();
    profiles.sort_unstable();
    assert_eq!(profiles, ["predicted", "web"]);
}

#[tokio::test]
async fn a_list_predicts_starts_of_images_with_tables_of_contents_unless_that_is_unwanted() {
    let repos = Repos::new().await;
    let mut contents = Contents::new();
    started_by("/tool", Layer::estargz(&items())).add_to(&mut contents, "app", "v1");
    started_by("/none", Layer::estargz(&items())).add_to(&mut contents, "app", "v2");
    let registry = Fixture::with_registry(contents, Auth::Anonymous).await;
    let request = |name: &str| request_for(&repos, &registry, name);
    let engine = repos.engine("store");
    for (predict, expected) in
        [(false, ["unneeded", "unneeded"]), (true, ["indexed", "unneeded"]), (true, ["known", "unneeded"])]
    {
        let requests = ["app:v1", "app:v2"].map(request).to_vec();
        let synced = engine.sync_indexes(requests, SyncOptions { predict, ..OPTIONS }, &|_| ()).await;
        assert_eq!(states(&synced), expected, "{synced:?}");
    }
    let packs = &known_indexes(&request("app:v1")).await.unwrap().indexes[0].packs;
    assert_eq!(packs.iter().map(|pack| pack.profile.as_str()).collect::<Vec<_>>(), ["predicted"]);
}

#[tokio::test]
async fn a_list_predicts_once_for_images_that_have_an_index_already() {
    let repos = Repos::new().await;
    let mut contents = Contents::new();
    image().add_to(&mut contents, "app", "v1");
    started_by("/none", Layer::plain(&tar(&items(), Dialect::Pax), Compression::Gzip)).add_to(
        &mut contents,
        "app",
        "v2",
    );
    let registry = Fixture::with_registry(contents, Auth::Anonymous).await;
    let request = |name: &str| request_for(&repos, &registry, name);
    let engine = repos.engine("store");
    for (predict, expected) in [
        (false, ["indexed", "indexed"]),
        (false, ["known", "known"]),
        (true, ["indexed", "indexed"]),
        (true, ["known", "known"]),
    ] {
        let requests = ["app:v1", "app:v2"].map(request).to_vec();
        let synced = engine.sync_indexes(requests, SyncOptions { predict, ..OPTIONS }, &|_| ()).await;
        assert_eq!(states(&synced), expected, "{synced:?}");
    }
    for (tag, expected) in [("app:v1", &["predicted"][..]), ("app:v2", &[])] {
        let indexes = known_indexes(&request(tag)).await.unwrap().indexes;
        let packs: Vec<_> = indexes[0].packs.iter().map(|pack| pack.profile.as_str()).collect();
        assert_eq!((indexes.len(), &packs[..]), (2, expected), "the newest comes first");
    }
}
