//! Learned starts that are published: after how many, by which host, and what is never published.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tarpon_engine::oci::{Digest, Source};
use tarpon_engine::registry::Contents;
use tarpon_engine::trace::{Header, Trace};
use tarpon_engine::{
    Access, Engine, ErrorKind, Failed, ImageRequest, LearnedRequest, LearnedStart, LearnedState, SigningKey,
    index_destination, known_indexes,
};
use tarpon_images::access;
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::registry::{Auth, PASSWORD, USER};
use tokio::sync::Barrier;

use crate::fixture::{Repos, image, start};
use crate::signed::{demand_signatures, key};

/// The trace that this many equal starts of the image left.
pub(crate) fn learned(name: &str, manifest: Digest, starts: u32) -> Trace {
    let Trace { header, touches } = start();
    Trace { header: Header { image: name.to_owned(), manifest, starts, ..header }, touches }
}

pub(crate) fn keep(engine: &Engine, trace: &Trace) {
    // The name depends on the command as well.
    let key = Digest::of(format!("{} {:?}", trace.header.image, trace.header.command).as_bytes());
    engine.store().set_trace(&key, &trace.write()).unwrap();
}

/// A host on which `app:v1` started so often.
fn host(repos: &Repos, store: &str, starts: u32) -> Engine {
    let engine = repos.engine(store);
    keep(&engine, &learned(&repos.images.name("app:v1"), repos.v1.digest(), starts));
    engine
}

pub(crate) fn request(repos: &Repos) -> LearnedRequest {
    let ImageRequest { index_repos, access, .. } = repos.request("app:v1");
    LearnedRequest { images: Vec::new(), after: 3, publish_private: false, index_repos, access }
}

async fn publish_signed(engine: &Engine, request: &LearnedRequest, key: Option<&SigningKey>) -> Vec<LearnedStart> {
    let told = AtomicUsize::new(0);
    let count = |_: &LearnedStart| {
        told.fetch_add(1, Ordering::Relaxed);
    };
    let done = engine.publish_learned(request, key, &count).await.unwrap();
    assert_eq!(told.into_inner(), done.len());
    done
}

pub(crate) async fn publish(engine: &Engine, request: &LearnedRequest) -> Vec<LearnedStart> {
    publish_signed(engine, request, None).await
}

pub(crate) fn published(start: &LearnedStart) -> Digest {
    match &start.state {
        LearnedState::Published { index_digest, pack_size, .. } if *pack_size > 0 => *index_digest,
        state => panic!("{state:?}"),
    }
}

fn known(start: &LearnedStart) -> Digest {
    match &start.state {
        LearnedState::Known { index_digest, .. } => *index_digest,
        state => panic!("{state:?}"),
    }
}

fn refused(start: &LearnedStart) -> &Failed {
    match &start.state {
        LearnedState::Refused(failed) => failed,
        state => panic!("{state:?}"),
    }
}

fn failed(start: &LearnedStart) -> &Failed {
    match &start.state {
        LearnedState::Failed(failed) => failed,
        state => panic!("{state:?}"),
    }
}

/// Number of indexes in the index repository.
async fn indexes(repos: &Repos) -> usize {
    known_indexes(&repos.request("app:v1")).await.unwrap().indexes.len()
}

#[tokio::test]
async fn a_pack_is_published_after_enough_starts_and_not_before() {
    let repos = Repos::new().await;
    let engine = host(&repos, "first", 2);
    let done = publish(&engine, &request(&repos)).await;
    assert!(matches!(done[0].state, LearnedState::TooFew { after: 3 }), "{done:?}");
    assert_eq!(repos.requests(), (0, 0), "no registry got a request");

    let done = publish(&host(&repos, "first", 3), &request(&repos)).await;
    let [one] = &done[..] else { panic!("{done:?}") };
    let index = published(one);
    assert_eq!((one.image.clone(), one.manifest_digest), (repos.images.name("app:v1"), Some(repos.v1.digest())));

    let prepared = repos.engine("other").prepare(&repos.request("app:v1"), &repos.notes).await.unwrap();
    assert!(prepared.record.boot_source.is_some_and(|place| place.starts_with(&repos.place())), "another host uses it");
    assert_eq!(known(&publish(&engine, &request(&repos)).await[0]), index, "once for an image");
}

#[tokio::test]
async fn a_second_host_finds_the_pack_and_publishes_nothing() {
    let repos = Repos::new().await;
    let index = published(&publish(&host(&repos, "first", 3), &request(&repos)).await[0]);
    assert_eq!(known(&publish(&host(&repos, "second", 9), &request(&repos)).await[0]), index);
    assert_eq!(indexes(&repos).await, 1);
}

#[tokio::test]
async fn a_pack_that_another_host_publishes_meanwhile_is_found() {
    let repos = Repos::new().await;
    let other = repos.engine("other").make_index(&repos.request("app:v1"), &[start()], &repos.notes).await.unwrap();
    let (place, _) = index_destination(&repos.request("app:v1")).unwrap();
    let gate = Arc::new(Barrier::new(2));
    repos.indexes.registry().model().gate_referrers(gate.clone());
    let (engine, request) = (host(&repos, "first", 3), request(&repos));
    let meanwhile = async {
        // The look for a pack, and the one for packs that the new index has to keep.
        gate.wait().await;
        gate.wait().await;
        repos.engine("other").publish_index(&other, &place, &request.access, None).await.unwrap();
        gate.wait().await;
        repos.indexes.registry().model().gate_referrers(Arc::new(Barrier::new(1)));
    };
    let (done, ()) = futures::join!(publish(&engine, &request), meanwhile);
    assert_eq!(known(&done[0]), other.index_digest);
    assert_eq!(indexes(&repos).await, 1);
}

#[tokio::test]
async fn an_index_without_a_pack_gets_one_and_packs_of_other_starts_stay() {
    let repos = Repos::new().await;
    let request_for_image = repos.request("app:v1");
    repos.publish(&request_for_image, &[]).await;
    let mut other = start();
    other.header.profile = "batch".to_owned();
    repos.publish(&request_for_image, &[other]).await;
    let index = published(&publish(&host(&repos, "first", 3), &request(&repos)).await[0]);
    let newest = known_indexes(&request_for_image).await.unwrap().indexes.swap_remove(0);
    assert_eq!(newest.index_digest, index);
    let profiles: Vec<_> = newest.packs.iter().map(|pack| pack.profile.as_str()).collect();
    assert_eq!(profiles, ["batch", "default"]);
}

#[tokio::test]
async fn the_start_that_most_often_was_equal_represents_its_image() {
    let repos = Repos::new().await;
    let engine = host(&repos, "first", 1);
    let mut often = learned(&repos.images.name("app:latest"), repos.v1.digest(), 4);
    often.header.command = vec!["serve".to_owned()];
    keep(&engine, &often);
    let done = publish(&engine, &request(&repos)).await;
    let [one] = &done[..] else { panic!("{done:?}") };
    assert_eq!(one.starts, 4);
    published(one);
}

#[tokio::test]
async fn only_the_named_images_are_published() {
    let repos = Repos::new().await;
    let engine = host(&repos, "first", 3);
    keep(&engine, &learned(&repos.images.name("app:v0"), repos.v0.digest(), 3));
    let named = |name: &str| -> Source { repos.images.name(name).parse().unwrap() };
    let by_digest = named(&format!("app@{}", repos.v0.digest()));
    let request = LearnedRequest { images: vec![by_digest, named("app:none")], ..request(&repos) };
    let done = publish(&engine, &request).await;
    let [missing, one] = &done[..] else { panic!("{done:?}") };
    assert_eq!((failed(missing).kind, missing.image.as_str()), (ErrorKind::NotFound, &*repos.images.name("app:none")));
    assert_eq!(one.manifest_digest, Some(repos.v0.digest()));
    published(one);
}

#[tokio::test]
async fn contents_of_a_private_image_go_to_its_own_repository_or_where_the_user_wants_them() {
    let repos = Repos::new().await;
    for auth in [Auth::Basic, Auth::Bearer { anonymous: false, expires_in: None }] {
        let private = image(&format!("private {auth:?}"));
        let mut contents = Contents::new();
        private.add_to(&mut contents, "app", "v1");
        let registry = Fixture::with_registry(contents, auth.clone()).await;
        registry.registry().model().set_referrers(crate::fixture::LISTS);
        let engine = repos.engine(&format!("{auth:?}"));
        keep(&engine, &learned(&registry.name("app:v1"), private.digest(), 3));
        let request = request(&repos);
        let access = Access { creds: Some(format!("{USER}:{PASSWORD}")), ..request.access };
        let request = LearnedRequest { access, ..request };

        let before = repos.requests().1;
        let done = publish(&engine, &request).await;
        let Failed { error, hint, kind } = refused(&done[0]);
        assert_eq!(*kind, ErrorKind::Forbidden);
        assert!(error.contains("the image needs credentials"), "{error}");
        assert!(hint.as_ref().is_some_and(|hint| hint.contains("--publish-private")), "{hint:?}");
        assert_eq!(repos.requests().1, before, "the index repository was not even asked");

        published(&publish(&engine, &LearnedRequest { publish_private: true, ..request.clone() }).await[0]);
        let own = LearnedRequest { index_repos: Vec::new(), ..request };
        published(&publish(&engine, &own).await[0]);
    }
}

#[tokio::test]
async fn an_image_that_gives_tokens_to_everybody_is_public() {
    let repos = Repos::new().await;
    let mut contents = Contents::new();
    let public = image("public");
    public.add_to(&mut contents, "app", "v1");
    let auth = Auth::Bearer { anonymous: true, expires_in: None };
    let registry = Fixture::with_registry(contents, auth).await;
    let engine = repos.engine("store");
    keep(&engine, &learned(&registry.name("app:v1"), public.digest(), 3));
    published(&publish(&engine, &request(&repos)).await[0]);
}

#[tokio::test]
async fn an_image_in_a_layout_is_not_public() {
    let repos = Repos::new().await;
    let (layout, access) = (format!("oci:{}:v1", repos.layout().display()), Access::default());
    let answer = access::is_public(&layout, &repos.v1.digest(), &access).await.unwrap();
    assert_eq!(answer, Err("it is in no registry".to_owned()));
}

#[tokio::test]
async fn an_image_that_the_policy_rejects_is_not_published() {
    let repos = Repos::new().await;
    let engine = host(&repos, "first", 3);
    let scope = repos.images.name("app");
    let policy = json!({
        "default": [{"type": "insecureAcceptAnything"}],
        "transports": {"docker": {scope: [{"type": "reject"}]}},
    });
    std::fs::write(repos.policy(), policy.to_string()).unwrap();
    let done = publish(&engine, &LearnedRequest { publish_private: true, ..request(&repos) }).await;
    assert_eq!(refused(&done[0]).kind, ErrorKind::Forbidden);
    assert_eq!(repos.requests(), (0, 0), "no registry got a request");
}

#[tokio::test]
async fn where_the_policy_demands_signatures_only_signed_packs_are_published() {
    let (repos, key) = (Repos::new().await, key());
    demand_signatures(&repos, &key);
    let engine = host(&repos, "first", 3);
    let done = publish(&engine, &request(&repos)).await;
    let Failed { kind, hint, .. } = refused(&done[0]);
    assert_eq!((*kind, hint.as_deref()), (ErrorKind::Forbidden, Some("--sign-by-key signs what is published")));
    published(&publish_signed(&engine, &request(&repos), Some(&key)).await[0]);
    assert_eq!(repos.prepared("second", &repos.request("app:v1")).await.0, "index-signed");
}

#[tokio::test]
async fn a_pack_without_a_signature_is_published_again_by_a_host_with_a_key() {
    let (repos, key) = (Repos::new().await, key());
    let engine = host(&repos, "first", 3);
    published(&publish(&engine, &request(&repos)).await[0]);
    demand_signatures(&repos, &key);
    let signed = published(&publish_signed(&engine, &request(&repos), Some(&key)).await[0]);
    assert_eq!(known(&publish_signed(&engine, &request(&repos), Some(&key)).await[0]), signed);
    assert_eq!(repos.prepared("second", &repos.request("app:v1")).await.0, "index-signed");
}

#[tokio::test]
async fn a_dead_registry_costs_a_line_and_the_next_image_goes_on() {
    let mut repos = Repos::new().await;
    let engine = host(&repos, "first", 3);
    let mut dead = Fixture::with_registry(Contents::new(), Auth::Anonymous).await;
    keep(&engine, &learned(&dead.name("app:v1"), repos.v0.digest(), 3));
    dead.stop_registry();
    let done = publish(&engine, &request(&repos)).await;
    let (other, ours): (Vec<_>, Vec<_>) = done.iter().partition(|one| one.image == dead.name("app:v1"));
    assert_eq!(failed(other[0]).kind, ErrorKind::Unavailable);
    published(ours[0]);

    keep(&engine, &learned(&repos.images.name("app:v0"), repos.v0.digest(), 3));
    engine.forget_trace(&Digest::of(format!("{} []", dead.name("app:v1")).as_bytes())).unwrap();
    repos.indexes.stop_registry();
    let done = publish(&engine, &request(&repos)).await;
    assert_eq!(done.len(), 2);
    for one in &done {
        let Failed { kind, error, .. } = failed(one);
        assert_eq!(*kind, ErrorKind::Unavailable);
        assert!(error.starts_with("look for a boot pack in") && error.contains(&repos.place()), "{error}");
    }
}
