//! Artifacts are pushed with their subject, and found by it: in registries with a list, without one, in layouts.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;

use common::{World, contents};
use tarpon_blob::Fault as Class;
use tarpon_oci::media_type::{OCI_INDEX, OCI_MANIFEST};
use tarpon_oci::{Artifact, Blob, Descriptor, Digest, EMPTY_CONFIG, NewArtifact, NewDescriptor, Source};
use tarpon_registry::{
    AccessOptions, CredentialSource, Destination, Error, open, open_destination, open_destination_with,
};
use tarpon_testkit::registry::Fault::{self, *};
use tarpon_testkit::registry::{Auth, FakeRegistry, PASSWORD, Referrers};
use tarpon_testkit::transport::ScriptedTransport;

const KIND: &str = "application/vnd.example.index.v1";
const OTHER: &str = "application/vnd.example.signature.v1";

fn subject() -> Blob {
    Blob { digest: Digest::of(b"subject"), size: 7 }
}

/// Pushes an artifact of `kind` whose subject is the manifest with `text`.
async fn push(destination: &Destination, kind: &str, text: &'static str) -> Digest {
    destination.push_bytes(EMPTY_CONFIG.into()).await.unwrap();
    let layer = destination.push_bytes(text.into()).await.unwrap();
    let artifact = NewArtifact {
        artifact_type: kind.to_owned(),
        layers: vec![NewDescriptor::new("application/x", layer)],
        annotations: [("text".to_owned(), text.to_owned())].into(),
        subject: Some(NewDescriptor::new(OCI_MANIFEST, subject())),
    };
    let manifest = artifact.manifest().unwrap();
    destination.push_manifest(OCI_MANIFEST, manifest.into_inner(), None).await.unwrap()
}

fn world() -> (World, Destination) {
    let world = World::open();
    let reference = "registry.test/app:1".parse().unwrap();
    let destination =
        open_destination_with(&reference, world.transport.clone(), CredentialSource::default(), true).unwrap();
    (world, destination)
}

#[tokio::test(start_paused = true)]
async fn a_repository_that_is_ready_is_asked_for_list_and_tag_at_once_and_then_for_the_list_alone() {
    let world = World::token(Some(PASSWORD));
    world.registry.set_referrers(Referrers::Kept { page: 10, filters: true });
    world.repository.get_ready(1).await;
    let before = world.transport.seen().len();
    assert_eq!(before, 3, "a challenge, a token, an answer");
    for asked in [vec!["/referrers/", "/manifests/sha256-"], vec!["/referrers/"]] {
        let before = world.transport.seen().len();
        world.repository.referrers(&subject().digest, KIND).await.unwrap();
        let seen = world.transport.seen().split_off(before);
        assert_eq!(seen.len(), asked.len());
        assert!(seen.iter().zip(&asked).all(|(seen, asked)| seen.url.path().contains(asked)), "{asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_list_decides_whatever_the_answer_about_the_tag_is() {
    for fault in [Pass, Status(401), Status(500), Never, Html, Typed(OCI_INDEX, "[]")] {
        let (world, destination) = world();
        world.registry.set_referrers(Referrers::Kept { page: 10, filters: true });
        let pushed = push(&destination, KIND, "first").await;
        world.transport.attack("/manifests/sha256-", Some(fault.clone()));
        let began = tokio::time::Instant::now();
        let found = world.repository.referrers(&subject().digest, KIND).await.unwrap();
        assert_eq!(digests(&found), [pushed], "{fault:?}");
        assert!(began.elapsed().is_zero(), "{fault:?}: it was waited for");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_list_the_answer_about_the_tag_decides() {
    for (fault, outcome) in [
        (Pass, Ok(1)),
        (Status(404), Ok(0)),
        (Status(403), Err(Class::Denied)),
        (Status(500), Err(Class::Unavailable)),
        (Typed(OCI_INDEX, "[]"), Err(Class::Refused)),
    ] {
        let (world, destination) = world();
        push(&destination, KIND, "first").await;
        world.transport.attack("/manifests/sha256-", Some(fault.clone()));
        let found = world.repository.referrers(&subject().digest, KIND).await;
        assert_eq!(found.map(|found| found.len()).map_err(|error| error.fault()), outcome, "{fault:?}");
    }
}

fn digests(found: &[Descriptor]) -> Vec<Digest> {
    found.iter().map(|found| found.digest).collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_pushed_is_found_and_read_with_a_list_and_without() {
    for referrers in [
        Referrers::Unknown,
        Referrers::Kept { page: 10, filters: true },
        Referrers::Kept { page: 10, filters: false },
        Referrers::Kept { page: 1, filters: false },
        Referrers::Kept { page: 2, filters: true },
    ] {
        let (world, destination) = world();
        world.registry.set_referrers(referrers);
        let found = world.repository.referrers(&subject().digest, KIND).await.unwrap();
        assert_eq!(digests(&found), [], "{referrers:?}");
        let first = push(&destination, KIND, "first").await;
        push(&destination, OTHER, "second").await;
        let third = push(&destination, KIND, "third").await;
        assert_eq!(push(&destination, KIND, "first").await, first, "pushing again changes nothing");
        let found = world.repository.referrers(&subject().digest, KIND).await.unwrap();
        for digest in [first, third] {
            assert!(digests(&found).contains(&digest), "{referrers:?}");
        }
        assert!(found.iter().all(|found| found.artifact_type.as_deref() == Some(KIND)));
        if referrers == Referrers::Unknown {
            assert_eq!(found.len(), 2, "each is listed once");
            assert_eq!(found.iter().find(|found| found.digest == first).unwrap().annotations["text"], "first");
        }
        let artifact = Artifact::parse(world.repository.manifest(&first).await.unwrap()).unwrap();
        assert_eq!(artifact.subject.unwrap().digest, subject().digest);
        assert_eq!(artifact.layers[0].digest, Digest::of(b"first"));
    }
}

async fn after(script: Vec<Fault>) -> Result<usize, Class> {
    let (world, destination) = world();
    world.registry.set_referrers(Referrers::Kept { page: 10, filters: true });
    push(&destination, KIND, "first").await;
    // From now on it is known that there is a list, so that the script meets no other request.
    world.repository.referrers(&subject().digest, KIND).await.unwrap();
    world.transport.script(script);
    let found = world.repository.referrers(&subject().digest, KIND).await;
    if let Err(error) = &found {
        let text = error.to_string();
        assert!(!text.contains('\n') && text.contains("referrers"), "{text}");
    }
    found.map(|found| found.len()).map_err(|error| error.fault())
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_no_list_are_distinguished() {
    assert_eq!(after(vec![]).await, Ok(1));
    for status in [400, 404, 405] {
        // No list: the tag is requested, and does not exist.
        assert_eq!(after(vec![Status(status)]).await, Ok(0), "{status}");
    }
    assert_eq!(after(vec![Status(500), Broken, Never]).await, Ok(1), "trouble is asked again");
    assert_eq!(after(vec![Status(500), Status(500), Status(500), Status(500)]).await, Err(Class::Unavailable));
    assert_eq!(after(vec![Status(403)]).await, Err(Class::Denied));
    assert_eq!(after(vec![Html, Html]).await, Err(Class::BadData));
    let manifest = Typed(OCI_MANIFEST, r#"{"schemaVersion":2,"manifests":[]}"#);
    assert_eq!(after(vec![manifest.clone(), manifest]).await, Err(Class::BadData));
    let nonsense = Typed(OCI_INDEX, r#"{"schemaVersion":2,"Manifests":[]}"#);
    assert_eq!(after(vec![nonsense.clone(), nonsense]).await, Err(Class::BadData));
    assert_eq!(after(vec![Typed(OCI_INDEX, r#"{"schemaVersion":2,"manifests":null}"#)]).await, Ok(0));
    assert_eq!(after(vec![Header("content-length", "5000000")]).await, Err(Class::Refused), "too large");
    let away = Header("link", "<https://evil.test/next>; rel=\"next\"");
    assert_eq!(after(vec![away]).await, Err(Class::Refused), "another host has no pages");
}

#[tokio::test(start_paused = true)]
async fn pages_that_never_end_do() {
    let (world, _) = world();
    world.registry.set_referrers(Referrers::Endless);
    let error = world.repository.referrers(&subject().digest, KIND).await.unwrap_err();
    assert_eq!(error.fault(), Class::Refused);
    let seen = world.transport.seen();
    let pages = seen.iter().filter(|seen| seen.url.path().contains("/referrers/"));
    assert!(
        pages.count() <= tarpon_oci::limits::REFERRERS_PAGES && seen.len() <= tarpon_oci::limits::REFERRERS_PAGES + 1
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_under_the_tag_that_is_none_is_not_overwritten() {
    let mut contents = contents();
    let tag = format!("sha256-{}", subject().digest.hex());
    let odd = r#"{"schemaVersion":2,"layers":[],"config":{"mediaType":"a/b","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":0}}"#;
    contents.add_manifest(Some(("app", &tag)), OCI_MANIFEST, odd);
    let registry = Arc::new(FakeRegistry::new(contents, Auth::Anonymous, None));
    let transport = Arc::new(ScriptedTransport::new(registry));
    let reference = "registry.test/app:1".parse().unwrap();
    let destination = open_destination_with(&reference, transport, CredentialSource::default(), true).unwrap();
    let artifact = NewArtifact {
        artifact_type: KIND.to_owned(),
        layers: vec![NewDescriptor::new("application/x", subject())],
        annotations: Default::default(),
        subject: Some(NewDescriptor::new(OCI_MANIFEST, subject())),
    };
    let bytes = artifact.manifest().unwrap().into_inner();
    let error = destination.push_manifest(OCI_MANIFEST, bytes, None).await.unwrap_err();
    assert!(matches!(error, Error::Manifest { what: "list of referrers", .. }), "{error:?}");
}

#[tokio::test]
async fn a_layout_is_written_and_read_like_a_registry() {
    let folder = tempfile::tempdir().unwrap();
    let source: Source = format!("oci:{}", folder.path().join("new/layout").display()).parse().unwrap();
    let destination = open_destination(&source, &AccessOptions::default()).unwrap();
    assert_eq!(destination.tag(), Some("latest"));
    let first = push(&destination, KIND, "first").await;
    push(&destination, OTHER, "second").await;
    push(&destination, KIND, "first").await;
    let repository = open(&source, &AccessOptions::default()).await.unwrap();
    let found = repository.referrers(&subject().digest, KIND).await.unwrap();
    assert_eq!(digests(&found), [first]);
    assert_eq!(repository.referrers(&Digest::of(b"other"), KIND).await.unwrap(), []);
    let artifact = Artifact::parse(repository.manifest(&first).await.unwrap()).unwrap();
    assert_eq!(artifact.artifact_type, KIND);
}
