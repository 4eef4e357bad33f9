//! A registry of others, and a registry of our own.

use std::path::PathBuf;
use std::time::Duration;

use tarpon_engine::oci::{Compression, Digest, IndexRepo};
use tarpon_engine::registry::Contents;
use tarpon_engine::trace::{Header, Touch, Trace};
use tarpon_engine::{Access, Engine, ImageIndexArtifact, ImageRequest, IndexChoice, PolicyChoice, index_destination};
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{Dialect, Image, Item, Layer, tar};
use tarpon_testkit::registry::{Auth, Referrers};

use crate::support::{self, Notes};

/// Lists of referrers that fit on one page.
pub(crate) const LISTS: Referrers = Referrers::Kept { page: 100, filters: true };

pub(crate) fn text() -> Vec<u8> {
    (0..3_000_u32).flat_map(|n| format!("{:08x} ", n.wrapping_mul(2_654_435_761)).into_bytes()).collect()
}

pub(crate) fn image(name: &str) -> Image {
    let items = [Item::file("name", name), Item::file("text", text()), Item::file("other", vec![7; 9_000])];
    Image::of([Layer::plain(&tar(&items, Dialect::Pax), Compression::Gzip)])
}

/// A start that reads all of the text.
pub(crate) fn start() -> Trace {
    let content = text();
    let touch = Touch {
        object: Digest::of(&content),
        size: content.len() as u64,
        range: 0..content.len() as u64,
        at: Duration::ZERO,
        layer: None,
        path: None,
        from: None,
        stall: Duration::ZERO,
    };
    let header = Header::new("app", Digest::of(b"some image"), "default");
    Trace { header, touches: vec![touch] }
}

/// Images `app:v0` and `app:v1` in a registry that refuses writes, and a registry that accepts them.
pub(crate) struct Repos {
    pub(crate) images: Fixture,
    pub(crate) indexes: Fixture,
    pub(crate) notes: Notes,
    pub(crate) v0: Image,
    pub(crate) v1: Image,
}

impl Repos {
    pub(crate) async fn new() -> Self {
        Self::with(LISTS).await
    }

    /// Both registries keep these lists.
    pub(crate) async fn with(referrers: Referrers) -> Self {
        let (v0, v1) = (image("old"), image("new"));
        let mut contents = Contents::new();
        v0.add_to(&mut contents, "app", "v0");
        v1.add_to(&mut contents, "app", "v1");
        let images = Fixture::with_registry(contents, Auth::Anonymous).await;
        let indexes = Fixture::with_registry(Contents::new(), Auth::Anonymous).await;
        for fixture in [&images, &indexes] {
            fixture.registry().model().set_referrers(referrers);
        }
        images.registry().model().refuse_writes();
        Self { images, indexes, notes: Notes::default(), v0, v1 }
    }

    /// An engine on the store of this name, as another host has one.
    pub(crate) fn engine(&self, store: &str) -> Engine {
        support::engine(&self.images.path(store))
    }

    /// The index repository in the other registry.
    pub(crate) fn repo(&self) -> IndexRepo {
        self.indexes.name("tarpon").parse().unwrap()
    }

    pub(crate) fn layout_repo(&self) -> IndexRepo {
        IndexRepo::Layout(self.layout())
    }

    pub(crate) fn layout(&self) -> PathBuf {
        self.images.path("indexes")
    }

    /// The name of the place of `app`, as messages show it.
    pub(crate) fn place(&self) -> String {
        self.indexes.name(&format!("tarpon/{}/app", self.images.name("").trim_end_matches('/').replace(':', "_")))
    }

    /// A request by a user who configured the index repository and nothing else.
    pub(crate) fn request(&self, image: &str) -> ImageRequest {
        ImageRequest {
            index: IndexChoice::Unset,
            index_repos: vec![self.repo()],
            profile: Some("default".to_owned()),
            access: Access { policy: PolicyChoice::File(self.policy()), ..Access::default() },
            ..support::request(&self.images.name(image))
        }
    }

    /// The policy, which accepts everything unless a test wrote another one.
    pub(crate) fn policy(&self) -> PathBuf {
        let file = self.images.path("policy.json");
        if !file.exists() {
            std::fs::write(&file, r#"{"default":[{"type":"insecureAcceptAnything"}]}"#).unwrap();
        }
        file
    }

    /// Makes an index by an engine of its own, and publishes it where the request demands.
    pub(crate) async fn publish(&self, request: &ImageRequest, starts: &[Trace]) -> ImageIndexArtifact {
        let engine = self.engine("maker");
        let made = engine.make_index(request, starts, &self.notes).await.unwrap();
        let (place, _) = index_destination(request).unwrap();
        assert_eq!(engine.publish_index(&made, &place, &request.access, None).await.unwrap(), made.index_digest);
        made
    }

    /// How the layer is known after preparing the image in an empty store, and the notes.
    pub(crate) async fn prepared(&self, store: &str, request: &ImageRequest) -> (String, Vec<String>) {
        self.notes.take();
        let prepared = self.engine(store).prepare(request, &self.notes).await.unwrap();
        (prepared.record.layers[0].verification.to_string(), self.notes.take())
    }

    /// Requests to both registries so far.
    pub(crate) fn requests(&self) -> (u64, u64) {
        (self.images.registry().stats().requests, self.indexes.registry().stats().requests)
    }
}
